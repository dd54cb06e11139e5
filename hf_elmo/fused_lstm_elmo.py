"""The walk of `lstm_steps_elmo` in few passes over the memory, forward and backward.

Without gradients the activations of a step overwrite its gates, and the cell is updated in place. With gradients a
backward pass of its own gathers what the weights get from all steps, so that each weight matrix has one large product
instead of one small product a step. Cells and gates are kept in float32 where the weights have fewer bits.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from .lstm_steps_elmo import Clips, State, WalkedWords, clipped, walk
from .packed_weights_elmo import PackedWeight, tanh


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


def fused_walk(
    weights: Weights, packed: PackedWeights, clips: Clips, words: WalkedWords, state: State
) -> tuple[torch.Tensor, State]:
    """`walk`, with the same arguments in the form of weights."""
    packed.update(weights)
    tensors = (words.vectors, *weights, *state)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        outputs, hidden, cell = FusedWalk.apply(packed, clips, words.occurrences, words.batch_sizes, *tensors)
        return outputs, (hidden, cell)
    return _infer(weights, packed, clips, words, state)


def _infer(
    weights: Weights, packed: PackedWeights, clips: Clips, words: WalkedWords, state: State
) -> tuple[torch.Tensor, State]:
    hidden = state[0].clone()
    cell = state[1].to(_working_type(state[1]), copy=True)
    outputs = hidden.new_empty(sum(words.batch_sizes), hidden.shape[1])
    for block, first in words.blocks():
        gates_of_block = packed.inputs.product(block.vectors, weights.inputs, weights.bias)
        start = 0
        for active in block.batch_sizes:
            part = slice(start, start + active)
            rows = gates_of_block[part] if block.occurrences is None else gates_of_block[block.occurrences[part]]
            gates = rows.to(cell.dtype)
            if first + start or _is_anything(hidden):
                gates += packed.recurrent.product(hidden[:active], weights.recurrent)
            active_cell = cell[:active]
            projected = _step(gates, active_cell, active_cell, clips.cell)[0]
            hidden[:active] = packed.projection.product(
                projected.to(hidden.dtype), weights.projection, limit=clips.projection
            )
            outputs[first + start : first + start + active] = hidden[:active]
            start += active
    return outputs, (hidden, cell.to(state[1].dtype))


def _step(
    gates: torch.Tensor, before: torch.Tensor, after: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`cell_step` in place: leaves the activations in `gates` and the cell, not yet clipped, in `after`.

    Returns:
        What is projected, the tanh of the cell, and the clipped cell, which is `after` itself where that is `before`.
    """
    size = gates.shape[1] // 4
    gates[:, : 2 * size].sigmoid_()
    gates[:, 3 * size :].sigmoid_()
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
    candidate.copy_(tanh(candidate))
    torch.mul(before, forget_gate, out=after).addcmul_(input_gate, candidate)
    if clip is None:
        cell = after
    elif after is before:
        cell = after.clamp_(-clip, clip)
    else:
        cell = after.clamp(-clip, clip)
    tanh_of_cell = tanh(cell)
    return output_gate * tanh_of_cell, tanh_of_cell, cell


class FusedWalk(torch.autograd.Function):
    """`walk` with a backward pass of its own."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        packed: PackedWeights,
        clips: Clips,
        occurrences: torch.Tensor | None,
        batch_sizes: list[int],
        vectors: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Walks, keeping what the backward pass needs.

        Args:
            packed: Copies of the weights.
            clips: The bounds.
            occurrences: As in `WalkedWords`.
            batch_sizes: As in `WalkedWords`.
            vectors: As in `WalkedWords`.
            *tensors: The four of `Weights` and the two of `State`.

        Returns:
            The outputs (words, P), and the final output (rows, P) and cell (rows, C).
        """
        weights, (first_hidden, first_cell) = Weights(*tensors[:4]), tensors[4:]
        words = WalkedWords(vectors, occurrences, batch_sizes)
        working = _working_type(first_cell)
        gates = words.each(packed.inputs.product(vectors, weights.inputs, weights.bias)).to(working)
        count, cell_size = len(gates), first_cell.shape[1]
        cells, tanh_of_cells = gates.new_empty(count, cell_size), gates.new_empty(count, cell_size)
        projected = first_hidden.new_empty(count, first_hidden.shape[1])
        hidden, cell = first_hidden.clone(), first_cell.to(working, copy=True)
        start = 0
        for active in batch_sizes:
            part = slice(start, start + active)
            if start or _is_anything(hidden):
                gates[part] += packed.recurrent.product(hidden[:active], weights.recurrent)
            unprojected, tanh_of_cells[part], cell[:active] = _step(
                gates[part], cell[:active], cells[part], clips.cell
            )
            projected[part] = packed.projection.product(unprojected.to(hidden.dtype), weights.projection)
            hidden[:active] = clipped(projected[part], clips.projection)
            start += active
        ctx.save_for_backward(vectors, *tensors, gates, cells, tanh_of_cells, projected)
        ctx.clips, ctx.occurrences, ctx.batch_sizes = clips, occurrences, batch_sizes  # type: ignore[attr-defined]
        return clipped(projected, clips.projection).clone(), hidden, cell.to(first_cell.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of `forward`'s arguments."""
        vectors, *tensors = ctx.saved_tensors  # once: gradient checkpointing allows no second look
        words = WalkedWords(vectors, ctx.occurrences, ctx.batch_sizes)
        weights, state = Weights(*tensors[:4]), (tensors[4], tensors[5])
        wanted = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():  # create_graph: the gradients are to be differentiated in turn
            return (None, None, None, None, *_differentiable(weights, ctx.clips, words, state, wanted, gradients))
        kept = _Kept(*tensors[6:])
        return (None, None, None, None, *_gradients(weights, ctx.clips, words, state, kept, wanted, gradients))


class _Kept(NamedTuple):
    """What the forward pass keeps of each word: activated gates, cells and projections before they are clipped."""

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
    carried_hidden, carried_cell = of_hidden.clone(), of_cell.to(working, copy=True)
    of_gates = torch.empty_like(kept.gates)
    of_projected = torch.empty_like(kept.projected)
    starts = [0]
    for active in words.batch_sizes:
        starts.append(starts[-1] + active)
    for step in reversed(range(len(words.batch_sizes))):
        active = words.batch_sizes[step]
        part = slice(starts[step], starts[step + 1])
        hidden = carried_hidden[:active] + of_outputs[part]
        of_projected[part] = _through_clip(hidden, kept.projected[part], clips.projection)
        if step:
            cell_before = clipped(kept.cells[starts[step - 1] :][:active], clips.cell)
        else:
            cell_before = state[1][:active].to(working)
        carried_cell[:active] = _cell_gradients(
            (of_projected[part] @ weights.projection).to(working),
            carried_cell[:active],
            kept.gates[part],
            kept.cells[part],
            kept.tanh_of_cells[part],
            cell_before,
            clips.cell,
            out=of_gates[part],
        )
        carried_hidden[:active] = of_gates[part].to(dtype) @ weights.recurrent

    found: list[torch.Tensor | None] = [None] * len(wanted)
    of_gates = of_gates.to(dtype)
    of_inputs = of_gates
    if words.occurrences is not None:
        of_inputs = of_gates.new_zeros(len(words.vectors), of_gates.shape[1])
        of_inputs.index_add_(0, words.occurrences, of_gates)
    if wanted[0]:
        found[0] = of_inputs @ weights.inputs
    if wanted[1]:
        found[1] = of_inputs.T @ words.vectors
    if wanted[2]:
        found[2] = of_inputs.sum(dim=0)
    if wanted[3]:
        outputs = clipped(kept.projected, clips.projection)
        before = [state[0][: words.batch_sizes[0]]] if words.batch_sizes else []
        before += [outputs[start:][:size] for start, size in zip(starts, words.batch_sizes[1:], strict=False)]
        found[3] = of_gates.T @ torch.cat([outputs[:0], *before])
    if wanted[4]:
        unprojected = (kept.gates.chunk(4, dim=1)[3] * kept.tanh_of_cells).to(dtype)
        found[4] = of_projected.T @ unprojected
    found[5:] = [carried_hidden, carried_cell.to(of_cell.dtype)]
    return [gradient if needed else None for gradient, needed in zip(found, wanted, strict=True)]


def _cell_gradients(
    of_unprojected: torch.Tensor,
    of_cell: torch.Tensor,
    gates: torch.Tensor,
    cell: torch.Tensor,
    tanh_of_cell: torch.Tensor,
    cell_before: torch.Tensor,
    clip: float | None,
    out: torch.Tensor,
) -> torch.Tensor:
    """The backward pass of `cell_step`: writes the gradient of the gates (rows, 4C) and returns that of the cell."""
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
    of_input, of_forget, of_candidate, of_output = out.chunk(4, dim=1)
    sigmoid_backward, tanh_backward = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
    of_output.copy_(sigmoid_backward(of_unprojected * tanh_of_cell, output_gate))
    of_cell = of_cell + tanh_backward(of_unprojected * output_gate, tanh_of_cell)
    of_cell = _through_clip(of_cell, cell, clip)
    of_input.copy_(sigmoid_backward(of_cell * candidate, input_gate))
    of_forget.copy_(sigmoid_backward(of_cell * cell_before, forget_gate))
    of_candidate.copy_(tanh_backward(of_cell * input_gate, candidate))
    return of_cell * forget_gate


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
    tensors = (words.vectors, *weights, *state)
    # The walk must not end at tensors from before this backward pass: their gradients are found here.
    copies = [tensor.view_as(tensor) for tensor in tensors]
    vectors, inputs, bias, recurrent, projection, hidden, cell = copies
    linear = nn.functional.linear
    outputs, final = walk(
        lambda rows: linear(rows, inputs, bias),
        lambda rows: linear(rows, recurrent),
        lambda rows: linear(rows, projection),
        clips,
        WalkedWords(vectors, words.occurrences, words.batch_sizes),
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
