"""Reference architectures and arrays as models of the package, through the package's own tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.conversion.mapping import ALLENNLP, expand
from hf_elmo.conversion.operations import OPERATIONS
from hf_elmo.conversion.options import parse_options
from hf_elmo.modeling_elmo import ElmoModel
from tests.reference import Architecture, Array


def config_of(architecture: Architecture, **overrides: Any) -> ElmoConfig:
    """The configuration of an architecture, read from its options."""
    fields = parse_options(architecture.options(), "options.json").fields
    return ElmoConfig(**{**fields, "use_token_projection": architecture.has_token_projection, **overrides})


def state_dict_of(architecture: Architecture, weights: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """The parameters of the biLM that stand for original arrays, in the arrays' precision."""
    state_dict: dict[str, torch.Tensor] = {}
    for step in expand(ALLENNLP.rules, config_of(architecture)):
        converted = OPERATIONS[step.operation].convert(weights[step.source])
        for target, array in zip(step.targets, converted, strict=True):
            state_dict[target] = torch.from_numpy(np.ascontiguousarray(array))
    return state_dict


def as_model(architecture: Architecture, weights: Mapping[str, Array], **overrides: Any) -> ElmoModel:
    """A model with these weights in float32 (use `.double()`: the weights of `random_weights` lose nothing by it)."""
    model = ElmoModel(config_of(architecture, **overrides)).eval()
    missing, unexpected = model.load_state_dict(state_dict_of(architecture, weights), strict=False)
    assert not unexpected, f"no parameters for {unexpected}"
    assert all(name.startswith("representations.") for name in missing), f"nothing fills {missing}"
    return model
