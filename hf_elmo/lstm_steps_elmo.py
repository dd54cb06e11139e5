"""The equations of the LSTM, one step and a walk over the words of a batch, as plain differentiable torch.

The LSTM is TensorFlow's `LSTMCell` with `num_proj`, `cell_clip` and `proj_clip` (Sak et al. 2014 without peepholes).
The gates are ordered input, forget, candidate, output, as in PyTorch, and the forget bias of 1 that TensorFlow adds at
run time is part of the bias.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

# Words whose input product is computed at once. Bounds the memory that long documents take outside of training.
INPUT_PRODUCT_WORDS = 2048

State = tuple[torch.Tensor, torch.Tensor]
Product = Callable[[torch.Tensor], torch.Tensor]


class Clips(NamedTuple):
    """Bounds of the cell before the output gate, and of the projected output; None for no bound."""

    cell: float | None
    projection: float | None


@dataclass(frozen=True)
class WalkedWords:
    """The words of a batch in the order of a walk: step after step, at each step the rows that still have a word.

    The rows are sorted by length, so that the rows of a step are the first ones of the step before.

    Attributes:
        vectors: The words, shape (words, P).
        batch_sizes: The number of rows at each step, never increasing.
        distinct: Where words repeat, the distinct ones without gradient, shape (distinct, P), and for each word its
            place among them, shape (words,).
    """

    vectors: torch.Tensor
    batch_sizes: list[int]
    distinct: tuple[torch.Tensor, torch.Tensor] | None = None

    def to(self, dtype: torch.dtype) -> "WalkedWords":
        """The words in a type of numbers."""
        distinct = self.distinct and (self.distinct[0].to(dtype), self.distinct[1])
        return WalkedWords(self.vectors.to(dtype), self.batch_sizes, distinct)

    def blocks(self, size: int | None = None) -> Iterator[tuple["WalkedWords", int]]:
        """Successive steps with at most so many words together, and the place of their first word."""
        size = INPUT_PRODUCT_WORDS if size is None else size
        start, first = 0, 0
        while start < len(self.batch_sizes):
            stop, count = start, 0
            while stop < len(self.batch_sizes) and (stop == start or count + self.batch_sizes[stop] <= size):
                count += self.batch_sizes[stop]
                stop += 1
            yield self._part(slice(first, first + count), self.batch_sizes[start:stop]), first
            start, first = stop, first + count

    def _part(self, words: slice, batch_sizes: list[int]) -> "WalkedWords":
        if self.distinct is None:
            return WalkedWords(self.vectors[words], batch_sizes)
        numbers, occurrences = self.distinct[1][words].unique(return_inverse=True)
        return WalkedWords(self.vectors[words], batch_sizes, (self.distinct[0][numbers], occurrences))


def cell_step(gates: torch.Tensor, cell: torch.Tensor, clip: float | None) -> State:
    """One step up to the projection.

    Args:
        gates: The gates before their activations, shape (rows, 4C).
        cell: Memory cell of the step before, shape (rows, C).
        clip: Bound of the cell, or None.

    Returns:
        What is projected, and the new cell, each (rows, C).
    """
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=-1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    if clip is not None:
        cell = cell.clamp(-clip, clip)
    return output_gate.sigmoid() * cell.tanh(), cell


def walk(
    input_gates: Product,
    recurrent_gates: Product,
    projection: Product,
    clips: Clips,
    words: WalkedWords,
    state: State,
) -> tuple[torch.Tensor, State]:
    """Walks over the words of a batch.

    Args:
        input_gates: Maps words (n, P) to gates (n, 4C).
        recurrent_gates: Maps outputs (n, P) to gates (n, 4C).
        projection: Maps (n, C) to (n, P).
        clips: The bounds.
        words: The words.
        state: Output (rows, P) and cell (rows, C) that each row starts with.

    Returns:
        The outputs in the order of the walk, shape (words, P); and each row's state after its last word.
    """
    hidden, cell = state
    outputs: list[torch.Tensor] = []
    ended: list[State] = []
    for block, _ in words.blocks():
        for gates in input_gates(block.vectors).split(block.batch_sizes):
            active = len(gates)
            if active < len(hidden):
                ended.append((hidden[active:], cell[active:]))
            projected, cell = cell_step(gates + recurrent_gates(hidden[:active]), cell[:active], clips.cell)
            hidden = clipped(projection(projected), clips.projection)
            outputs.append(hidden)
    ended.append((hidden, cell))
    hidden, cell = (torch.cat(parts) for parts in zip(*reversed(ended), strict=True))
    return torch.cat([words.vectors[:0], *outputs]), (hidden, cell)


def clipped(values: torch.Tensor, clip: float | None) -> torch.Tensor:
    """The values within the bound."""
    return values if clip is None else values.clamp(-clip, clip)


__all__ = ["Clips", "Product", "State", "WalkedWords", "cell_step", "clipped", "walk"]
