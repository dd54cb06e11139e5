"""A bidirectional language model in NumPy, written from the papers and TensorFlow's equations alone.

It shares no line and no idea of layout with the package: weights are named and shaped as bilm-tf wrote them to HDF5,
every sentence is computed on its own, one step after the other, in float64. What agrees with it agrees with the
definition.

Sources: Peters et al. 2018 (the biLM and the mix of its layers), Kim et al. 2016 (characters, CNN, highway), Sak et
al. 2014 (the projected LSTM), `tf.nn.rnn_cell.LSTMCell` (gates, forget bias, clips), AllenNLP's `ScalarMix` (layer
norm), bilm-tf's `UnicodeCharsVocabulary` (character ids).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 256, 257, 258, 259, 260
N_CHARACTERS = 261


@dataclass(frozen=True)
class Architecture:
    """The numbers that an options file holds."""

    char_dim: int
    filters: tuple[tuple[int, int], ...]
    projection: int
    cell: int
    layers: int = 2
    highways: int = 2
    activation: str = "relu"
    max_characters: int = 50
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    skip: bool = True
    token_projection: bool | None = None

    @property
    def n_filters(self) -> int:
        return sum(count for _, count in self.filters)

    @property
    def has_token_projection(self) -> bool:
        return self.n_filters != self.projection if self.token_projection is None else self.token_projection

    def options(self) -> dict[str, Any]:
        """The architecture as the original options.json writes it."""
        lstm: dict[str, Any] = {
            "dim": self.cell,
            "n_layers": self.layers,
            "projection_dim": self.projection,
            "use_skip_connections": self.skip,
        }
        if self.cell_clip is not None:
            lstm["cell_clip"] = self.cell_clip
        if self.projection_clip is not None:
            lstm["proj_clip"] = self.projection_clip
        return {
            "lstm": lstm,
            "char_cnn": {
                "activation": self.activation,
                "embedding": {"dim": self.char_dim},
                "filters": [list(pair) for pair in self.filters],
                "max_characters_per_token": self.max_characters,
                "n_characters": N_CHARACTERS + 1,
                "n_highway": self.highways,
            },
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Architecture:
        lstm, cnn = options["lstm"], options["char_cnn"]
        return cls(
            char_dim=cnn["embedding"]["dim"],
            filters=tuple((width, count) for width, count in cnn["filters"]),
            projection=lstm["projection_dim"],
            cell=lstm["dim"],
            layers=lstm["n_layers"],
            highways=cnn.get("n_highway") or 0,
            activation=cnn["activation"],
            max_characters=cnn["max_characters_per_token"],
            cell_clip=lstm.get("cell_clip"),
            projection_clip=lstm.get("proj_clip"),
            skip=lstm["use_skip_connections"],
        )

    def but(self, **changes: Any) -> Architecture:
        """The same architecture with some numbers changed."""
        return Architecture(**{**asdict(self), **changes})


def lstm_name(direction: int, layer: int, array: str) -> str:
    """The name of an LSTM array in an HDF5 file; direction 0 is forward, 1 backward; array W_0, B or W_P_0."""
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{array}"


def random_weights(architecture: Architecture, seed: int) -> dict[str, Array]:
    """Weights under their HDF5 names, large enough for saturated gates and for cells and outputs beyond the clips.

    They are multiples of 2**-12, so that float32 holds them without rounding, the forget bias of 1 added or not.
    """
    a = architecture
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float) -> Array:
        return np.round(rng.normal(0.0, scale, shape) * 4096) / 4096

    weights = {"char_embed": normal(N_CHARACTERS, a.char_dim, scale=1.0)}
    for i, (width, count) in enumerate(a.filters):
        weights[f"CNN/W_cnn_{i}"] = normal(1, width, a.char_dim, count, scale=(width * a.char_dim) ** -0.5)
        weights[f"CNN/b_cnn_{i}"] = normal(count, scale=0.3)
    n = a.n_filters
    for k in range(a.highways):
        for gate in ("carry", "transform"):
            weights[f"CNN_high_{k}/W_{gate}"] = normal(n, n, scale=n**-0.5)
            weights[f"CNN_high_{k}/b_{gate}"] = normal(n, scale=0.3)
    if a.has_token_projection:
        weights["CNN_proj/W_proj"] = normal(n, a.projection, scale=n**-0.5)
        weights["CNN_proj/b_proj"] = normal(a.projection, scale=0.3)
    for direction in (0, 1):
        for layer in range(a.layers):
            fan_in = 2 * a.projection
            weights[lstm_name(direction, layer, "W_0")] = normal(fan_in, 4 * a.cell, scale=2.0 * fan_in**-0.5)
            weights[lstm_name(direction, layer, "B")] = normal(4 * a.cell, scale=1.0)
            weights[lstm_name(direction, layer, "W_P_0")] = normal(a.cell, a.projection, scale=4.0 * a.cell**-0.5)
    return weights


def write_checkpoint(folder: Path, architecture: Architecture, weights: Mapping[str, Array]) -> tuple[Path, Path]:
    """Writes options.json and weights.hdf5 as bilm-tf does (in the arrays' own precision) and returns their paths."""
    options_path, weights_path = folder / "options.json", folder / "weights.hdf5"
    options_path.write_text(json.dumps(architecture.options()))
    with h5py.File(weights_path, "w") as file:
        for name, array in weights.items():
            file[name] = array
    return options_path, weights_path


def read_checkpoint(options_path: Path, weights_path: Path) -> tuple[Architecture, dict[str, Array]]:
    """Reads an original checkpoint; arrays come back in float64."""
    weights: dict[str, Array] = {}

    def collect(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            weights[name] = np.asarray(item[...], dtype=np.float64)

    with h5py.File(weights_path, "r") as file:
        file.visititems(collect)
    return Architecture.from_options(json.loads(options_path.read_text())), weights


def characters_of(word: str, max_characters: int = 50, special_words: bool = True) -> Array:
    """The stored character ids of a word, (max_characters,): UTF-8 bytes between begin and end of word, all + 1.

    Args:
        word: Any string; the empty one has only its begin and its end.
        max_characters: Length of the row.
        special_words: Whether `<S>` and `</S>` are the sentence boundaries or ordinary bytes.
    """
    if special_words and word == "<S>":
        inner = [BEGIN_SENTENCE]
    elif special_words and word == "</S>":
        inner = [END_SENTENCE]
    else:
        inner = list(word.encode("utf-8"))[: max_characters - 2]
    ids = [BEGIN_WORD, *inner, END_WORD]
    ids += [PADDING] * (max_characters - len(ids))
    return np.array(ids, dtype=np.int64) + 1


def characters_of_sentence(words: Sequence[str], max_characters: int = 50, special_words: bool = True) -> Array:
    """The stored character ids of a sentence between its boundaries, (words + 2, max_characters)."""
    rows = [characters_of(word, max_characters, special_words) for word in words]
    begin, end = characters_of("<S>", max_characters), characters_of("</S>", max_characters)
    return np.stack([begin, *rows, end])


def sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def clip(x: Array, limit: float | None) -> Array:
    return x if limit is None else np.minimum(np.maximum(x, -limit), limit)


@dataclass
class States:
    """States of all rows of a batch: hidden (layers, rows, 2P) and cell (layers, rows, 2C), [forward; backward]."""

    hidden: Array
    cell: Array


@dataclass
class BatchOutput:
    """What a batch gives: for each sentence its layers, each (words + 2, 2P), and the states after it."""

    layers: list[list[Array]]
    states: States


class ReferenceBiLm:
    """The biLM, given its architecture and its arrays under their HDF5 names."""

    def __init__(self, architecture: Architecture, weights: Mapping[str, Array]) -> None:
        self.architecture = architecture
        self.weights = {name: np.asarray(array, dtype=np.float64) for name, array in weights.items()}

    def token_vector(self, characters: Array) -> Array:
        """The context-free vector (P,) of one row of stored character ids."""
        a, w = self.architecture, self.weights
        table = np.concatenate([np.zeros((1, a.char_dim)), w["char_embed"]])
        text = table[characters]
        features = []
        for i, (width, _) in enumerate(a.filters):
            kernel, bias = w[f"CNN/W_cnn_{i}"][0], w[f"CNN/b_cnn_{i}"]
            windows = np.stack([text[start : start + width] for start in range(len(text) - width + 1)])
            best = (np.einsum("swd,wdf->sf", windows, kernel) + bias).max(axis=0)
            features.append(np.tanh(best) if a.activation == "tanh" else np.maximum(best, 0.0))
        x = np.concatenate(features)
        for k in range(a.highways):
            carry = sigmoid(x @ w[f"CNN_high_{k}/W_carry"] + w[f"CNN_high_{k}/b_carry"])
            transform = np.maximum(x @ w[f"CNN_high_{k}/W_transform"] + w[f"CNN_high_{k}/b_transform"], 0.0)
            x = carry * transform + (1.0 - carry) * x
        if a.has_token_projection:
            x = x @ w["CNN_proj/W_proj"] + w["CNN_proj/b_proj"]
        return x

    def token_layer(self, sentence: Array) -> Array:
        """The token layer (length, P) of a sentence's character ids (length, max_characters)."""
        return np.stack([self.token_vector(characters) for characters in sentence])

    def lstm(self, x: Array, direction: int, layer: int, h: Array, c: Array) -> tuple[Array, Array, Array]:
        """One projected, clipped LSTM over x (length, P) in the order given.

        Returns:
            The outputs (length, P) and the last h (P,) and c (C,).
        """
        a, w = self.architecture, self.weights
        kernel, bias = w[lstm_name(direction, layer, "W_0")], w[lstm_name(direction, layer, "B")]
        projection = w[lstm_name(direction, layer, "W_P_0")]
        outputs = []
        for step in x:
            i, j, f, o = np.split(np.concatenate([step, h]) @ kernel + bias, 4)
            c = clip(sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j), a.cell_clip)
            h = clip((sigmoid(o) * np.tanh(c)) @ projection, a.projection_clip)
            outputs.append(h)
        return np.stack(outputs), h, c

    def sentence(self, characters: Array, hidden: Array, cell: Array) -> tuple[list[Array], Array, Array]:
        """All layers of one sentence.

        Args:
            characters: (length, max_characters), boundaries included.
            hidden: States to start from, (layers, 2P).
            cell: (layers, 2C).

        Returns:
            The token layer twice and every biLM layer, each (length, 2P), and the states at the end.
        """
        a = self.architecture
        tokens = self.token_layer(characters)
        by_direction: list[list[Array]] = []
        hidden, cell = hidden.copy(), cell.copy()
        for direction in (0, 1):
            mine = slice(direction * a.projection, (direction + 1) * a.projection)
            my_cells = slice(direction * a.cell, (direction + 1) * a.cell)
            x = tokens if direction == 0 else tokens[::-1]
            outputs = [x]
            for layer in range(a.layers):
                y, hidden[layer, mine], cell[layer, my_cells] = self.lstm(
                    x, direction, layer, hidden[layer, mine], cell[layer, my_cells]
                )
                x = x + y if a.skip and layer > 0 else y
                outputs.append(x)
            by_direction.append(outputs if direction == 0 else [output[::-1] for output in outputs])
        return [np.concatenate(pair, axis=1) for pair in zip(*by_direction, strict=True)], hidden, cell

    def batch(self, sentences: Sequence[Array], states: States | None = None) -> BatchOutput:
        """All sentences of a batch; row r starts from row r of `states`, where there is such a row, else from zero.

        A sentence without any row keeps the states it came with, as do rows beyond this batch.
        """
        a = self.architecture
        known = 0 if states is None else states.hidden.shape[1]
        rows = max(known, len(sentences))
        hidden, cell = np.zeros((a.layers, rows, 2 * a.projection)), np.zeros((a.layers, rows, 2 * a.cell))
        if states is not None:
            hidden[:, :known], cell[:, :known] = states.hidden, states.cell
        outputs: list[list[Array]] = []
        for row, characters in enumerate(sentences):
            if len(characters) == 0:
                outputs.append([np.zeros((0, 2 * a.projection))] * (a.layers + 1))
                continue
            layers, hidden[:, row], cell[:, row] = self.sentence(characters, hidden[:, row], cell[:, row])
            outputs.append(layers)
        return BatchOutput(outputs, States(hidden, cell))


def softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max())
    return shifted / shifted.sum()


def mix(layers: Sequence[Sequence[Array]], parameters: Array, gamma: float, layer_norm: bool = False) -> list[Array]:
    """The ELMo vectors of every sentence of a batch: gamma * sum_j softmax(parameters)_j * layer_j.

    Args:
        layers: For each sentence its layers, each (length, 2P).
        parameters: (layers + 1,), before the softmax.
        gamma: The scale.
        layer_norm: Subtract from each layer the mean over all words of the batch and all dimensions, and divide it by
            their standard deviation (AllenNLP's layer norm, which depends on the batch).
    """
    mixed = [np.zeros_like(sentence[0]) for sentence in layers]
    for j, weight in enumerate(softmax(np.asarray(parameters, dtype=np.float64))):
        values = np.concatenate([sentence[j].ravel() for sentence in layers])
        mean, scale = (values.mean(), np.sqrt(values.var() + 1e-13)) if layer_norm else (0.0, 1.0)
        for total, sentence in zip(mixed, layers, strict=True):
            total += gamma * weight * (sentence[j] - mean) / scale
    return mixed
