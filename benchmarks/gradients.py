"""Gradients of AllenNLP's ELMo beside ours, parameter by parameter, through the table that converts its weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hf_elmo.conversion.mapping import ALLENNLP_TASK_MODEL, expand
from hf_elmo.conversion.operations import OPERATIONS

EMBEDDER = "_elmo_lstm."
"""Where a task model keeps its `_ElmoBiLm`."""


def largest_relative_differences(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], config: Any
) -> dict[str, float]:
    """For each of our parameters, the largest difference over the largest gradient.

    The operations that convert weights are linear, so they convert gradients too.

    Args:
        ours: Name in `ElmoModel` -> gradient.
        theirs: Name in `_ElmoBiLm` -> gradient.
        config: An `ElmoConfig`.

    Raises:
        ValueError: When a parameter has a gradient on one side only.
    """
    steps = [
        step
        for step in expand(ALLENNLP_TASK_MODEL.rules, config, characters=config.vocab_size)
        if step.source.startswith(EMBEDDER)
    ]
    converted = {
        target: gradient
        for step in steps
        if step.source.removeprefix(EMBEDDER) in theirs
        for target, gradient in zip(
            step.targets,
            OPERATIONS[step.operation].convert(theirs[step.source.removeprefix(EMBEDDER)]),
            strict=True,
        )
    }
    if converted.keys() != ours.keys():
        alone = sorted(converted.keys() ^ ours.keys())
        raise ValueError(f"Only one side has gradients of {', '.join(alone)}.")
    return {name: float(np.abs(ours[name] - other).max() / np.abs(other).max()) for name, other in converted.items()}
