"""The arithmetic of the ELMo in a task model of AllenNLP in NumPy, to compare a conversion with.

The token layer and the LSTM are those of `verify`, seen through the names and the layout of TensorFlow.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from .checkpoint import SourceCheckpoint, StoredTensor
from .verify import (
    SENTENCES,
    DoubleArray,
    Expected,
    ReadTensor,
    bilm_layers,
    character_ids,
    read_allennlp_lstm,
    token_layer,
)

CONVOLUTION = re.compile(r"CNN/([Wb])_cnn_(\d+)")
HIGHWAY = re.compile(r"CNN_high_(\d+)/([Wb])_(carry|transform)")
TINY = np.finfo(np.float32).tiny


def evaluate(checkpoint: SourceCheckpoint, sentences: Sequence[Sequence[str]] = SENTENCES) -> Expected:
    """Every layer and every mix for a few sentences as one batch, from zero states."""

    def read(name: str) -> DoubleArray:
        return checkpoint.tensors[name].load().astype(np.float64)

    cnn, settings = checkpoint.options["char_cnn"], checkpoint.options["elmo"]
    rows = [character_ids(sentence, cnn["max_characters_per_token"]) for sentence in sentences]
    read_weights = in_tensorflow_layout(read)
    words = token_layer(np.concatenate(rows), cnn, read_weights, project=True)
    inputs = np.split(words, np.cumsum([len(row) for row in rows])[:-1])
    layers = bilm_layers(inputs, {**checkpoint.options["lstm"], "use_skip_connections": True}, read_weights)
    mixed = [normalise(layer) for layer in layers] if settings.get("do_layer_norm") else layers
    return Expected(
        layers,
        [
            mix_layers(mixed, read(name), read(name.replace("scalar_parameters", "gamma")))
            for name in mix_names(checkpoint.tensors)
        ],
    )


def mix_names(tensors: Mapping[str, StoredTensor]) -> list[str]:
    """The names of the mixes' scalars, in the order of their numbers."""
    found = [name for name in tensors if re.fullmatch(r"scalar_mix_\d+\.scalar_parameters", name)]
    return sorted(found, key=lambda name: int(re.findall(r"\d+", name)[0]))


def mix_layers(layers: Sequence[Sequence[DoubleArray]], weights: DoubleArray, scale: DoubleArray) -> list[DoubleArray]:
    """AllenNLP's `ScalarMix`: gamma * sum_j softmax(weights)_j layer_j, for each sentence."""
    exponentials = np.exp(weights - np.max(weights))
    shares = exponentials / exponentials.sum()
    return [
        scale.item() * sum(share * layer for share, layer in zip(shares, sentence, strict=True))
        for sentence in zip(*layers, strict=True)
    ]


def normalise(sentences: Sequence[DoubleArray]) -> list[DoubleArray]:
    """AllenNLP's layer norm: mean and variance over all words of the batch, boundaries included."""
    everything = np.concatenate(sentences)
    deviation = np.sqrt(((everything - everything.mean()) ** 2).mean() + TINY)
    return [(sentence - everything.mean()) / deviation for sentence in sentences]


def in_tensorflow_layout(read: ReadTensor) -> ReadTensor:
    """Reads weights under TensorFlow's names, in its layout, its order of gates and with its forget bias."""
    embedder = "_elmo_lstm._token_embedder"

    def read_as_tensorflow(name: str) -> DoubleArray:
        if name == "char_embed":
            return read(f"{embedder}._char_embedding_weights")
        if name.startswith("CNN_proj/"):
            return read(f"{embedder}._projection.{'weight' if name.endswith('W_proj') else 'bias'}").T
        if found := CONVOLUTION.fullmatch(name):
            stored = f"{embedder}.char_conv_{found[2]}"
            if found[1] == "b":
                return read(f"{stored}.bias")
            return read(f"{stored}.weight").transpose(2, 1, 0)[np.newaxis]
        if found := HIGHWAY.fullmatch(name):
            kind = "weight" if found[2] == "W" else "bias"
            transform, gate = np.split(read(f"{embedder}._highways._layers.{found[1]}.{kind}"), 2)
            # The gate multiplies the input, TensorFlow's carry the transform.
            return -gate.T if found[3] == "carry" else transform.T
        return read_allennlp_lstm(read, "_elmo_lstm._elmo_lstm.", name)

    return read_as_tensorflow
