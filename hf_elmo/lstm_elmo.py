"""The LSTM of ELMo's biLM, one direction: projected output, clipped cell and clipped projection.

`run_lstm` is the one function through which the model runs its recurrence. Behind it are ways that give the same
numbers, forward and backward: `lstm_over_mask`, the plain reference, which walks over every position of a padded
batch, and `lstms_over_packed_words`, which walks over the words alone, longest rows first, either by the equations as
they stand in `lstm_steps_elmo` or by the fewer passes of `fused_lstm_elmo`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from .fast_paths_elmo import autocast_type, is_enabled, is_plain, why_not_opaque, without_autocast
from .fused_lstm_elmo import Direction, PackedWeights, Weights, fused_walk
from .lstm_steps_elmo import Clips, State, WalkedWords, cell_step, clipped, walk

# Weights that are read at each step, up to which both directions walk side by side on the CPU.
SIDE_BY_SIDE_BYTES = 16 << 20
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
        distinct_words: For a layer whose inputs repeat, the distinct ones without gradient, shape (distinct, P), and
            at each flat position the number of its word, shape (batch * seq,).
    """

    rows: torch.Tensor
    forward_order: torch.Tensor
    backward_order: torch.Tensor
    batch_sizes: list[int]
    distinct_words: tuple[torch.Tensor, torch.Tensor] | None = None

    def without_distinct_words(self) -> "Packing":
        """For a layer whose inputs differ from place to place."""
        return self if self.distinct_words is None else replace(self, distinct_words=None)

    def to(self, device: torch.device) -> "Packing":
        """The packing on a device: the layers of a model that is spread over several have one each."""
        words = self.distinct_words
        return replace(
            self,
            rows=self.rows.to(device),
            forward_order=self.forward_order.to(device),
            backward_order=self.backward_order.to(device),
            distinct_words=words and (words[0].to(device), words[1].to(device)),
        )


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

    The equations are in `lstm_steps_elmo`.

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
        self.clips = Clips(cell_clip, projection_clip)
        self.input_gates = nn.Linear(projection_size, 4 * cell_size)
        self.recurrent_gates = nn.Linear(projection_size, 4 * cell_size, bias=False)
        self.projection = nn.Linear(cell_size, projection_size, bias=False)
        self.packed = PackedWeights()

    def step(self, gates: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> State:
        """One step.

        Args:
            gates: What the word contributes to the gates, `input_gates(word)`, shape (rows, 4C).
            hidden: Output of the step before, shape (rows, P).
            cell: Memory cell of the step before, shape (rows, C).

        Returns:
            The new output and the new cell.
        """
        unprojected, cell = cell_step(gates + self.recurrent_gates(hidden), cell, self.clips.cell)
        return clipped(self.projection(unprojected), self.clips.projection), cell

    def weights(self) -> Weights:
        """The parameters as they are now."""
        return Weights(
            self.input_gates.weight, self.input_gates.bias, self.recurrent_gates.weight, self.projection.weight
        )

    def why_not_fused(self) -> str | None:
        """Why the walk goes through the modules one after the other, or None where it takes their weights directly."""
        if not is_enabled("fused_recurrence"):
            return "the fused recurrence is switched off"
        linears = {name: getattr(self, name) for name in ("input_gates", "recurrent_gates", "projection")}
        for name, linear in linears.items():
            if not is_plain(linear, nn.Linear):
                return f"{name} is no plain Linear (an adapter, a hook, a quantised or offloaded layer)"
        if len({(linear.weight.dtype, linear.weight.device) for linear in linears.values()}) > 1:
            return "the weights differ in type or device"
        return why_not_opaque()


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
        return lstms_over_packed_words([lstm], [inputs], [state], [reverse], packing)[0]
    if torch.compiler.is_exporting():
        return _scanned_lstm_over_mask(lstm, inputs, mask, state, reverse)
    return lstm_over_mask(lstm, inputs, mask, state, reverse)


def run_lstms(
    lstms: Sequence[ElmoLstm],
    inputs: Sequence[torch.Tensor],
    mask: torch.Tensor,
    states: Sequence[State],
    packing: Packing | None = None,
) -> list[tuple[torch.Tensor, State]]:
    """`run_lstm` for both directions of a layer, which walk side by side where that is faster.

    Args:
        lstms: The forward and the backward LSTM.
        inputs: The word vectors of each, shape (batch, seq, P).
        mask: True at words, shape (batch, seq).
        states: Output and cell of each.
        packing: As of `run_lstm`.

    Returns:
        For each what `run_lstm` returns.
    """
    if packing is not None:
        return lstms_over_packed_words(lstms, inputs, states, (False, True), packing)
    each = zip(lstms, inputs, states, (False, True), strict=True)
    return [run_lstm(lstm, words, mask, state, reverse) for lstm, words, state, reverse in each]


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
def lstms_over_packed_words(
    lstms: Sequence[ElmoLstm],
    inputs: Sequence[torch.Tensor],
    states: Sequence[State],
    reverse: Sequence[bool],
    packing: Packing,
) -> list[tuple[torch.Tensor, State]]:
    """`run_lstm` for each direction, without work on padding: a step computes the rows that still have a word."""
    batch, length, size = inputs[0].shape
    packing = packing.to(inputs[0].device)
    orders = [packing.backward_order if is_reverse else packing.forward_order for is_reverse in reverse]
    types = {_type_of_products(*given) for given in zip(lstms, inputs, states, strict=True)}
    dtype = types.pop() if len(types) == 1 else None
    directions = []
    for lstm, words, state, order in zip(lstms, inputs, states, orders, strict=True):
        distinct = packing.distinct_words and (packing.distinct_words[0], packing.distinct_words[1][order])
        walked = WalkedWords(words.reshape(batch * length, size)[order], packing.batch_sizes, distinct)
        directions.append((lstm, walked, (state[0][packing.rows], state[1][packing.rows])))
    if dtype is None:
        results = []
        for lstm, walked, state in directions:
            lstm.packed.drop()
            results.append(walk(lstm.input_gates, lstm.recurrent_gates, lstm.projection, lstm.clips, walked, state))
    else:
        with without_autocast(inputs[0].device):
            cast = [
                Direction(lstm.weights(), lstm.packed, walked.to(dtype), (state[0].to(dtype), state[1]))
                for lstm, walked, state in directions
            ]
            together = [cast] if _stay_in_the_cache(cast, dtype) else [[direction] for direction in cast]
            results = [result for some in together for result in fused_walk(some, lstms[0].clips, dtype)]
    rows = packing.rows.argsort()
    found = []
    for order, (outputs, state) in zip(orders, results, strict=True):
        padded = outputs.new_zeros(batch * length, size)
        if len(order):
            padded = padded.index_copy(0, order, outputs)
        found.append((padded.view(batch, length, size), (state[0][rows], state[1][rows])))
    return found


def _stay_in_the_cache(directions: list[Direction], dtype: torch.dtype) -> bool:
    """Whether the weights of all directions stay in the cache from step to step: else one walks after the other."""
    numbers = sum(d.weights.recurrent.numel() + d.weights.projection.numel() for d in directions)
    return directions[0].words.vectors.device.type != "cpu" or numbers * dtype.itemsize <= SIDE_BY_SIDE_BYTES


def _type_of_products(lstm: ElmoLstm, inputs: torch.Tensor, state: State) -> torch.dtype | None:
    """The type that all products of the fused walk have, autocast's where it is on, or None for the plain walk."""
    if lstm.why_not_fused() is not None:
        return None
    own = lstm.projection.weight.dtype
    by_autocast = autocast_type(inputs.device)
    if by_autocast is None:
        return own if inputs.dtype == state[1].dtype == own else None
    # autocast leaves double precision alone
    return None if torch.float64 in (own, inputs.dtype, state[0].dtype, state[1].dtype) else by_autocast
