"""From the options and the index of a checkpoint to an `ElmoConfig`."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from hf_elmo.configuration_elmo import ElmoConfig

from .checkpoint import SourceCheckpoint
from .errors import ConversionError
from .mapping import GAMMA, SCALAR_PARAMETERS, SOFTMAX_BIAS, TOKEN_PROJECTION, Layout, find_tensor
from .options import ABSENT, OPTIONS, parse_options, read_path, write_path


def complete_options(checkpoint: SourceCheckpoint, overrides: Mapping[str, Any]) -> SourceCheckpoint:
    """The checkpoint with options that a person changed, and with the published values of those that it leaves out.

    Args:
        checkpoint: What a reader returned.
        overrides: Dotted path of an option -> value.

    Raises:
        ConversionError: When there is no such option.
    """
    options = copy.deepcopy(dict(checkpoint.options))
    known = {option.path for option in OPTIONS} | set(checkpoint.defaults)
    assumed = []
    try:
        for path, value in overrides.items():
            if path not in known and read_path(options, path) is ABSENT:
                raise ConversionError(f"There is no option {path}; options known: {', '.join(sorted(known))}.")
            write_path(options, path, value)
        for path, value in checkpoint.defaults.items():
            if read_path(options, path) is ABSENT:
                write_path(options, path, value)
                assumed.append(f"{path} {json.dumps(value)}")
    except ConversionError:
        raise
    except ValueError as error:
        raise ConversionError(f"The options in {checkpoint.options_name} cannot be used: {error}.") from error
    notes = list(checkpoint.notes)
    if assumed:
        notes.append(
            f"This format does not store everything; assumed, as published: {', '.join(assumed)}. "
            "Change it with --set NAME=VALUE or with --options FILE."
        )
    if overrides:
        given = ", ".join(f"{path} {json.dumps(value)}" for path, value in overrides.items())
        notes.append(f"Set by hand: {given}.")
    return replace(checkpoint, options=options, notes=tuple(notes))


def configure(checkpoint: SourceCheckpoint, layout: Layout) -> tuple[ElmoConfig, tuple[str, ...]]:
    """The configuration of a checkpoint, and what was assumed.

    Args:
        checkpoint: The checkpoint with complete options.
        layout: The table of its tensors.

    Raises:
        ConversionError: When the options are incomplete or wrong.
    """
    source, tensors = checkpoint.options_name, checkpoint.tensors
    parsed = parse_options(checkpoint.options, source)
    fields = dict(parsed.fields)
    # bilm-tf projects only between different sizes, AllenNLP always: the file tells which one wrote it.
    if sum(count for _, count in fields["filters"]) == fields["projection_size"]:
        fields["use_token_projection"] = find_tensor(layout, tensors, TOKEN_PROJECTION) is not None
    softmax = find_tensor(layout, tensors, SOFTMAX_BIAS)
    if softmax is not None and len(softmax.shape) == 1:
        fields["word_vocab_size"] = softmax.shape[0]
    scalars = find_tensor(layout, tensors, SCALAR_PARAMETERS)
    gamma = find_tensor(layout, tensors, GAMMA)
    if scalars is not None and scalars.shape == (fields["num_hidden_layers"] + 1,):
        fields["mix_parameters"] = scalars.load().tolist()
    if gamma is not None and gamma.shape in ((), (1,)):
        fields["mix_gamma"] = gamma.load().item()
    try:
        return ElmoConfig(**fields), parsed.assumed
    except (ValueError, StrictDataclassError) as error:
        raise ConversionError(f"The options in {source} cannot be used: {error}") from error
