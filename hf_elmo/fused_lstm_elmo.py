"""The walk of `lstm_steps_elmo` in few passes over the memory, forward and backward.

Without gradients the activations of a step overwrite its gates, and the cell is updated in place. With gradients a
backward pass of its own gathers what the weights get from all steps, so that each weight matrix has one large product
instead of one small product a step. Cells and gates are kept in float32 where the weights have fewer bits.
"""

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from .lstm_steps_elmo import Clips, Product, State, WalkedWords, clipped, walk
from .packed_weights_elmo import PackedWeight, tanh, why_not_packable

# Steps of a backward pass from which on packing the transposed weights pays.
FEWEST_STEPS = 10

Distinct = tuple[torch.Tensor, torch.Tensor] | None


class Weights(NamedTuple):
    """The parameters of one direction of one layer: input gates (4C, P) and their bias (4C,), recurrent gates (4C, P),
    projection (P, C).
    """

    inputs: torch.Tensor
    bias: torch.Tensor
    recurrent: torch.Tensor
    projection: torch.Tensor


class PackedWeights:
    """Packed copies of the three matrices of `Weights`."""

    def __init__(self) -> None:
        self.inputs, self.recurrent, self.projection = PackedWeight(), PackedWeight(), PackedWeight()

    def update(self, weights: Weights) -> None:
        """Makes the copies those of the weights as they are now."""
        self.inputs.update(weights.inputs)
        self.recurrent.update(weights.recurrent)
        self.projection.update(weights.projection)

    def drop(self) -> None:
        """Frees the copies."""
        for packed in (self.inputs, self.recurrent, self.projection):
            packed.drop()


def fused_walk(
    weights: Weights, packed: PackedWeights, clips: Clips, words: WalkedWords, state: State
) -> tuple[torch.Tensor, State]:
    """`walk`, with the same arguments in the form of weights."""
    packed.update(weights)
    tensors = (words.vectors, *weights, *state)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        outputs, hidden, cell = FusedWalk.apply(packed, clips, words.batch_sizes, words.distinct, *tensors)
        return outputs, (hidden, cell)
    return _infer(weights, packed, clips, words, state)


def _input_gates(weights: Weights, packed: PackedWeights, words: WalkedWords, dtype: torch.dtype) -> torch.Tensor:
    """What each word contributes to its gates, new memory of shape (words, 4C)."""
    if words.distinct is None:
        return packed.inputs.product(words.vectors, weights.inputs, weights.bias).to(dtype)
    vectors, occurrences = words.distinct
    return packed.inputs.product(vectors, weights.inputs, weights.bias).to(dtype)[occurrences]


def _infer(
    weights: Weights, packed: PackedWeights, clips: Clips, words: WalkedWords, state: State
) -> tuple[torch.Tensor, State]:
    hidden = state[0].clone()
    cell = state[1].to(_working_type(state[1]), copy=True)
    outputs = hidden.new_empty(sum(words.batch_sizes), hidden.shape[1])
    for block, first in words.blocks():
        gates_of_block = _input_gates(weights, packed, block, cell.dtype)
        start = 0
        for active in block.batch_sizes:
            gates, active_cell = gates_of_block[start : start + active], cell[:active]
            if first + start or _is_anything(hidden):
                gates += packed.recurrent.product(hidden[:active], weights.recurrent)
            input_gate, forget_gate, candidate, output_gate = _activate(gates)
            active_cell.mul_(forget_gate).addcmul_(input_gate, candidate)
            if clips.cell is not None:
                active_cell.clamp_(-clips.cell, clips.cell)
            unprojected = (output_gate * tanh(active_cell)).to(hidden.dtype)
            hidden[:active] = packed.projection.product(unprojected, weights.projection, limit=clips.projection)
            outputs[first + start : first + start + active] = hidden[:active]
            start += active
    return outputs, (hidden, cell.to(state[1].dtype))


def _activate(gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Applies the activations, in place but for the candidate's; returns the parts, each (rows, C)."""
    size = gates.shape[1] // 4
    gates[:, : 2 * size].sigmoid_()
    gates[:, 3 * size :].sigmoid_()
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
    return input_gate, forget_gate, tanh(candidate), output_gate


class FusedWalk(torch.autograd.Function):
    """`walk` with a backward pass of its own."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        packed: PackedWeights,
        clips: Clips,
        batch_sizes: list[int],
        distinct: Distinct,
        vectors: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Walks, keeping what the backward pass needs.

        Args:
            packed: Copies of the weights.
            clips: The bounds.
            batch_sizes: As in `WalkedWords`.
            distinct: As in `WalkedWords`.
            vectors: As in `WalkedWords`.
            *tensors: The four of `Weights` and the two of `State`.

        Returns:
            The outputs (words, P), and the final output (rows, P) and cell (rows, C).
        """
        weights, (first_hidden, first_cell) = Weights(*tensors[:4]), tensors[4:]
        working = _working_type(first_cell)
        gates = _input_gates(weights, packed, WalkedWords(vectors, batch_sizes, distinct), working)
        count, cell_size = len(gates), first_cell.shape[1]
        cells, tanh_of_cells = gates.new_empty(count, cell_size), gates.new_empty(count, cell_size)
        projected = first_hidden.new_empty(count, first_hidden.shape[1])
        hidden, cell = first_hidden.clone(), first_cell.to(working, copy=True)
        start = 0
        for active in batch_sizes:
            part = slice(start, start + active)
            if start or _is_anything(hidden):
                gates[part] += packed.recurrent.product(hidden[:active], weights.recurrent)
            input_gate, forget_gate, candidate, output_gate = _activate(gates[part])
            gates[part, 2 * cell_size : 3 * cell_size] = candidate
            torch.mul(cell[:active], forget_gate, out=cells[part]).addcmul_(input_gate, candidate)
            cell[:active] = clipped(cells[part], clips.cell)
            tanh_of_cells[part] = tanh(cell[:active])
            unprojected = (output_gate * tanh_of_cells[part]).to(hidden.dtype)
            projected[part] = packed.projection.product(unprojected, weights.projection)
            hidden[:active] = clipped(projected[part], clips.projection)
            start += active
        ctx.save_for_backward(vectors, *tensors, *(distinct or ()), gates, cells, tanh_of_cells, projected)
        ctx.clips, ctx.batch_sizes, ctx.is_distinct = clips, batch_sizes, distinct is not None  # type: ignore[attr-defined]
        return clipped(projected, clips.projection).clone(), hidden, cell.to(first_cell.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of `forward`'s arguments."""
        saved = ctx.saved_tensors  # read once: gradient checkpointing gives them away
        vectors, *tensors = saved[:7]
        distinct = saved[7:9] if ctx.is_distinct else None
        words = WalkedWords(vectors, ctx.batch_sizes, distinct)
        weights, state = Weights(*tensors[:4]), (tensors[4], tensors[5])
        wanted = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():  # create_graph: the gradients are to be differentiated in turn
            return (None, None, None, None, *_differentiable(weights, ctx.clips, words, state, wanted, gradients))
        kept = _Kept(*saved[-4:])
        return (None, None, None, None, *_gradients(weights, ctx.clips, words, state, kept, wanted, gradients))


class _Kept(NamedTuple):
    """What the forward pass keeps of each word: activated gates (words, 4C), cells (words, C) and projections
    (words, P) before they are clipped, and the tanh of the clipped cells.
    """

    gates: torch.Tensor
    cells: torch.Tensor
    tanh_of_cells: torch.Tensor
    projected: torch.Tensor


def _gradients(
    weights: Weights,
    clips: Clips,
    words: WalkedWords,
    state: State,
    kept: _Kept,
    wanted: tuple[bool, ...],
    gradients: tuple[torch.Tensor, ...],
) -> list[torch.Tensor | None]:
    """The gradients of vectors, weights and states, None where one is not wanted."""
    of_outputs, of_hidden, of_cell = gradients
    dtype, working = of_outputs.dtype, kept.cells.dtype
    hidden, cell = of_hidden.clone(), of_cell.to(working, copy=True)  # carried from step to step
    of_gates, of_projected = torch.empty_like(kept.gates), torch.empty_like(kept.projected)
    through_projection, through_recurrence = _transposed(weights, len(words.batch_sizes))
    ends = list(accumulate(words.batch_sizes))
    for step in reversed(range(len(ends))):
        active = words.batch_sizes[step]
        part = slice(ends[step] - active, ends[step])
        of_projected[part] = _through_clip(hidden[:active] + of_outputs[part], kept.projected[part], clips.projection)
        if step:
            before = clipped(kept.cells[ends[step - 1] - words.batch_sizes[step - 1] :][:active], clips.cell)
        else:
            before = state[1][:active].to(working)
        _step_backward(
            through_projection(of_projected[part]).to(working),
            cell[:active],
            _Kept(*(values[part] for values in kept)),
            before,
            clips.cell,
            of_gates[part],
        )
        if step or wanted[5]:
            hidden[:active] = through_recurrence(of_gates[part].to(dtype))

    of_inputs, vectors = of_gates, words.vectors
    if words.distinct is not None:
        vectors, occurrences = words.distinct
        of_inputs = of_gates.new_zeros(len(vectors), of_gates.shape[1]).index_add_(0, occurrences, of_gates)
    of_gates, of_inputs = of_gates.to(dtype), of_inputs.to(dtype)
    found: list[torch.Tensor | None] = [None] * 5 + [hidden, cell.to(of_cell.dtype)]
    if wanted[0]:
        found[0] = of_gates @ weights.inputs
    if wanted[1]:
        found[1] = of_inputs.T @ vectors
    if wanted[2]:
        found[2] = of_inputs.sum(dim=0)
    if wanted[3]:
        found[3] = of_gates.T @ _outputs_before(clipped(kept.projected, clips.projection), words.batch_sizes, state[0])
    if wanted[4]:
        found[4] = of_projected.T @ (kept.gates.chunk(4, dim=1)[3] * kept.tanh_of_cells).to(dtype)
    return [gradient if needed else None for gradient, needed in zip(found, wanted, strict=True)]


def _transposed(weights: Weights, steps: int) -> tuple[Product, Product]:
    """What brings gradients (rows, P) and (rows, 4C) back through the projection and through the recurrence."""

    def times(weight: torch.Tensor) -> Product:
        if steps < FEWEST_STEPS or why_not_packable(weight) is not None:
            return lambda rows: rows @ weight
        packed = PackedWeight()
        packed.renew(weight.T, has_changed=True)
        return lambda rows: packed.product(rows, weight.T)

    return times(weights.projection), times(weights.recurrent)


def _outputs_before(outputs: torch.Tensor, batch_sizes: list[int], first: torch.Tensor) -> torch.Tensor:
    """For each word the output of its row at the step before (words, P), `first` at the first step."""
    starts = [0, *accumulate(batch_sizes)]
    before = [first[: batch_sizes[0]]] if batch_sizes else []
    before += [outputs[start:][:size] for start, size in zip(starts, batch_sizes[1:], strict=False)]
    return torch.cat([outputs[:0], *before])


def _step_backward(
    of_unprojected: torch.Tensor,
    of_cell: torch.Tensor,
    kept: _Kept,
    cell_before: torch.Tensor,
    clip: float | None,
    of_gates: torch.Tensor,
) -> None:
    """The backward pass of `cell_step`: writes the gradient of the gates, and that of the cell before in place."""
    input_gate, forget_gate, candidate, output_gate = kept.gates.chunk(4, dim=1)
    of_input, of_forget, of_candidate, of_output = of_gates.chunk(4, dim=1)
    through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
    through_sigmoid.grad_input(of_unprojected * kept.tanh_of_cells, output_gate, grad_input=of_output)
    of_cell += through_tanh(of_unprojected * output_gate, kept.tanh_of_cells)
    if clip is not None:
        of_cell.masked_fill_(kept.cells.abs() > clip, 0)
    through_sigmoid.grad_input(of_cell * candidate, input_gate, grad_input=of_input)
    through_sigmoid.grad_input(of_cell * cell_before, forget_gate, grad_input=of_forget)
    through_tanh.grad_input(of_cell * input_gate, candidate, grad_input=of_candidate)
    of_cell *= forget_gate


def _through_clip(gradient: torch.Tensor, values: torch.Tensor, clip: float | None) -> torch.Tensor:
    """The gradient behind `clamp`: 0 where the values were out of bounds."""
    return gradient if clip is None else gradient.masked_fill(values.abs() > clip, 0)


def _differentiable(
    weights: Weights,
    clips: Clips,
    words: WalkedWords,
    state: State,
    wanted: tuple[bool, ...],
    gradients: tuple[torch.Tensor, ...],
) -> list[torch.Tensor | None]:
    """`_gradients` that have gradients themselves, from the plain walk."""
    # Views, so that the gradients found here are those of this walk alone.
    copies = [tensor.view_as(tensor) for tensor in (words.vectors, *weights, *state)]
    vectors, inputs, bias, recurrent, projection, hidden, cell = copies
    outputs, final = walk(
        lambda rows: nn.functional.linear(rows, inputs, bias),
        lambda rows: nn.functional.linear(rows, recurrent),
        lambda rows: nn.functional.linear(rows, projection),
        clips,
        WalkedWords(vectors, words.batch_sizes),
        (hidden, cell),
    )
    needed = [copy for copy, want in zip(copies, wanted, strict=True) if want]
    found = iter(torch.autograd.grad((outputs, *final), needed, gradients, create_graph=True, allow_unused=True))
    return [next(found) if want else None for want in wanted]


def _working_type(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


def _is_anything(hidden: torch.Tensor) -> bool:
    """Whether the recurrent product gives anything but 0; not asked of an accelerator, which would have to wait."""
    return hidden.device.type != "cpu" or bool(hidden.any())


__all__ = ["PackedWeights", "Weights", "fused_walk"]
