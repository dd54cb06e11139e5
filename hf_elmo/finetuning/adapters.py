"""What is trained beside the adapters of PEFT."""

from __future__ import annotations

from typing import Any

from torch import nn


def modules_to_save(model: nn.Module) -> list[str]:
    """What of a head is trained whole where adapters are on its biLM: the mixes, the task network, the classifiers.

    For `peft.LoraConfig(modules_to_save=modules_to_save(model), ...)`.

    Args:
        model: A head, before the adapters are put on it.

    Returns:
        The names of its modules, as PEFT takes them.

    Raises:
        ValueError: When the model is no head of ELMo.
    """
    elmo: Any = getattr(model, "elmo", None)
    if elmo is None or not hasattr(elmo, "representations"):
        raise ValueError(f"modules_to_save takes a head of ELMo, not {type(model).__name__}.")
    mixes = [
        f"representations.{number}"
        for number, mix in enumerate(elmo.representations)
        if any(weight.requires_grad for weight in mix.parameters())
    ]
    parts = [
        name for name, part in model.named_children() if part is not elmo and any(True for _ in part.parameters())
    ]
    return [*mixes, *parts]


__all__ = ["modules_to_save"]
