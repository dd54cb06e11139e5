"""Sentences in batches: bounded by words, of similar length, and halved when memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

# What PyTorch says, in a plain RuntimeError, when the system or a library refuses memory.
_REFUSALS = ("not enough memory", "can't allocate memory", "cannot allocate memory", "out of memory", "alloc_failed")


def grouped(
    items: Iterable[Item], most_items: int, most_size: int, size_of: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Cuts a stream into groups that depend on nothing but the stream.

    Args:
        items: The stream, read lazily.
        most_items: How many items a group may have.
        most_size: How large a group may be in all; an item that is larger by itself is a group.
        size_of: The size of an item.
    """
    group: list[Item] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if group and (len(group) == most_items or size + item_size > most_size):
            yield group
            group, size = [], 0
        group.append(item)
        size += item_size
    if group:
        yield group


def batches_by_words(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Sorts sentences by length and cuts them into batches; the longest come first, so that memory fails early.

    Args:
        lengths: The number of rows that each sentence takes.
        budget: Rows that a batch may take, padding included; a longer sentence is a batch by itself.

    Returns:
        The indices of the sentences, batch by batch; sentences of length 0 are left out.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not lengths[index]:
            break
        if not batches or (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
            longest = lengths[index]
        batches[-1].append(index)
    return batches


def computed_in_halves(
    batches: Sequence[list[Item]], compute: Callable[[list[Item]], Result]
) -> Iterator[tuple[list[Item], Result | MemoryError]]:
    """Computes batches; one that memory is too small for is halved and tried again.

    Yields:
        Each batch, or part of it, with its result; an item that does not fit alone comes with a MemoryError.
    """
    pending = list(reversed(batches))
    while pending:
        batch = pending.pop()
        result, refusal = _attempt(batch, compute)
        if refusal is None:
            assert result is not None
            yield batch, result
            continue
        # The frames of the failed attempt are gone by now, and what they held can be released.
        release_memory()
        if len(batch) == 1:
            yield batch, MemoryError(refusal)
        else:
            half = len(batch) // 2
            pending += [batch[half:], batch[:half]]


def _attempt(batch: list[Item], compute: Callable[[list[Item]], Result]) -> tuple[Result, None] | tuple[None, str]:
    try:
        return compute(batch), None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None, str(error).partition("\n")[0]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of the machine or of a GPU, ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(refusal in str(error).lower() for refusal in _REFUSALS)


def release_memory() -> None:
    """Gives back what nothing refers to any more, on the machine and on GPUs."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
