"""The walk of `lstm_steps_elmo` in few passes over the memory, forward and backward.

The directions of a layer walk side by side: their products are their own, but each pass of the arithmetic goes over
both. Without gradients the activations of a step overwrite its gates, and the cell is updated in place. With gradients
a backward pass of its own gathers what the weights get from all steps, so that each weight matrix has one large
product instead of one small product a step. Cells and gates are kept in float32 where the weights have fewer bits.

In the shapes below, D is the number of directions.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from .buffers_elmo import buffers
from .fast_paths_elmo import is_batched, without_autocast
from .lstm_steps_elmo import Clips, Product, State, WalkedWords, clipped, walk
from .packed_weights_elmo import PackedWeight, tanh, why_not_packable

# Steps of a backward pass from which on packing the transposed weights pays.
FEWEST_STEPS = 10
# Words whose input product is computed at once where words do not repeat. The products of more would not be in the
# cache any more when their steps come, and the system would hand out, and clear, new memory for them each time.
BLOCK_WORDS = 256


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


class Direction(NamedTuple):
    """What one direction of a layer walks with.

    Attributes:
        weights: The weights, of the type of the products or, under autocast, of any.
        packed: Copies of the weights, which are renewed.
        words: The words, of the type of the products.
        state: Output (rows, P), of the type of the products, and cell (rows, C), of any.
    """

    weights: Weights
    packed: PackedWeights
    words: WalkedWords
    state: State

    def tensors(self) -> list[torch.Tensor]:
        """All that may have a gradient: the words, the four weights, output and cell."""
        return [self.words.vectors, *self.weights, *self.state]


TENSORS = 7
"""The number of `Direction.tensors`."""


def fused_walk(directions: Sequence[Direction], clips: Clips, dtype: torch.dtype) -> list[tuple[torch.Tensor, State]]:
    """`walk` for directions that have the same sizes and as many rows at each step.

    Args:
        directions: The directions.
        clips: The bounds.
        dtype: The type of the products.

    Returns:
        For each direction what `walk` returns. The cells are of the type that they came in.
    """
    for direction in directions:
        direction.packed.update(direction.weights, dtype)
    needs_gradient = any(tensor.requires_grad for direction in directions for tensor in direction.tensors())
    if torch.is_grad_enabled() and needs_gradient:
        cast = [direction._replace(weights=_cast(direction.weights, dtype)) for direction in directions]
        tensors = [tensor for direction in cast for tensor in direction.tensors()]
        results = FusedWalk.apply([(direction.packed, direction.words) for direction in cast], clips, *tensors)
        triples = [results[start : start + 3] for start in range(0, len(results), 3)]
        return [(outputs, (hidden, cell)) for outputs, hidden, cell in triples]
    if not torch.is_grad_enabled():
        buffers.idle()
    return _infer([_without_needless_casts(direction, dtype) for direction in directions], clips)


def _cast(weights: Weights, dtype: torch.dtype) -> Weights:
    return Weights(*(tensor.to(dtype) for tensor in weights))


def _without_needless_casts(direction: Direction, dtype: torch.dtype) -> Direction:
    """The direction with weights of a type, except those that have a packed copy, which need not be cast."""
    weights, packed = direction.weights, direction.packed
    names = [name for name in Weights._fields if name == "bias" or not getattr(packed, name).is_packed]
    return direction._replace(weights=weights._replace(**{name: getattr(weights, name).to(dtype) for name in names}))


def _input_gates(direction: Direction) -> Iterator[tuple[slice, torch.Tensor]]:
    """For each step which of the words are its rows, and what they contribute to their gates, shape (rows, 4C)."""
    weights, packed, words, _ = direction
    for block, first in words.blocks(BLOCK_WORDS if words.distinct is None else None):
        vectors, occurrences = block.distinct or (block.vectors, None)
        gates = packed.inputs.product(vectors, weights.inputs, weights.bias)
        start = 0
        for active in block.batch_sizes:
            part = slice(start, start + active)
            rows = gates[part] if occurrences is None else gates.index_select(0, occurrences[part])
            yield slice(first + start, first + start + active), rows
            start += active


def _write_gates(
    directions: Sequence[Direction],
    of_words: Sequence[tuple[slice, torch.Tensor]],
    hidden: torch.Tensor,
    gates: torch.Tensor,
) -> None:
    """Writes the gates of a step (D, rows, 4C).

    Args:
        directions: The directions.
        of_words: For each what `_input_gates` gives for the step.
        hidden: The outputs of the step before, shape (D, rows, P).
        gates: Where to write.
    """
    for direction, (part, of_inputs), before, both in zip(directions, of_words, hidden, gates, strict=True):
        if not part.start and not _is_anything(before):
            both.copy_(of_inputs)
            continue
        recurrent = direction.packed.recurrent.product(before, direction.weights.recurrent)
        if recurrent.dtype == both.dtype:
            torch.add(of_inputs, recurrent, out=both)
        else:
            both.copy_(of_inputs)
            both += recurrent


def _stacked_state(directions: Sequence[Direction]) -> State:
    """New memory with the outputs (D, rows, P), and the cells (D, rows, C) with enough bits."""
    hidden = torch.stack([direction.state[0] for direction in directions])
    cell = torch.stack([direction.state[1] for direction in directions])
    return hidden, cell.to(_working_type(cell))


def _infer(directions: Sequence[Direction], clips: Clips) -> list[tuple[torch.Tensor, State]]:
    hidden, cell = _stacked_state(directions)
    outputs = hidden.new_empty(len(directions), sum(directions[0].words.batch_sizes), hidden.shape[2])
    all_gates = cell.new_empty(*cell.shape[:2], 4 * cell.shape[2])
    for of_words in zip(*map(_input_gates, directions), strict=True):
        part, active = of_words[0][0], len(of_words[0][1])
        active_hidden, active_cell, gates = hidden[:, :active], cell[:, :active], all_gates[:, :active]
        _write_gates(directions, of_words, active_hidden, gates)
        input_gate, forget_gate, candidate, output_gate = _activate(gates, hidden.dtype)
        active_cell.mul_(forget_gate).addcmul_(input_gate, candidate)
        if clips.cell is not None:
            active_cell.clamp_(-clips.cell, clips.cell)
        unprojected = (output_gate * _tanh(active_cell, hidden.dtype)).to(hidden.dtype)
        for direction, rows, after in zip(directions, unprojected, active_hidden, strict=True):
            after.copy_(
                direction.packed.projection.product(rows, direction.weights.projection, limit=clips.projection)
            )
        outputs[:, part] = active_hidden
    return [
        (outputs[number], (hidden[number], cell[number].to(direction.state[1].dtype)))
        for number, direction in enumerate(directions)
    ]


def _activate(
    gates: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Applies the activations, in place where it pays; returns the parts, each (D, rows, C).

    Args:
        gates: Shape (D, rows, 4C).
        dtype: The type of the weights.
    """
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=-1)
    if dtype != gates.dtype:
        candidate.mul_(2)
        gates.sigmoid_()
        return input_gate, forget_gate, candidate.mul_(2).sub_(1), output_gate
    gates[..., : 2 * candidate.shape[-1]].sigmoid_()
    output_gate.sigmoid_()
    return input_gate, forget_gate, tanh(candidate), output_gate


def _tanh(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The hyperbolic tangent as exact as weights of a type deserve.

    2 sigmoid(2x) - 1 takes half of the time, but is off by up to 1e-7 where the value itself is as small.
    """
    return (values * 2).sigmoid_().mul_(2).sub_(1) if dtype != values.dtype else tanh(values)


class FusedWalk(torch.autograd.Function):
    """`fused_walk` with a backward pass of its own."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        copies_and_words: list[tuple[PackedWeights, WalkedWords]],
        clips: Clips,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Walks, keeping what the backward pass needs.

        Args:
            copies_and_words: For each direction the copies of the weights, and the words.
            clips: The bounds.
            *tensors: For each direction its `Direction.tensors`.

        Returns:
            For each direction the outputs (words, P), and the final output (rows, P) and cell (rows, C).
        """
        batch_sizes = copies_and_words[0][1].batch_sizes
        distinct = [words.distinct for _, words in copies_and_words]
        directions = _directions(tensors, [packed for packed, _ in copies_and_words], batch_sizes, distinct)
        hidden, cell = _stacked_state(directions)
        shape = (len(directions), sum(batch_sizes), cell.shape[2])
        gates = buffers.empty((*shape[:2], 4 * shape[2]), cell)
        cells, tanh_of_cells = (buffers.empty(shape, cell) for _ in range(2))
        projected = hidden.new_empty(*shape[:2], hidden.shape[2])
        kept_of_steps = (values.split(batch_sizes, dim=1) for values in (gates, cells, tanh_of_cells, projected))
        of_steps = zip(zip(*map(_input_gates, directions), strict=True), *kept_of_steps, strict=True)
        for of_words, step_gates, step_cells, step_tanh, step_projected in of_steps:
            active = step_cells.shape[1]
            active_hidden, active_cell = hidden[:, :active], cell[:, :active]
            _write_gates(directions, of_words, active_hidden, step_gates)
            input_gate, forget_gate, candidate, output_gate = _activate(step_gates, hidden.dtype)
            step_gates.chunk(4, dim=-1)[2].copy_(candidate)
            torch.mul(active_cell, forget_gate, out=step_cells).addcmul_(input_gate, candidate)
            _write_clipped(step_cells, clips.cell, active_cell)
            step_tanh.copy_(_tanh(active_cell, hidden.dtype))
            unprojected = (output_gate * step_tanh).to(hidden.dtype)
            for direction, rows, after in zip(directions, unprojected, step_projected, strict=True):
                after.copy_(direction.packed.projection.product(rows, direction.weights.projection))
            _write_clipped(step_projected, clips.projection, active_hidden)
        flat_distinct = [tensor for pair in distinct for tensor in pair or ()]
        ctx.save_for_backward(*tensors, gates, cells, tanh_of_cells, projected, *flat_distinct)
        ctx.clips, ctx.batch_sizes, ctx.copies = clips, batch_sizes, [packed for packed, _ in copies_and_words]  # type: ignore[attr-defined]
        outputs = clipped(projected, clips.projection)
        return tuple(
            result
            for number, direction in enumerate(directions)
            for result in (
                outputs[number].clone(),
                hidden[number].clone(),
                cell[number].to(direction.state[1].dtype, copy=True),
            )
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of `forward`'s arguments."""
        saved = ctx.saved_tensors  # read once: gradient checkpointing gives them away
        count = TENSORS * len(ctx.copies)
        kept, flat = _Kept(*saved[count : count + 4]), saved[count + 4 :]
        distinct = [flat[2 * number : 2 * number + 2] or None for number in range(len(ctx.copies))]
        directions = _directions(saved[:count], ctx.copies, ctx.batch_sizes, distinct)
        triples = [gradients[start : start + 3] for start in range(0, len(gradients), 3)]
        wanted = ctx.needs_input_grad[2:]
        # With create_graph the gradients are to be differentiated in turn.
        if torch.is_grad_enabled() or any(map(is_batched, gradients)):
            found = [
                gradient
                for number, (direction, triple) in enumerate(zip(directions, triples, strict=True))
                for gradient in _differentiable(direction, ctx.clips, wanted[TENSORS * number :][:TENSORS], triple)
            ]
        else:
            with without_autocast(kept.cells.device):
                found = _gradients(directions, ctx.clips, kept, wanted, triples)
        return (None, None, *found)


def _directions(
    tensors: Sequence[torch.Tensor],
    copies: Sequence[PackedWeights],
    batch_sizes: list[int],
    distinct: Sequence[tuple[torch.Tensor, torch.Tensor] | None],
) -> list[Direction]:
    """The directions again, from their tensors one after the other."""
    found = []
    for number, (packed, pair) in enumerate(zip(copies, distinct, strict=True)):
        vectors, *weights, hidden, cell = tensors[TENSORS * number :][:TENSORS]
        found.append(Direction(Weights(*weights), packed, WalkedWords(vectors, batch_sizes, pair), (hidden, cell)))
    return found


class _Kept(NamedTuple):
    """What the forward pass keeps of each word: activated gates (D, words, 4C), cells (D, words, C) before they are
    clipped, the tanh of the clipped cells, and projections (D, words, P) before they are clipped.
    """

    gates: torch.Tensor
    cells: torch.Tensor
    tanh_of_cells: torch.Tensor
    projected: torch.Tensor


def _gradients(
    directions: Sequence[Direction],
    clips: Clips,
    kept: _Kept,
    wanted: Sequence[bool],
    gradients: Sequence[Sequence[torch.Tensor]],
) -> list[torch.Tensor | None]:
    """The gradients of the tensors of all directions, None where one is not wanted."""
    sizes, dtype, working = directions[0].words.batch_sizes, kept.projected.dtype, kept.cells.dtype
    of_outputs, hidden, of_cells = (torch.stack(parts) for parts in zip(*gradients, strict=True))
    cell = of_cells.to(working)  # this and `hidden` are carried from step to step
    of_gates, of_projected = buffers.empty((*kept.gates.shape,), kept.gates), torch.empty_like(kept.projected)
    ways_back = [_transposed(direction.weights, len(sizes)) for direction in directions]
    of_steps = [values.split(sizes, dim=1) for values in (*kept, of_outputs, of_projected, of_gates)]
    for step in reversed(range(len(sizes))):
        step_gates, step_cells, step_tanh, step_projected, *of_step = (values[step] for values in of_steps)
        active = sizes[step]
        torch.add(hidden[:, :active], of_step[0], out=of_step[1])
        _through_clip(of_step[1], step_projected, clips.projection)
        if step:
            before = clipped(of_steps[1][step - 1][:, :active], clips.cell)
        else:
            before = torch.stack([direction.state[1][:active] for direction in directions]).to(working)
        of_unprojected = [back(rows) for (back, _), rows in zip(ways_back, of_step[1], strict=True)]
        _step_backward(
            torch.stack(of_unprojected).to(working),
            cell[:, :active],
            _Kept(step_gates, step_cells, step_tanh, step_projected),
            before,
            clips.cell,
            of_step[2],
        )
        for number, (_, back) in enumerate(ways_back):
            if step or wanted[TENSORS * number + 5]:
                hidden[number, :active] = back(of_step[2][number].to(dtype))
    found: list[torch.Tensor | None] = []
    for number, direction in enumerate(directions):
        parts = _Kept(*(values[number] for values in kept))
        of_words = _of_weights(
            direction, clips, parts, wanted[TENSORS * number :], of_gates[number], of_projected[number]
        )
        found += [*of_words, hidden[number], cell[number].to(of_cells.dtype)]
    return [gradient if needed else None for gradient, needed in zip(found, wanted, strict=True)]


def _of_weights(
    direction: Direction,
    clips: Clips,
    kept: _Kept,
    wanted: Sequence[bool],
    of_gates: torch.Tensor,
    of_projected: torch.Tensor,
) -> list[torch.Tensor | None]:
    """The gradients of the words and of the four weights of a direction from those of its gates (words, 4C) and of its
    projections (words, P).
    """
    weights, _, words, state = direction
    dtype = of_projected.dtype
    of_inputs, vectors = of_gates, words.vectors
    if words.distinct is not None and (wanted[1] or wanted[2]):
        vectors, occurrences = words.distinct
        of_inputs = buffers.empty((len(vectors), of_gates.shape[1]), of_gates).zero_()
        of_inputs.index_add_(0, occurrences, of_gates)
    of_gates, of_inputs = of_gates.to(dtype), of_inputs.to(dtype)
    found: list[torch.Tensor | None] = [None] * 5
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
    return found


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
    input_gate, _, candidate, output_gate = kept.gates.chunk(4, dim=-1)
    of_input, of_forget, of_candidate, of_output = of_gates.chunk(4, dim=-1)
    through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
    size = candidate.shape[-1]
    torch.mul(of_unprojected, kept.tanh_of_cells, out=of_output)
    of_unprojected *= output_gate
    of_cell += through_tanh.grad_input(of_unprojected, kept.tanh_of_cells, grad_input=of_unprojected)
    _through_clip(of_cell, kept.cells, clip)
    torch.mul(of_cell, candidate, out=of_input)
    torch.mul(of_cell, cell_before, out=of_forget)
    torch.mul(of_cell, input_gate, out=of_candidate)
    for gradient, gate in ((of_gates[..., : 2 * size], kept.gates[..., : 2 * size]), (of_output, output_gate)):
        through_sigmoid.grad_input(gradient, gate, grad_input=gradient)
    through_tanh.grad_input(of_candidate, candidate, grad_input=of_candidate)
    of_cell *= kept.gates[..., size : 2 * size]


def _write_clipped(values: torch.Tensor, clip: float | None, target: torch.Tensor) -> None:
    """Writes the values within the bound."""
    if clip is None:
        target.copy_(values)
    else:
        torch.clamp(values, -clip, clip, out=target)


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
    direction: Direction, clips: Clips, wanted: Sequence[bool], gradients: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of the tensors of a direction from the plain walk, which have gradients themselves if wanted."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that the gradients found here are those of this walk alone.
        copies = [tensor.view_as(tensor) for tensor in direction.tensors()]
        vectors, inputs, bias, recurrent, projection, hidden, cell = copies
        results, final = walk(
            lambda rows: nn.functional.linear(rows, inputs, bias),
            lambda rows: nn.functional.linear(rows, recurrent),
            lambda rows: nn.functional.linear(rows.to(projection.dtype), projection),
            clips,
            WalkedWords(vectors, direction.words.batch_sizes),
            (hidden, cell),
        )
    needed = [copy for copy, want in zip(copies, wanted, strict=True) if want]
    outputs = (results, *final)
    found = iter(torch.autograd.grad(outputs, needed, gradients, create_graph=create_graph, allow_unused=True))
    return [next(found) if want else None for want in wanted]


def _working_type(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


def _is_anything(hidden: torch.Tensor) -> bool:
    """Whether the recurrent product gives anything but 0; not asked of an accelerator, which would have to wait."""
    return hidden.device.type != "cpu" or bool(hidden.any())


__all__ = ["Direction", "PackedWeights", "Weights", "fused_walk"]
