"""The original's arithmetic in NumPy, straight from the original arrays: what a conversion is compared with.

It follows TensorFlow's equations in TensorFlow's layout and shares nothing with the mapping, the tokenizer or the
model, so that a mistake there cannot hide. It is for a handful of words.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import SourceCheckpoint, StoredTensor

DoubleArray = NDArray[np.float64]
ReadTensor = Callable[[str], DoubleArray]

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = range(256, 261)

SENTENCES = (("The", "crane", "flew", "."), ("Ёлка", "naïve", "un" * 24))
"""Words of one and of several bytes a character, up to the usual limit of 48; sentences of different length."""


LSTM_NAME = re.compile(r"RNN_(\d)/RNN/MultiRNNCell/Cell(\d+)/LSTMCell/(\w+)")


@dataclass(frozen=True)
class Expected:
    """What the original equations give for a few sentences.

    Args:
        layers: For each of the L + 1 layers, for each sentence, (words + 2, 2 P) with the boundaries; the token layer
            twice.
        mixes: For each mix of the layers that the file has, for each sentence, (words + 2, 2 P).
        sentences: The words of the sentences, without boundaries.
    """

    layers: list[list[DoubleArray]]
    mixes: list[list[DoubleArray]]
    sentences: Sequence[Sequence[str]] = SENTENCES

    @property
    def num_words(self) -> int:
        """Words of all sentences, boundaries included."""
        return sum(len(sentence) + 2 for sentence in self.sentences)


HUB_NAMES = (
    ("rnn/lstm_cell/projection/kernel", "LSTMCell/W_P_0"),
    ("rnn/lstm_cell/kernel", "LSTMCell/W_0"),
    ("rnn/lstm_cell/bias", "LSTMCell/B"),
)
TRAINING_NAMES = (
    ("rnn/multi_rnn_cell/cell_", "RNN/MultiRNNCell/Cell"),
    ("lstm_cell/projection/kernel", "LSTMCell/W_P_0"),
    ("lstm_cell/kernel", "LSTMCell/W_0"),
    ("lstm_cell/bias", "LSTMCell/B"),
)
"""Parts of TensorFlow's names, and what AllenNLP calls them."""


def evaluate_allennlp(checkpoint: SourceCheckpoint, sentences: Sequence[Sequence[str]] = SENTENCES) -> Expected:
    """The layers of an HDF5 file."""
    return Expected(evaluate(checkpoint.options, checkpoint.tensors, sentences), [])


def evaluate_training(checkpoint: SourceCheckpoint, sentences: Sequence[Sequence[str]] = SENTENCES) -> Expected:
    """The layers of a training checkpoint."""
    tensors = in_allennlp_names(checkpoint.tensors, "lm/", TRAINING_NAMES)
    return Expected(evaluate(checkpoint.options, tensors, sentences), [])


def evaluate_hub(checkpoint: SourceCheckpoint, sentences: Sequence[Sequence[str]] = SENTENCES) -> Expected:
    """The layers and the mix of a TF-Hub module."""
    layers = evaluate(checkpoint.options, in_allennlp_names(checkpoint.tensors, "bilm/", HUB_NAMES), sentences)
    mix = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("aggregation/")}
    weights = [tensor for name, tensor in mix.items() if name.endswith(("_W", "/weights"))]
    scales = [tensor for name, tensor in mix.items() if name.endswith(("_gamma", "/scaling"))]
    return Expected(
        layers,
        [
            mix_layers(layers, weight.load().astype(np.float64), scale.load().astype(np.float64))
            for weight, scale in zip(weights, scales, strict=True)
        ],
    )


def in_allennlp_names(
    tensors: Mapping[str, StoredTensor], prefix: str, parts: Sequence[tuple[str, str]]
) -> dict[str, StoredTensor]:
    """The tensors below a prefix, under the names that AllenNLP would give them."""
    renamed = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            for theirs, allennlps in parts:
                name = name.replace(theirs, allennlps)
            renamed[name] = tensor
    return renamed


def mix_layers(layers: Sequence[Sequence[DoubleArray]], weights: DoubleArray, scale: DoubleArray) -> list[DoubleArray]:
    """bilm-tf's `weight_layers`: scale * sum_j softmax(weights + 1 / (L + 1))_j layer_j, for each sentence."""
    exponentials = np.exp(weights + 1 / len(weights) - np.max(weights))
    shares = exponentials / exponentials.sum()
    return [
        scale.item() * sum(share * layer for share, layer in zip(shares, sentence, strict=True))
        for sentence in zip(*layers, strict=True)
    ]


def evaluate(
    options: Mapping[str, Any], tensors: Mapping[str, Any], sentences: Sequence[Sequence[str]] = SENTENCES
) -> list[list[DoubleArray]]:
    """Every layer for a few sentences, from zero states.

    Args:
        options: The original options.
        tensors: Name in AllenNLP's layout -> `StoredTensor`; each is read once.
        sentences: Lists of words.

    Returns:
        For each of the L + 1 layers, for each sentence, (words + 2, 2 P) with the boundaries; the token layer twice.
    """

    def read(name: str) -> DoubleArray:
        return tensors[name].load().astype(np.float64)

    cnn = options["char_cnn"]
    rows = [character_ids(sentence, cnn["max_characters_per_token"]) for sentence in sentences]
    ends = np.cumsum([len(row) for row in rows])[:-1]
    words = token_layer(np.concatenate(rows), cnn, read, "CNN_proj/W_proj" in tensors)
    return bilm_layers(np.split(words, ends), options["lstm"], read)


def bilm_layers(inputs: list[DoubleArray], lstm: Mapping[str, Any], read: ReadTensor) -> list[list[DoubleArray]]:
    """Every layer of the biLM, the token layer twice among them: sentences (words, P) -> (words, 2 P)."""
    directions = [inputs, [sentence[::-1] for sentence in inputs]]
    layers = [[np.concatenate([sentence, sentence], axis=-1) for sentence in inputs]]
    for layer in range(lstm.get("n_layers", 1)):
        skip = layer > 0 and bool(lstm.get("use_skip_connections"))
        directions = [
            lstm_layer(inputs, f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell", lstm, skip, read)
            for direction, inputs in enumerate(directions)
        ]
        layers.append([np.concatenate([left, right[::-1]], axis=-1) for left, right in zip(*directions, strict=True)])
    return layers


def character_ids(sentence: Sequence[str], length: int) -> NDArray[np.int64]:
    """Ids of the words and of both boundaries, counted without the row of masked positions: (words + 2, length)."""
    spelled = [list(word.encode("utf-8")[: length - 2]) for word in sentence]
    ids = np.full((len(sentence) + 2, length), PADDING)
    for row, characters in zip(ids, [[BEGIN_SENTENCE], *spelled, [END_SENTENCE]], strict=True):
        row[: len(characters) + 2] = [BEGIN_WORD, *characters, END_WORD]
    return ids


def token_layer(ids: NDArray[np.int64], cnn: Mapping[str, Any], read: ReadTensor, project: bool) -> DoubleArray:
    """Character convolutions, highway layers and projection: (words, length) -> (words, P)."""
    characters = read("char_embed")[-261:][ids]
    activation = relu if cnn["activation"] == "relu" else np.tanh
    features = []
    for index, (width, _) in enumerate(cnn["filters"]):
        kernel = read(f"CNN/W_cnn_{index}")[0]
        windows = np.lib.stride_tricks.sliding_window_view(characters, width, axis=1)
        convolved = np.einsum("wpdk,kdc->wpc", windows, kernel, optimize=True) + read(f"CNN/b_cnn_{index}")
        features.append(activation(convolved.max(axis=1)))
    hidden = np.concatenate(features, axis=-1)
    for index in range(cnn.get("n_highway") or 0):
        name = f"CNN_high_{index}"
        carry = sigmoid(hidden @ read(f"{name}/W_carry") + read(f"{name}/b_carry"))
        transform = relu(hidden @ read(f"{name}/W_transform") + read(f"{name}/b_transform"))
        hidden = carry * transform + (1 - carry) * hidden
    return hidden @ read("CNN_proj/W_proj") + read("CNN_proj/b_proj") if project else hidden


def lstm_layer(
    sentences: Sequence[DoubleArray], name: str, lstm: Mapping[str, Any], skip: bool, read: ReadTensor
) -> list[DoubleArray]:
    """One layer in one direction, sentence by sentence in processing order: (words, P) -> (words, P)."""
    kernel, bias, projection = (read(f"{name}/{part}") for part in ("W_0", "B", "W_P_0"))
    cell_bound, output_bound = lstm.get("cell_clip") or np.inf, lstm.get("proj_clip") or np.inf
    outputs = []
    for sentence in sentences:
        cell, output = np.zeros(projection.shape[0]), np.zeros(projection.shape[1])
        steps = []
        for word in sentence:
            i, j, f, o = np.split(np.concatenate([word, output]) @ kernel + bias, 4)
            cell = np.clip(sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j), -cell_bound, cell_bound)
            output = np.clip((sigmoid(o) * np.tanh(cell)) @ projection, -output_bound, output_bound)
            steps.append(output + word if skip else output)
        outputs.append(np.array(steps))
    return outputs


def read_allennlp_lstm(read: ReadTensor, prefix: str, name: str) -> DoubleArray:
    """A tensor of an LSTM in TensorFlow's layout, gates as i, j, f, o, from AllenNLP's, which has them as i, f, j, o.

    Args:
        read: Reads a tensor.
        prefix: What AllenNLP's names begin with.
        name: TensorFlow's name, `RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0` and its like.

    Raises:
        KeyError: When the name is none of an LSTM.
    """
    found = LSTM_NAME.fullmatch(name)
    if found is None:
        raise KeyError(name)
    stored = f"{prefix}{('forward', 'backward')[int(found[1])]}_layer_{found[2]}"
    if found[3] == "W_P_0":
        return read(f"{stored}.state_projection.weight").T
    if found[3] == "B":
        i, f, j, o = np.split(read(f"{stored}.state_linearity.bias"), 4)
        return np.concatenate([i, j, f - 1, o])
    both = [read(f"{stored}.{part}.weight") for part in ("input_linearity", "state_linearity")]
    i, f, j, o = np.split(np.concatenate(both, axis=1), 4)
    return np.concatenate([i, j, f, o]).T


def relu(x: DoubleArray) -> DoubleArray:
    """max(x, 0)."""
    return np.maximum(x, 0)


def sigmoid(x: DoubleArray) -> DoubleArray:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))
