"""The arithmetic between TensorFlow's layout and PyTorch's, each operation with its inverse."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .checkpoint import FloatArray

# TensorFlow's LSTM cell has its gates as i, j (candidate), f, o; ours has i, f, j, o. Swapping twice gives the first.
SWAP_GATES = (0, 2, 1, 3)
FORGET_GATE = 2


@dataclass(frozen=True)
class Operation:
    """One array of the original <-> one or more parameters of ours.

    Args:
        convert: The original array -> the parameters, in the order of the rule's targets.
        export: The parameters -> the original array; undoes `convert` bit for bit.
    """

    convert: Callable[[FloatArray], tuple[FloatArray, ...]]
    export: Callable[[tuple[FloatArray, ...]], FloatArray]


def swap_gates(array: FloatArray) -> FloatArray:
    """Exchanges the second and third quarter of the last axis.

    Args:
        array: (..., 4 * cell).
    """
    gates = array.reshape(*array.shape[:-1], 4, -1)
    return gates[..., SWAP_GATES, :].reshape(array.shape)


def add_padding_row(table: FloatArray) -> tuple[FloatArray]:
    """(261, dim) without the row of masked positions, or (262, dim) with it -> (262, dim)."""
    if table.shape[0] == 262:
        return (table,)
    return (np.concatenate([np.zeros_like(table[:1]), table]),)


def drop_padding_row(tables: tuple[FloatArray, ...]) -> FloatArray:
    """(n + 1, dim) -> (n, dim)."""
    return tables[0][1:]


def add_zero_row(table: FloatArray) -> tuple[FloatArray]:
    """(n, dim) -> (n + 1, dim), the new row in front."""
    return (np.concatenate([np.zeros_like(table[:1]), table]),)


def split_highway(array: FloatArray) -> tuple[FloatArray, FloatArray]:
    """AllenNLP's [transform; gate] of weights (2 n, n) or biases (2 n,) -> transform, carry.

    The gate multiplies the input of the layer, our carry the transform: sigmoid(-x) is 1 - sigmoid(x).
    """
    transform, gate = np.split(array, 2)
    return transform, -gate


def join_highway(arrays: tuple[FloatArray, ...]) -> FloatArray:
    """Transform, carry -> AllenNLP's [transform; gate]."""
    return np.concatenate([arrays[0], -arrays[1]])


def convert_convolution(kernel: FloatArray) -> tuple[FloatArray]:
    """(1, width, dim, count) -> (count, dim, width)."""
    return (kernel[0].transpose(2, 1, 0),)


def export_convolution(weights: tuple[FloatArray, ...]) -> FloatArray:
    """(count, dim, width) -> (1, width, dim, count)."""
    return weights[0].transpose(2, 1, 0)[np.newaxis]


def convert_gates(kernel: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(2 P, 4 C), rows [input; state] -> input weights (4 C, P), recurrent weights (4 C, P)."""
    inputs, states = np.split(swap_gates(kernel), 2)
    return inputs.T, states.T


def export_gates(weights: tuple[FloatArray, ...]) -> FloatArray:
    """Input weights (4 C, P), recurrent weights (4 C, P) -> (2 P, 4 C)."""
    return swap_gates(np.concatenate([weight.T for weight in weights]))


def convert_gate_bias(bias: FloatArray) -> tuple[FloatArray]:
    """(4 C,) -> (4 C,), with the 1 that TensorFlow adds to the forget gate while it runs."""
    gates = bias.reshape(4, -1).copy()
    gates[FORGET_GATE] += np.float32(1)
    return (swap_gates(gates.reshape(-1)),)


def export_gate_bias(biases: tuple[FloatArray, ...]) -> FloatArray:
    """(4 C,) -> (4 C,), without the 1 of the forget gate."""
    gates = swap_gates(biases[0]).reshape(4, -1).copy()
    gates[FORGET_GATE] = subtract_one(gates[FORGET_GATE])
    return gates.reshape(-1)


def subtract_one(totals: FloatArray) -> FloatArray:
    """Values b with b + 1 == total in float32.

    `total - 1` is such a value except beyond 2 ** 24, where it can be rounded to a neighbour of one. A total that is
    no sum of 1 and a float32 (one that was trained further may be so) gets the b whose sum is nearest to it.
    """
    one = np.float32(1)
    nearest = totals - one
    result = nearest.copy()
    for neighbour in (np.nextafter(nearest, np.float32(-np.inf)), np.nextafter(nearest, np.float32(np.inf))):
        better = (result + one != totals) & (neighbour + one == totals)
        result[better] = neighbour[better]
    return result


OPERATIONS = {
    "copy": Operation(lambda array: (array,), lambda arrays: arrays[0]),
    "one_number": Operation(lambda array: (array.reshape(1),), lambda arrays: arrays[0]),
    "transpose": Operation(lambda array: (array.T,), lambda arrays: arrays[0].T),
    "zero_row": Operation(add_zero_row, drop_padding_row),
    "highway": Operation(split_highway, join_highway),
    "character_table": Operation(add_padding_row, drop_padding_row),
    "convolution": Operation(convert_convolution, export_convolution),
    "gates": Operation(convert_gates, export_gates),
    "gate_bias": Operation(convert_gate_bias, export_gate_bias),
}
