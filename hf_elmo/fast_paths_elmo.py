"""Which fast paths may run: each can be switched off, for a comparison with the plain path or to save memory.

Every fast path gives the numbers of the plain path to float rounding. None is needed: where one cannot run, the plain
path takes over.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

FAST_PATHS = {
    "fused_recurrence": "The LSTM's steps in few passes over their memory, with one product for all weight gradients.",
    "packed_weights": "Weight matrices laid out again for oneDNN's kernels, at the cost of their memory once more.",
    "distinct_words": "The first layer's input product for each distinct word once.",
    "word_cache": "Vectors of the token layer kept from call to call while its weights stay as they are.",
}
# Names of fast paths that are off, separated by commas, or "all".
VARIABLE = "HF_ELMO_DISABLE"


def _from_environment() -> frozenset[str]:
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    return _disabled(names, f"The environment variable {VARIABLE}")


def _disabled(names: list[str], source: str) -> frozenset[str]:
    unknown = [name for name in names if name not in (*FAST_PATHS, "all")]
    if unknown:
        raise ValueError(f"{source} names {unknown[0]!r}; known are all, {', '.join(FAST_PATHS)}.")
    return frozenset(FAST_PATHS if "all" in names else names)


_ALWAYS_OFF = _from_environment()
_off: ContextVar[frozenset[str]] = ContextVar("hf_elmo_fast_paths_off")


def is_enabled(name: str) -> bool:
    """Whether a fast path may run."""
    return name not in _off.get(_ALWAYS_OFF)


@contextmanager
def without_fast_paths(*names: str) -> Iterator[None]:
    """Switches fast paths off for the code under `with`: those that are named, or all.

    Raises:
        ValueError: When there is no such fast path.

    Example:
        >>> with without_fast_paths("packed_weights"):
        ...     outputs = model(**inputs)
    """
    token = _off.set(_off.get(_ALWAYS_OFF) | _disabled(list(names) or ["all"], "without_fast_paths"))
    try:
        yield
    finally:
        _off.reset(token)


__all__ = ["FAST_PATHS", "is_enabled", "without_fast_paths"]
