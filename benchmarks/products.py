"""The matrix products of ELMo alone: what no implementation can leave out, with the fastest kernels of PyTorch.

Counted for each batch: the convolutions (each place in a word and one behind it), highways and projection of the
distinct words that reach the token layer; the input product of each layer and direction, in the first layer over the
distinct words, in the others over all at once; the recurrent product and the projection of each step, over
the rows that still have a word. The first step starts from zeros and has no recurrent product. Everything else
(windows of characters, gates, clips, gathering) is left out, and the inputs lie in the cache, so that the sum is a
lower bound.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

TOKEN, INPUT, RECURRENT, PROJECTION = "token layer", "input", "recurrent", "projection"
KINDS = (TOKEN, INPUT, RECURRENT, PROJECTION)


@dataclass(frozen=True)
class Product:
    """(rows, inputs) times (inputs, outputs).

    Args:
        kind: One of `KINDS`.
        weight: Which weight, equal for equal weights.
        rows: Rows of the left factor.
        inputs: Columns of the left factor.
        outputs: Columns of the result.
    """

    kind: str
    weight: str
    rows: int
    inputs: int
    outputs: int


def token_products(config: Any, words: int, places: int) -> list[Product]:
    """The products of the token layer for so many distinct words, and so many places of their convolutions in all."""
    filters = config.num_filters
    products = [
        Product(
            TOKEN,
            f"convolution {index}",
            places,
            width * config.character_embedding_size,
            count,
        )
        for index, (width, count) in enumerate(config.filters)
    ]
    for index in range(config.num_highway_layers):
        products += [Product(TOKEN, f"{gate} {index}", words, filters, filters) for gate in ("carry", "transform")]
    if config.use_token_projection:
        products.append(Product(TOKEN, "projection", words, filters, config.projection_size))
    return products


def lstm_products(config: Any, lengths: list[int], distinct: int) -> list[Product]:
    """The products of all layers and directions for a batch of such lengths, boundaries counted.

    Args:
        config: An `ElmoConfig`.
        lengths: Words of each sentence.
        distinct: Distinct words of the batch.
    """
    steps = [sum(length > step for length in lengths) for step in range(max(lengths))]
    size, cell = config.projection_size, config.cell_size
    products = []
    for lstm in range(2 * config.num_hidden_layers):
        words = sum(lengths) if lstm > 1 else distinct
        products.append(Product(INPUT, f"input {lstm}", words, size, 4 * cell))
        for step, rows in enumerate(steps):
            if step:
                products.append(Product(RECURRENT, f"recurrent {lstm}", rows, size, 4 * cell))
            products.append(Product(PROJECTION, f"projection {lstm}", rows, cell, size))
    return products


def packed_product(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A product with a weight that oneDNN has packed once; what PyTorch's own compiler emits."""
    operators = torch.ops.mkldnn
    packed = operators._reorder_linear_weight(weight)
    return lambda rows: operators._linear_pointwise(rows, packed, None, "none", [], "")


def plain_product(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """`nn.functional.linear`."""
    return lambda rows: nn.functional.linear(rows, weight)


KERNELS = {"linear": plain_product, "oneDNN packed": packed_product}


class ProductTimer:
    """Runs lists of products on random numbers, on the CPU.

    Args:
        dtype: Type of the numbers.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.kernels: dict[str, dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {name: {} for name in KERNELS}

    @torch.inference_mode()
    def seconds(self, products: Iterable[Product]) -> dict[str, dict[str, float]]:
        """Kernel -> kind -> seconds of all products of the kind, run in order."""
        products = list(products)
        largest = Counter[int]()
        for product in products:
            largest[product.inputs] = max(largest[product.inputs], product.rows)
        rows = {inputs: self._random(count, inputs) for inputs, count in largest.items()}
        self._prepare(products)
        return {name: self._run(products, rows, weights) for name, weights in self.kernels.items()}

    def _random(self, rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns) / columns**0.5).to(self.dtype)

    def _prepare(self, products: list[Product]) -> None:
        for product in products:
            for name, weights in self.kernels.items():
                if product.weight not in weights:
                    weights[product.weight] = KERNELS[name](self._random(product.outputs, product.inputs))

    @staticmethod
    def _run(products: list[Product], rows: dict[int, torch.Tensor], weights: dict[str, Any]) -> dict[str, float]:
        seconds = dict.fromkeys(KINDS, 0.0)
        for product in products:
            factor = rows[product.inputs][: product.rows]
            kernel = weights[product.weight]
            start = time.perf_counter()
            kernel(factor)
            seconds[product.kind] += time.perf_counter() - start
        return seconds


def fastest(seconds: dict[str, dict[str, float]]) -> dict[str, float]:
    """For each kind of product the time of the kernel that is fastest for it."""
    return {kind: min(by_kind[kind] for by_kind in seconds.values()) for kind in KINDS}
