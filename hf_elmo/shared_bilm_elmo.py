"""A biLM that heads share: kept in one folder for many of them, and run in less precision than it is kept in."""

import copy
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

# The parts of `ElmoModel` that make up the biLM.
BILM_PARTS = ("embeddings", "encoder")
# Of the arguments of `from_pretrained` those that say how the Hub is reached.
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "token")


def bilm_weights(elmo: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of the biLM of an `ElmoModel` by their names in it."""
    return {name: tensor for name, tensor in elmo.state_dict().items() if name.partition(".")[0] in BILM_PARTS}


def fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """The SHA-256 of weights: names, shapes, types and every bit."""
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def load_shared_bilm(
    elmo_class: Any, reference: str, folder: str, expected: str | None, hub: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Loads the biLM that a folder refers to.

    Args:
        elmo_class: `ElmoModel`.
        reference: Folder or repository of the biLM.
        folder: What refers to it, for messages.
        expected: The fingerprint that its weights must have; None for any.
        hub: Those of `HUB_ARGUMENTS` that were given.

    Raises:
        ValueError: It cannot be loaded, or is another one.
    """
    try:
        weights = bilm_weights(elmo_class.from_pretrained(reference, **hub))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The biLM that {folder} shares cannot be loaded from {reference or 'nowhere'} "
            f"({str(error).strip().partition(chr(10))[0]}): pass `bilm=` with the folder or repository where it is."
        ) from error
    if expected is not None and fingerprint(weights) != expected:
        raise ValueError(
            f"The biLM in {reference} is not the one that the task in {folder} was trained with, its weights differ: "
            "pass `bilm=` with the folder or repository where that one is."
        )
    return weights


def check_same_bilm(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], reference: str) -> None:
    """Checks that the biLM of a model is, within the precision that it was loaded in, the one it will refer to.

    Raises:
        ValueError: It is another one.
    """
    same = ours.keys() == theirs.keys() and all(
        ours[name].shape == theirs[name].shape
        and torch.equal(ours[name].cpu(), theirs[name].cpu().to(ours[name].dtype))
        for name in ours
    )
    if not same:
        raise ValueError(
            f"The biLM of this model is not the one in {reference}: it was trained on, or comes from elsewhere; save "
            "the whole model, or pass `bilm=` with the folder or repository that has it."
        )


def reference_of(name: str | os.PathLike[str]) -> str:
    """A folder with its whole path, or the name of a repository as it is."""
    return os.path.abspath(name) if os.path.isdir(name) else os.fspath(name)


class LowPrecisionBilm:
    """Keeps a copy of a frozen biLM in another type, as long as the weights that it was made of stay as they are.

    The copy is neither saved nor copied with the model, and no module of it.
    """

    def __init__(self) -> None:
        self._copy: Any = None
        self._made_of: Any = None

    def __reduce__(self) -> tuple[type["LowPrecisionBilm"], tuple[()]]:
        return LowPrecisionBilm, ()

    def of(self, elmo: Any, dtype: torch.dtype) -> Any:
        """An `ElmoModel` with the biLM of `elmo` in a type, and all else shared with it."""
        weights = [weight for name in BILM_PARTS for weight in getattr(elmo, name).parameters()]
        if any(weight.device.type == "meta" for weight in weights):  # parts that lie on disk
            return elmo
        made_of = [(dtype, weight.data_ptr(), weight._version, weight.device) for weight in weights]
        if self._made_of != made_of:
            twin = copy.copy(elmo)
            parts = {name: copy.deepcopy(getattr(elmo, name)).to(dtype).eval() for name in BILM_PARTS}
            twin._modules = {**elmo._modules, **parts}
            for layer, original in zip(twin.encoder.layers, elmo.encoder.layers, strict=True):
                layer._forward_hooks = original._forward_hooks  # what they record is what runs
            self._copy, self._made_of = twin, made_of
        return self._copy


__all__ = ["LowPrecisionBilm", "bilm_weights", "check_same_bilm", "fingerprint", "load_shared_bilm", "reference_of"]
