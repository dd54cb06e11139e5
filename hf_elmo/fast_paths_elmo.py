"""Which fast paths may run: each can be switched off, for a comparison with the plain path or to save memory.

Every fast path gives the numbers of the plain path to float rounding (dropout draws others from the same seed). None
is needed: where one cannot run, the plain path takes over.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import nn

FAST_PATHS = {
    "fused_recurrence": "The LSTM's steps in few passes over their memory, with one product for all weight gradients.",
    "reused_buffers": "Memory of a training step kept for the next one, until some calls without gradients.",
    "packed_weights": "Weight matrices laid out again for oneDNN's kernels, at the cost of their memory once more.",
    "convolutions_as_products": "The character convolutions as matrix products over windows, maxima by their places.",
    "words_of_like_length": "The convolutions of short words apart from those of long ones, over fewer characters.",
    "distinct_words": "The first layer's input product for each distinct word once.",
    "dropout_from_bits": "The masks of dropout on a CPU from 16 random bits a number, drawn many at a time.",
    "word_cache": "Vectors of the token layer kept from call to call while its weights stay as they are.",
}
# Names of fast paths that are off, separated by commas, or "all".
VARIABLE = "HF_ELMO_DISABLE"


@cache
def _from_environment() -> frozenset[str]:
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    return _disabled(names, f"The environment variable {VARIABLE}")


def _disabled(names: list[str], source: str) -> frozenset[str]:
    unknown = [name for name in names if name not in (*FAST_PATHS, "all")]
    if unknown:
        raise ValueError(f"{source} names {unknown[0]!r}; known are all, {', '.join(FAST_PATHS)}.")
    return frozenset(FAST_PATHS if "all" in names else names)


_off: ContextVar[frozenset[str]] = ContextVar("hf_elmo_fast_paths_off")


def _disabled_now() -> frozenset[str]:
    off = _off.get(None)
    return _from_environment() if off is None else off


def is_enabled(name: str) -> bool:
    """Whether a fast path may run."""
    return name not in _disabled_now()


@contextmanager
def without_fast_paths(*names: str) -> Iterator[None]:
    """Switches fast paths off for the code under `with`: those that are named, or all.

    Raises:
        ValueError: When there is no such fast path.

    Example:
        >>> with without_fast_paths("packed_weights"):
        ...     outputs = model(**inputs)
    """
    token = _off.set(_disabled_now() | _disabled(list(names) or ["all"], "without_fast_paths"))
    try:
        yield
    finally:
        _off.reset(token)


def is_hooked(module: nn.Module) -> bool:
    """Whether calling a module does something else than the `forward` of its class."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling a module does nothing but what its class does with its own weight."""
    weight = module.weight
    return (
        type(module) is kind
        and not is_hooked(module)
        and type(weight) in (nn.Parameter, torch.Tensor)
        and not weight.is_meta
    )


def why_not_direct(device: torch.device) -> str | None:
    """Why weights may not be used past their modules and past the dispatch of operations now, or None."""
    return "autocast chooses the types of the products" if autocast_type(device) is not None else why_not_opaque()


def why_not_opaque() -> str | None:
    """Why operations may not be hidden in one that has a backward pass of its own now, or None."""
    try:
        is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
        is_transformed = is_transformed or torch.autograd.forward_ad._current_level >= 0
    except AttributeError:  # private, and another version may have other names
        return f"torch {torch.__version__} does not tell whether a transform of torch.func goes through the operations"
    if is_transformed:
        return "a transform of torch.func or forward-mode differentiation goes through the operations"
    return None


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for many, as gradients do with `is_grads_batched`, and only some operations take it."""
    try:
        tensor.untyped_storage()
    except NotImplementedError:
        return True
    return False


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The type that autocast gives the products on a device, or None where it is off."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Leaves the types of the products under `with` as they are."""
    return nullcontext() if autocast_type(device) is None else torch.autocast(device.type, enabled=False)


__all__ = [
    "FAST_PATHS",
    "autocast_type",
    "is_batched",
    "is_enabled",
    "is_hooked",
    "is_plain",
    "why_not_direct",
    "why_not_opaque",
    "without_autocast",
    "without_fast_paths",
]
