"""The LSTM of ELMo's biLM, one direction: projected output, clipped cell and clipped projection.

`run_lstm` is the one function through which the model runs its recurrence. Behind it are two ways that give the same
numbers, forward and backward: `lstm_over_mask`, the plain reference, which walks over every position of a padded
batch, and `lstm_over_packed_words`, which walks over the words alone, longest rows first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

# Words whose input product is computed at once. Bounds the memory that long documents take outside of training.
INPUT_PRODUCT_WORDS = 2048

State = tuple[torch.Tensor, torch.Tensor]
# A step's state and output. A name, because strict export cannot trace `tuple[...]` beside an inner function.
Stepped = tuple[State, torch.Tensor]


@dataclass(frozen=True)
class Packing:
    """The words of a padded batch, row-sorted by length and laid out step after step.

    Attributes:
        rows: The rows from the longest to the shortest, shape (batch,).
        forward_order: Flat positions `row * seq + position` in the order of a left-to-right walk, shape (words,).
        backward_order: The same for a right-to-left walk.
        batch_sizes: For each step, how many rows still have a word; never increasing.
    """

    rows: torch.Tensor
    forward_order: torch.Tensor
    backward_order: torch.Tensor
    batch_sizes: list[int]

    def to(self, device: torch.device) -> "Packing":
        """The packing on a device: the layers of a model that is spread over several have one each."""
        forward_order, backward_order = self.forward_order.to(device), self.backward_order.to(device)
        return Packing(self.rows.to(device), forward_order, backward_order, self.batch_sizes)


@torch.compiler.disable
def pack_words(mask: torch.Tensor) -> Packing:
    """Finds where the words of a padded batch are.

    Args:
        mask: True at words, in any pattern (padding on the right, on the left, or between), shape (batch, seq).
    """
    _, length = mask.shape
    lengths, rows = mask.sum(dim=1).sort(descending=True, stable=True)
    positions = (~mask).to(torch.uint8).argsort(dim=1, stable=True)[rows]
    steps = torch.arange(length, device=mask.device)
    active = steps < lengths[:, None]
    words = rows[:, None] * length + positions
    reversed_words = words.gather(1, (lengths[:, None] - 1 - steps).clamp(min=0))
    batch_sizes = [size for size in active.sum(dim=0).tolist() if size]
    return Packing(rows, words.T[active.T], reversed_words.T[active.T], batch_sizes)


class ElmoLstm(nn.Module):
    """One direction of one layer: an LSTM whose output is projected, with both cell and projection clipped.

    The equations are those of TensorFlow's `LSTMCell` with `num_proj`, `cell_clip` and `proj_clip` (Sak et al. 2014
    without peepholes); the gates are ordered input, forget, candidate, output, and the forget bias of 1 that
    TensorFlow adds at run time is part of the bias here.

    Args:
        projection_size: Size P of input and output.
        cell_size: Size C of the memory cell.
        cell_clip: Bound of the cell before the output gate, or None.
        projection_clip: Bound of the projected output, or None.
    """

    def __init__(
        self, projection_size: int, cell_size: int, cell_clip: float | None, projection_clip: float | None
    ) -> None:
        super().__init__()
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.input_gates = nn.Linear(projection_size, 4 * cell_size)
        self.recurrent_gates = nn.Linear(projection_size, 4 * cell_size, bias=False)
        self.projection = nn.Linear(cell_size, projection_size, bias=False)

    def step(self, gates: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> State:
        """One step.

        Args:
            gates: What the word contributes to the gates, `input_gates(word)`, shape (rows, 4C).
            hidden: Output of the step before, shape (rows, P).
            cell: Memory cell of the step before, shape (rows, C).

        Returns:
            The new output and the new cell.
        """
        gates = gates + self.recurrent_gates(hidden)
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=-1)
        cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
        if self.cell_clip is not None:
            cell = cell.clamp(-self.cell_clip, self.cell_clip)
        hidden = self.projection(output_gate.sigmoid() * cell.tanh())
        if self.projection_clip is not None:
            hidden = hidden.clamp(-self.projection_clip, self.projection_clip)
        return hidden, cell


def run_lstm(
    lstm: ElmoLstm,
    inputs: torch.Tensor,
    mask: torch.Tensor,
    state: State,
    reverse: bool,
    packing: Packing | None = None,
) -> tuple[torch.Tensor, State]:
    """Runs one direction over a padded batch.

    Args:
        lstm: The weights.
        inputs: Word vectors, shape (batch, seq, P).
        mask: True at words, shape (batch, seq).
        state: Output (batch, P) and cell (batch, C) that each row starts with.
        reverse: Whether to walk from right to left.
        packing: `pack_words(mask)`, computed once for all layers; without it the plain reference runs.

    Returns:
        The outputs, shape (batch, seq, P), 0 where there is no word; and each row's state after its last word.
    """
    if packing is not None:
        return lstm_over_packed_words(lstm, inputs, state, reverse, packing)
    if torch.compiler.is_exporting():
        return _scanned_lstm_over_mask(lstm, inputs, mask, state, reverse)
    return lstm_over_mask(lstm, inputs, mask, state, reverse)


def lstm_over_mask(
    lstm: ElmoLstm, inputs: torch.Tensor, mask: torch.Tensor, state: State, reverse: bool
) -> tuple[torch.Tensor, State]:
    """The plain reference of `run_lstm`: every position in turn, a row without a word there keeping its state."""
    gates = lstm.input_gates(inputs)
    outputs = [torch.zeros_like(inputs[:, 0])] * inputs.shape[1]
    for position in sorted(range(inputs.shape[1]), reverse=reverse):
        state, outputs[position] = _masked_step(lstm, state, gates[:, position], mask[:, position, None])
    return torch.stack(outputs, dim=1), state


def _masked_step(lstm: ElmoLstm, state: State, gates: torch.Tensor, is_word: torch.Tensor) -> Stepped:
    hidden, cell = lstm.step(gates, *state)
    kept = torch.where(is_word, hidden, state[0]), torch.where(is_word, cell, state[1])
    return kept, hidden * is_word


def _scanned_lstm_over_mask(
    lstm: ElmoLstm, inputs: torch.Tensor, mask: torch.Tensor, state: State, reverse: bool
) -> tuple[torch.Tensor, State]:
    """`lstm_over_mask` as one operator, so that an exported graph takes any number of words."""
    from torch._higher_order_ops import scan

    def step(state: State, word: State) -> Stepped:
        return _masked_step(lstm, state, *word)

    state = (state[0].contiguous(), state[1].contiguous())
    steps = (lstm.input_gates(inputs).transpose(0, 1), mask[..., None].transpose(0, 1))
    state, outputs = scan(step, state, steps, dim=0, reverse=reverse)
    return outputs.transpose(0, 1), state


@torch.compiler.disable
def lstm_over_packed_words(
    lstm: ElmoLstm, inputs: torch.Tensor, state: State, reverse: bool, packing: Packing
) -> tuple[torch.Tensor, State]:
    """`run_lstm` without work on padding: a step computes the rows that still have a word."""
    batch, length, size = inputs.shape
    packing = packing.to(inputs.device)
    order = packing.backward_order if reverse else packing.forward_order
    words = inputs.reshape(batch * length, size)[order]
    hidden, cell = (part[packing.rows] for part in state)
    outputs: list[torch.Tensor] = []
    ended: list[State] = []
    for gates in _gates_of_steps(lstm, words, packing.batch_sizes):
        active = len(gates)
        if active < len(hidden):
            ended.append((hidden[active:], cell[active:]))
        hidden, cell = lstm.step(gates, hidden[:active], cell[:active])
        outputs.append(hidden)
    ended.append((hidden, cell))
    hidden, cell = (torch.cat(parts)[packing.rows.argsort()] for parts in zip(*reversed(ended), strict=True))
    padded = inputs.new_zeros(batch * length, size)
    if outputs:
        padded = padded.index_copy(0, order, torch.cat(outputs))
    return padded.view(batch, length, size), (hidden, cell)


def _gates_of_steps(lstm: ElmoLstm, words: torch.Tensor, batch_sizes: list[int]) -> Iterator[torch.Tensor]:
    """The input product of each step, many steps in one product."""
    start = 0
    while start < len(batch_sizes):
        stop, count = start, 0
        while stop < len(batch_sizes) and (stop == start or count + batch_sizes[stop] <= INPUT_PRODUCT_WORDS):
            count += batch_sizes[stop]
            stop += 1
        block, words = words[:count], words[count:]
        yield from lstm.input_gates(block).split(batch_sizes[start:stop])
        start = stop
