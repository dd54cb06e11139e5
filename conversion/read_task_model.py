"""Reads the ELMo inside a task model of AllenNLP: the folder of model.tar.gz, with config.json and weights.th."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.errors import StrictDataclassError

from hf_elmo.configuration_elmo import ElmoConfig

from . import configure as architecture
from .checkpoint import FloatArray, SourceCheckpoint, StoredTensor, numbered
from .errors import ConversionError
from .mapping import Layout
from .read_allennlp import names, read_options
from .torch_files import read_state_dict

FORMAT = "allennlp-archive"
WEIGHTS_FILES = ("weights.th", "best.th")
CONFIG_FILE = "config.json"
EMBEDDED_FILES = "fta"
"""Where AllenNLP archives files that the configuration names, each under the path of its key."""

CHARACTER_TABLE = "_elmo_lstm._token_embedder._char_embedding_weights"
LSTM = "_elmo_lstm._elmo_lstm.forward_layer_{}.state_projection.weight"
CACHED_WORDS = "_elmo_lstm._word_embedding."
SCALAR = re.compile(r"(scalar_mix_\d{1,3}\.scalar_parameters)\.(\d{1,3})")
EMBEDDER_TYPES = ("elmo_token_embedder", "elmo")

PUBLISHED_OPTIONS: Mapping[str, Any] = {
    "char_cnn.activation": "relu",
    "char_cnn.max_characters_per_token": 50,
    "lstm.cell_clip": 3,
    "lstm.proj_clip": 3,
    "lstm.use_skip_connections": True,
}
"""What a state dict does not say; AllenNLP has skip connections always."""


def recognises(source: Path) -> bool:
    """Whether a path is such a folder, or the file of its weights."""
    if source.is_dir():
        return any((source / name).is_file() for name in WEIGHTS_FILES)
    return source.suffix.lower() == ".th"


def read(source: Path, options_file: Path | None = None) -> SourceCheckpoint:
    """Reads the tensors of the ELMo and what the configuration says of it.

    Names are those below the module `Elmo`, wherever it is in the task model; the scalars of a mix, a list of
    parameters of one number each, are one tensor.

    Args:
        source: The folder, or the file of its weights.
        options_file: The options file of the biLM; by default one that is embedded in the folder, if any.

    Raises:
        ConversionError: When a file is missing or damaged, or when there is no ELMo or more than one.
    """
    weights_file = source if source.is_file() else find_weights(source)
    state = read_state_dict(weights_file)
    prefix = find_elmo(state, weights_file)
    tensors = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    notes = [f"Converted: {prefix.rstrip('.') or 'the whole state dict'}, with the mixes of its layers."]
    if len(tensors) < len(state):
        notes.append(f"{len(state) - len(tensors)} other tensors of the task model were left aside.")
    if any(name.startswith(CACHED_WORDS) for name in tensors):
        notes.append("The cached vectors of words were left aside; they follow from the characters.")
    config_file = weights_file.parent / CONFIG_FILE
    settings = find_settings(config_file)
    if options_file is None:
        options_file = find_embedded_options(weights_file.parent, settings)
    tensors = join_scalars(tensors)
    options = describe_tensors(tensors, weights_file) if options_file is None else read_options(options_file)
    return SourceCheckpoint(
        format=FORMAT,
        options={**options, "elmo": settings},
        tensors=tensors,
        options_file=options_file,
        weights_file=weights_file,
        data_files=(config_file,) if config_file.is_file() else (),
        defaults=PUBLISHED_OPTIONS if options_file is None else {},
        notes=tuple(notes),
    )


def find_weights(folder: Path) -> Path:
    """The weights in a folder."""
    for name in WEIGHTS_FILES:
        if (folder / name).is_file():
            return folder / name
    raise ConversionError(f"There is no {' or '.join(WEIGHTS_FILES)} in the folder {folder}.")


def find_elmo(state: Mapping[str, StoredTensor], weights_file: Path) -> str:
    """What the names of the only ELMo in a task model begin with.

    Raises:
        ConversionError: When there is none, or more than one.
    """
    found = [name.removesuffix(CHARACTER_TABLE) for name in state if name.endswith(CHARACTER_TABLE)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConversionError(f"The task model in {weights_file} has several ELMos:", found)
    raise ConversionError(f"The task model in {weights_file} has no ELMo: nothing in it ends in {CHARACTER_TABLE}.")


def join_scalars(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors, with the scalars of each mix as one."""
    joined: dict[str, StoredTensor] = {}
    scalars: dict[str, dict[int, StoredTensor]] = {}
    for name, tensor in tensors.items():
        if match := SCALAR.fullmatch(name):
            scalars.setdefault(match[1], {})[int(match[2])] = tensor
        else:
            joined[name] = tensor
    for name, numbers in scalars.items():
        ordered = [numbers[index] for index in sorted(numbers)]
        if sorted(numbers) != list(range(len(numbers))) or any(tensor.shape not in ((), (1,)) for tensor in ordered):
            # Left as they are, so that they are named as unknown.
            joined |= {f"{name}.{index}": tensor for index, tensor in numbers.items()}
        else:
            joined[name] = StoredTensor((len(ordered),), ordered[0].dtype, joiner(ordered))
    return joined


def joiner(tensors: list[StoredTensor]) -> Any:
    """A function that reads numbers as one tensor."""

    def load() -> FloatArray:
        return np.concatenate([tensor.load().reshape(1) for tensor in tensors])

    return load


def describe_tensors(tensors: Mapping[str, StoredTensor], weights_file: Path) -> dict[str, Any]:
    """The sizes of the architecture, as an options file states them.

    Raises:
        ConversionError: Naming the tensors without which there are no sizes.
    """
    convolution = "_elmo_lstm._token_embedder.char_conv_{}.weight"
    wanted = {CHARACTER_TABLE: 2, convolution.format(0): 3, LSTM.format(0): 2}
    problems = [
        f"{name} is missing" if name not in tensors else f"{name} has shape {tensors[name].shape}"
        for name, rank in wanted.items()
        if name not in tensors or len(tensors[name].shape) != rank
    ]
    if problems:
        raise ConversionError(f"The ELMo in {weights_file} is not complete:", problems)
    kernels = [kernel.shape for kernel in numbered(tensors, convolution)]
    projection, cell = tensors[LSTM.format(0)].shape
    highways = numbered(tensors, "_elmo_lstm._token_embedder._highways._layers.{}.weight")
    return {
        "char_cnn": {
            "embedding": {"dim": tensors[CHARACTER_TABLE].shape[1]},
            # (count, dim, width); another rank is found when the shapes are compared
            "filters": [[(*shape, 0, 0, 0)[2], (*shape, 0)[0]] for shape in kernels],
            "n_highway": len(highways),
        },
        "lstm": {"dim": cell, "projection_dim": projection, "n_layers": len(numbered(tensors, LSTM))},
    }


def find_settings(config_file: Path) -> dict[str, Any]:
    """What the configuration of the task model says of its ELMo, nothing when there is no such file.

    Raises:
        ConversionError: When the file is damaged, or when it describes several ELMos that differ.
    """
    if not config_file.is_file():
        return {}
    found: list[dict[str, Any]] = []
    for settings in nested_objects(read_options(config_file)):
        is_elmo = "options_file" in settings or settings.get("type") in EMBEDDER_TYPES
        if is_elmo and settings not in found:
            found.append(settings)
    if len(found) > 1:
        shown = [json.dumps(settings, ensure_ascii=False)[:200] for settings in found]
        raise ConversionError(f"The configuration {config_file} describes several ELMos that differ:", shown)
    return found[0] if found else {}


def nested_objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a value, outer ones first."""
    pending = [value]
    while pending:
        value = pending.pop(0)
        if isinstance(value, dict):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def find_embedded_options(folder: Path, settings: Mapping[str, Any]) -> Path | None:
    """The options file in an archive, `None` when it has none.

    Raises:
        ConversionError: When it has several.
    """
    found = sorted(path for path in (folder / EMBEDDED_FILES).glob("*options_file") if path.is_file())
    if len(found) > 1:
        place = folder / EMBEDDED_FILES
        raise ConversionError(
            f"There are several options files in {place} ({names(found)}); choose one with --options."
        )
    named = settings.get("options_file")
    beside = folder / named.rsplit("/", 1)[-1] if isinstance(named, str) and named else folder
    return found[0] if found else beside if beside.is_file() else None


def configure(checkpoint: SourceCheckpoint, layout: Layout) -> tuple[ElmoConfig, tuple[str, ...]]:
    """The configuration of the ELMo in a task model, its mixes included.

    Raises:
        ConversionError: When something in it cannot be used.
    """
    settings = checkpoint.options.get("elmo", {})
    config, assumed = architecture.configure(checkpoint, layout)
    mixes = numbered(checkpoint.tensors, "scalar_mix_{}.gamma")
    changes: dict[str, Any] = {
        "num_output_representations": max(len(mixes), 1),
        "mix_layer_norm": settings.get("do_layer_norm", False),
        "mix_trainable": settings.get("scalar_mix_parameters") is None,
        "freeze_bilm": not settings.get("requires_grad", False),
    }
    if (dropout := settings.get("dropout")) is not None:
        changes["representation_dropout"] = float(dropout) if type(dropout) is int else dropout
    # With several mixes there is no one set of scalars that further ones could start with.
    if len(mixes) == 1 and (scalars := checkpoint.tensors.get("scalar_mix_0.scalar_parameters")) is not None:
        changes["mix_parameters"] = scalars.load().tolist()
        changes["mix_gamma"] = mixes[0].load().reshape(-1).tolist()[0]
    try:
        fields = {name: value for name, value in config.to_diff_dict().items() if name in ElmoConfig.__annotations__}
        return ElmoConfig(**{**fields, **changes}), assumed
    except (ValueError, StrictDataclassError) as error:
        raise ConversionError(f"The settings of the ELMo in {CONFIG_FILE} cannot be used: {error}") from error
