"""Which vectors of a sentence are wanted: layers, pooling, boundaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .errors import SettingError

Layers = str | int | Sequence[int]

NAMED_LAYERS = ("mix", "all", "top", "average")

# Vectors (..., words, dim), at least one word -> (..., dim).
POOLINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda words: words.float().mean(dim=-2).to(words.dtype),
    "max": lambda words: words.amax(dim=-2),
    "sum": lambda words: words.float().sum(dim=-2).to(words.dtype),
    "first": lambda words: words[..., 0, :],
    "last": lambda words: words[..., -1, :],
}


@dataclass(frozen=True)
class Selection:
    """The choice, checked against a model.

    Args:
        layers: `mix` (the first representation), `all`, `top`, `average` (of all), the number of a layer (0 is the
            token layer, -1 the top), or several numbers.
        pool: How the words of a sentence become one vector, or None.
        boundaries: Whether `<S>` and `</S>` count as words.
        layer_count: L + 1 of the model.

    Raises:
        SettingError: There is no such layer or pooling.
    """

    layers: str | int | tuple[int, ...]
    pool: str | None
    boundaries: bool
    layer_count: int

    @classmethod
    def of(cls, layers: Layers, pool: str | None, boundaries: bool, layer_count: int) -> Selection:
        """Checks a choice and makes it unambiguous: numbers count from 0."""
        if pool is not None and pool not in POOLINGS:
            raise SettingError(f"pool {pool!r} is unknown: choose one of {', '.join(map(repr, POOLINGS))}, or None.")
        chosen: str | int | tuple[int, ...]
        if isinstance(layers, str):
            if layers not in NAMED_LAYERS:
                names = ", ".join(map(repr, NAMED_LAYERS))
                raise SettingError(
                    f"layers {layers!r} is unknown: choose one of {names}, a number or several numbers."
                )
            chosen = layers
        elif isinstance(layers, int):
            chosen = number_of_layer(layers, layer_count)
        else:
            chosen = tuple(number_of_layer(layer, layer_count) for layer in layers)
            if not chosen or len(set(chosen)) < len(chosen):
                raise SettingError(f"layers {list(layers)} must name each layer once, and at least one.")
        return cls(chosen, pool, boundaries, layer_count)

    @property
    def columns(self) -> list[str]:
        """A name for each vector of a word: `vectors` for one, `layer_0` and so on for several."""
        if self.layers == "all":
            return [f"layer_{layer}" for layer in range(self.layer_count)]
        if isinstance(self.layers, tuple):
            return [f"layer_{layer}" for layer in self.layers]
        return ["vectors"]

    @property
    def has_layer_axis(self) -> bool:
        """Whether the result has an axis for layers in front."""
        return self.layers == "all" or isinstance(self.layers, tuple)

    @property
    def needs_layers(self) -> bool:
        """Whether the layers themselves are asked for, beyond their mix."""
        return self.layers != "mix"

    def choose(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        """Takes the chosen of all L + 1 layers (..., dim): (..., dim), or (chosen, ..., dim)."""
        if self.layers == "all":
            return torch.stack(list(layers))
        if self.layers == "top":
            return layers[-1]
        if self.layers == "average":
            return torch.stack(list(layers)).float().mean(dim=0).to(layers[0].dtype)
        if isinstance(self.layers, tuple):
            return torch.stack([layers[layer] for layer in self.layers])
        assert isinstance(self.layers, int)
        return layers[self.layers]

    def pooled(self, words: torch.Tensor) -> torch.Tensor:
        """Pools vectors (..., words, dim) to (..., dim), zeros where there is no word; leaves them without `pool`."""
        if self.pool is None:
            return words
        return POOLINGS[self.pool](words) if words.shape[-2] else words.new_zeros(*words.shape[:-2], words.shape[-1])


def number_of_layer(layer: int, layer_count: int) -> int:
    """The number of a layer, from 0; negative ones count from the top.

    Raises:
        SettingError: There is no such layer.
    """
    if isinstance(layer, bool) or not isinstance(layer, int) or not -layer_count <= layer < layer_count:
        raise SettingError(
            f"There is no layer {layer!r}: the model has the layers 0 (the words alone) to {layer_count - 1}."
        )
    return layer % layer_count
