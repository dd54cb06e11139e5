"""The walk of `lstm_steps_elmo` in few passes over the memory, forward and backward.

Without gradients the activations of a step overwrite its gates, and the cell is updated in place. With gradients a
backward pass of its own gathers what the weights get from all steps, so that each weight matrix has one large product
instead of one small product a step. Cells and gates are kept in float32 where the weights have fewer bits.
"""

from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from .buffers_elmo import buffers
from .fast_paths_elmo import without_autocast
from .lstm_steps_elmo import Clips, Product, State, WalkedWords, clipped, walk
from .packed_weights_elmo import PackedWeight, tanh, why_not_packable

# Steps of a backward pass from which on packing the transposed weights pays.
FEWEST_STEPS = 10
# Words whose input product is computed at once where words do not repeat. The products of more would not be in the
# cache any more when their steps come, and the system would hand out, and clear, new memory for them each time.
BLOCK_WORDS = 256

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

    def update(self, weights: Weights, dtype: torch.dtype) -> None:
        """Makes the copies those of the weights as they are now, in the type of the products."""
        self.inputs.update(weights.inputs, dtype)
        self.recurrent.update(weights.recurrent, dtype)
        self.projection.update(weights.projection, dtype)

    def drop(self) -> None:
        """Frees the copies."""
        for packed in (self.inputs, self.recurrent, self.projection):
            packed.drop()


def fused_walk(
    weights: Weights,
    packed: PackedWeights,
    clips: Clips,
    words: WalkedWords,
    state: State,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, State]:
    """`walk`, with the same arguments in the form of weights, and all products in one type.

    Args:
        weights: The weights, of the type of the products or, under autocast, of any.
        packed: Copies of the weights, which are renewed.
        clips: The bounds.
        words: The words, of the type of the products.
        state: Output, of the type of the products, and cell, of any.
        dtype: The type of the products.

    Returns:
        As `walk`. The cells are of the type that they came in.
    """
    packed.update(weights, dtype)
    tensors = (words.vectors, *weights, *state)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        cast = [tensor.to(dtype) for tensor in weights]
        outputs, hidden, cell = FusedWalk.apply(
            packed, clips, words.batch_sizes, words.distinct, words.vectors, *cast, *state
        )
        return outputs, (hidden, cell)
    without_copy = [name for name in Weights._fields if name == "bias" or not getattr(packed, name).is_packed]
    weights = weights._replace(**{name: getattr(weights, name).to(dtype) for name in without_copy})
    return _infer(weights, packed, clips, words, state)


def _input_gates(weights: Weights, packed: PackedWeights, words: WalkedWords) -> Iterator[tuple[slice, torch.Tensor]]:
    """For each step which of the words are its rows, and what they contribute to their gates, shape (rows, 4C)."""
    for block, first in words.blocks(BLOCK_WORDS if words.distinct is None else None):
        vectors, occurrences = block.distinct or (block.vectors, None)
        gates = packed.inputs.product(vectors, weights.inputs, weights.bias)
        start = 0
        for active in block.batch_sizes:
            part = slice(start, start + active)
            rows = gates[part] if occurrences is None else gates.index_select(0, occurrences[part])
            yield slice(first + start, first + start + active), rows
            start += active


def _infer(
    weights: Weights, packed: PackedWeights, clips: Clips, words: WalkedWords, state: State
) -> tuple[torch.Tensor, State]:
    if not torch.is_grad_enabled():
        buffers.clear()
    hidden = state[0].clone()
    cell = state[1].to(_working_type(state[1]), copy=True)
    outputs = hidden.new_empty(sum(words.batch_sizes), hidden.shape[1])
    for part, of_words in _input_gates(weights, packed, words):
        active = len(of_words)
        gates, active_cell = of_words.to(cell.dtype), cell[:active]
        if part.start or _is_anything(hidden):
            gates += packed.recurrent.product(hidden[:active], weights.recurrent)
        input_gate, forget_gate, candidate, output_gate = _activate(gates, hidden.dtype)
        active_cell.mul_(forget_gate).addcmul_(input_gate, candidate)
        if clips.cell is not None:
            active_cell.clamp_(-clips.cell, clips.cell)
        unprojected = (output_gate * _tanh(active_cell, hidden.dtype)).to(hidden.dtype)
        hidden[:active] = packed.projection.product(unprojected, weights.projection, limit=clips.projection)
        outputs[part] = hidden[:active]
    return outputs, (hidden, cell.to(state[1].dtype))


def _activate(
    gates: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Applies the activations, in place where it pays; returns the parts, each (rows, C).

    Args:
        gates: Shape (rows, 4C).
        dtype: The type of the weights.
    """
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
    if dtype != gates.dtype:
        candidate.mul_(2)
        gates.sigmoid_()
        return input_gate, forget_gate, candidate.mul_(2).sub_(1), output_gate
    size = candidate.shape[1]
    gates[:, : 2 * size].sigmoid_()
    output_gate.sigmoid_()
    return input_gate, forget_gate, tanh(candidate), output_gate


def _tanh(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The hyperbolic tangent as exact as weights of a type deserve.

    2 sigmoid(2x) - 1 takes half of the time, but is off by up to 1e-7 where the value itself is as small.
    """
    return (values * 2).sigmoid_().mul_(2).sub_(1) if dtype != values.dtype else tanh(values)


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
        hidden, cell = first_hidden.clone(), first_cell.to(working, copy=True)
        count, cell_size = sum(batch_sizes), first_cell.shape[1]
        gates = buffers.empty((count, 4 * cell_size), cell)
        cells, tanh_of_cells = (buffers.empty((count, cell_size), cell) for _ in range(2))
        projected = first_hidden.new_empty(count, first_hidden.shape[1])
        of_steps = zip(
            _input_gates(weights, packed, WalkedWords(vectors, batch_sizes, distinct)),
            *(values.split(batch_sizes) for values in (gates, cells, tanh_of_cells, projected)),
            strict=True,
        )
        for (part, of_words), step_gates, step_cells, step_tanh, step_projected in of_steps:
            active_hidden, active_cell = hidden[: len(of_words)], cell[: len(of_words)]
            if part.start or _is_anything(hidden):
                recurrent = packed.recurrent.product(active_hidden, weights.recurrent)
                torch.add(of_words.to(working), recurrent, out=step_gates)
            else:
                step_gates.copy_(of_words)
            input_gate, forget_gate, candidate, output_gate = _activate(step_gates, hidden.dtype)
            step_gates.chunk(4, dim=1)[2].copy_(candidate)
            torch.mul(active_cell, forget_gate, out=step_cells).addcmul_(input_gate, candidate)
            active_cell.copy_(clipped(step_cells, clips.cell))
            step_tanh.copy_(_tanh(active_cell, hidden.dtype))
            unprojected = (output_gate * step_tanh).to(hidden.dtype)
            step_projected.copy_(packed.projection.product(unprojected, weights.projection))
            active_hidden.copy_(clipped(step_projected, clips.projection))
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
        with without_autocast(vectors.device):
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
    of_gates, of_projected = buffers.empty((*kept.gates.shape,), kept.gates), torch.empty_like(kept.projected)
    through_projection, through_recurrence = _transposed(weights, len(words.batch_sizes))
    sizes = words.batch_sizes
    of_steps = [values.split(sizes) for values in (*kept, of_outputs, of_projected, of_gates)]
    for step in reversed(range(len(sizes))):
        step_gates, step_cells, step_tanh, step_projected, *of_step = (values[step] for values in of_steps)
        active = sizes[step]
        torch.add(hidden[:active], of_step[0], out=of_step[1])
        _through_clip(of_step[1], step_projected, clips.projection)
        before = clipped(of_steps[1][step - 1][:active], clips.cell) if step else state[1][:active].to(working)
        _step_backward(
            through_projection(of_step[1]).to(working),
            cell[:active],
            _Kept(step_gates, step_cells, step_tanh, step_projected),
            before,
            clips.cell,
            of_step[2],
        )
        if step or wanted[5]:
            hidden[:active] = through_recurrence(of_step[2].to(dtype))

    of_inputs, vectors = of_gates, words.vectors
    if words.distinct is not None:
        vectors, occurrences = words.distinct
        of_inputs = buffers.empty((len(vectors), of_gates.shape[1]), of_gates).zero_()
        of_inputs.index_add_(0, occurrences, of_gates)
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
        unprojected = buffers.empty((*kept.cells.shape,), kept.cells)
        torch.mul(kept.gates.chunk(4, dim=1)[3], kept.tanh_of_cells, out=unprojected)
        found[4] = of_projected.T @ unprojected.to(dtype)
    return [gradient if needed else None for gradient, needed in zip(found, wanted, strict=True)]


def _transposed(weights: Weights, steps: int) -> tuple[Product, Product]:
    """What brings gradients (rows, P) and (rows, 4C) back through the projection and through the recurrence."""

    def times(weight: torch.Tensor) -> Product:
        if steps < FEWEST_STEPS or why_not_packable(weight) is not None:
            return lambda rows: rows @ weight
        packed = PackedWeight()
        packed.renew(buffers.empty((*weight.T.shape,), weight).copy_(weight.T), has_changed=True)
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
    """The backward pass of `cell_step`: writes the gradient of the gates, and that of the cell before in place.

    `of_unprojected` is overwritten.
    """
    input_gate, _, candidate, output_gate = kept.gates.chunk(4, dim=1)
    of_input, of_forget, of_candidate, of_output = of_gates.chunk(4, dim=1)
    through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
    size = candidate.shape[1]
    torch.mul(of_unprojected, kept.tanh_of_cells, out=of_output)
    of_unprojected *= output_gate
    of_cell += through_tanh.grad_input(of_unprojected, kept.tanh_of_cells, grad_input=of_unprojected)
    _through_clip(of_cell, kept.cells, clip)
    torch.mul(of_cell, candidate, out=of_input)
    torch.mul(of_cell, cell_before, out=of_forget)
    torch.mul(of_cell, input_gate, out=of_candidate)
    for gradient, gate in ((of_gates[:, : 2 * size], kept.gates[:, : 2 * size]), (of_output, output_gate)):
        through_sigmoid.grad_input(gradient, gate, grad_input=gradient)
    through_tanh.grad_input(of_candidate, candidate, grad_input=of_candidate)
    of_cell *= kept.gates[:, size : 2 * size]


def _through_clip(gradient: torch.Tensor, values: torch.Tensor, clip: float | None) -> None:
    """The gradient behind `clamp`, in place: 0 where the values were out of bounds."""
    if clip is not None:
        bound = _next_above(clip, values.dtype)  # at the bound itself it is not 0, as behind `clamp`
        torch.ops.aten.hardtanh_backward.grad_input(gradient, values, -bound, bound, grad_input=gradient)


@cache
def _next_above(value: float, dtype: torch.dtype) -> float:
    exact = torch.tensor(value, dtype=dtype, device="cpu")
    return exact.nextafter(torch.full_like(exact, torch.inf)).item()


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
        lambda rows: nn.functional.linear(rows.to(projection.dtype), projection),
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
