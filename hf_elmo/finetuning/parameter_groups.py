"""What an optimizer is told of a model: its weights in groups, the biLM with a learning rate of its own."""

from __future__ import annotations

from typing import Any

from torch import nn

# How much slower a biLM is trained than the task by default: its weights are good already.
BILM_SHARE = 0.1


def parameter_groups(
    model: nn.Module, learning_rate: float, bilm_learning_rate: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """The trained weights of a model, as an optimizer takes them.

    With `Trainer`: `optimizers=(torch.optim.AdamW(parameter_groups(model, 1e-3)), None)`. What is frozen is left out,
    so that the optimizer keeps nothing for it.

    Args:
        model: A model of ELMo, or what wraps it.
        learning_rate: Of the task: mixes, task network, classifier.
        bilm_learning_rate: Of the biLM, where it is not frozen; a tenth of `learning_rate` by default.
        weight_decay: Of the matrices. Vectors and single numbers (biases, mixes) have none.

    Returns:
        Groups with `name`, `params`, `lr` and `weight_decay`; none is empty.

    Raises:
        ValueError: When a number is negative, when the model has no ELMo, or when nothing of it is trained.
    """
    bilm_rate = BILM_SHARE * learning_rate if bilm_learning_rate is None else bilm_learning_rate
    numbers = {"learning_rate": learning_rate, "bilm_learning_rate": bilm_rate, "weight_decay": weight_decay}
    for name, number in numbers.items():
        if not number >= 0:
            raise ValueError(f"`{name}` must be 0 or more, but is {number}.")
    bilms: list[Any] = [module for module in model.modules() if hasattr(module, "is_bilm_frozen")]
    if not bilms:
        raise ValueError(f"parameter_groups takes a model with an ELMo in it, not {type(model).__name__}.")
    of_bilm = {
        id(weight) for elmo in bilms for part in (elmo.embeddings, elmo.encoder) for weight in part.parameters()
    }
    groups: dict[str, dict[str, Any]] = {}
    for weight in model.parameters():
        if not weight.requires_grad:
            continue
        part, rate = ("bilm", bilm_rate) if id(weight) in of_bilm else ("task", learning_rate)
        kind, decay = ("matrices", weight_decay) if weight.dim() > 1 else ("vectors", 0.0)
        name = f"{part}_{kind}"
        group = groups.setdefault(name, {"name": name, "params": [], "lr": rate, "weight_decay": decay})
        group["params"].append(weight)
    if not groups:
        raise ValueError("Nothing of this model is trained: every weight is frozen.")
    return list(groups.values())


__all__ = ["parameter_groups"]
