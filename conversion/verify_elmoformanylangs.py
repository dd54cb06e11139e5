"""The arithmetic of ELMoForManyLangs in NumPy, straight from its lexicons and weights, to compare a conversion with.

The LSTM is the one of `verify`, seen through the names and the layout of TensorFlow.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .checkpoint import SourceCheckpoint
from .verify import SENTENCES, DoubleArray, Expected, ReadTensor, bilm_layers, relu, sigmoid

SAMPLED = 12
"""Entries of each lexicon that are words of the sentences compared."""

LSTM_NAME = re.compile(r"RNN_(\d)/RNN/MultiRNNCell/Cell(\d+)/LSTMCell/(\w+)")


def evaluate(checkpoint: SourceCheckpoint) -> Expected:
    """Every layer for a few sentences, from zero states: those of `verify`, and entries of the lexicons as words."""

    def read(name: str) -> DoubleArray:
        return checkpoint.tensors[name].load().astype(np.float64)

    embedder = checkpoint.options["token_embedder"]
    room = embedder["max_characters_per_token"] - 2
    sentences = [*SENTENCES, sample(checkpoint.tokenizer["character_lexicon"].characters)]
    if "word_vocabulary" in checkpoint.tokenizer:
        sentences.append(sample(checkpoint.tokenizer["word_vocabulary"].words))
    framed = [["<bos>", *(word[:room] for word in sentence), "<eos>"] for sentence in sentences]
    words = [word for sentence in framed for word in sentence]
    vectors = token_layer(words, checkpoint.tokenizer, embedder, read)
    inputs = np.split(vectors, np.cumsum([len(sentence) for sentence in framed])[:-1])
    encoder = {**checkpoint.options["encoder"], "use_skip_connections": True}
    return Expected(bilm_layers(inputs, encoder, in_tensorflow_layout(read)), [], sentences)


def sample(entries: Sequence[str]) -> list[str]:
    """A few entries, from the first to the last."""
    places = np.linspace(0, len(entries) - 1, SAMPLED).round().astype(int)
    return [entries[place] for place in dict.fromkeys(places.tolist())]


def token_layer(
    words: Sequence[str], lexicons: Mapping[str, Any], embedder: Mapping[str, Any], read: ReadTensor
) -> DoubleArray:
    """Vectors of words, character convolutions, highway layers and projection: n words -> (n, P)."""
    number_of = {entry: number for number, entry in enumerate(lexicons["character_lexicon"].characters)}
    ids = np.full((len(words), embedder["max_characters_per_token"]), number_of["<pad>"])
    for row, word in zip(ids, words, strict=True):
        spelled = [word] if word in ("<bos>", "<eos>") else word
        inside = [number_of.get(character, number_of["<oov>"]) for character in spelled]
        row[: len(inside) + 2] = [number_of["<eow>"], *inside, number_of["<bow>"]]
    characters = read("token_embedder/char_emb_layer.embedding.weight")[ids]
    features = []
    for index, (width, _) in enumerate(embedder["filters"]):
        name = f"token_embedder/convolutions.{index}"
        windows = np.lib.stride_tricks.sliding_window_view(characters, width, axis=1)
        convolved = np.einsum("npcw,kcw->npk", windows, read(f"{name}.weight"), optimize=True).max(axis=1)
        activated = convolved + read(f"{name}.bias")
        features.append(relu(activated) if embedder["activation"] == "relu" else np.tanh(activated))
    hidden = np.concatenate(features, axis=-1)
    for index in range(embedder["n_highway"] or 0):
        name = f"token_embedder/highways._layers.{index}"
        transform, gate = np.split(hidden @ read(f"{name}.weight").T + read(f"{name}.bias"), 2, axis=-1)
        hidden = sigmoid(gate) * hidden + (1 - sigmoid(gate)) * relu(transform)
    if "word_vocabulary" in lexicons:
        place_of = {word: place for place, word in enumerate(lexicons["word_vocabulary"].words)}
        places = [place_of.get(word, place_of["<oov>"]) for word in words]
        hidden = np.concatenate([read("token_embedder/word_emb_layer.embedding.weight")[places], hidden], axis=-1)
    return hidden @ read("token_embedder/projection.weight").T + read("token_embedder/projection.bias")


def in_tensorflow_layout(read: ReadTensor) -> ReadTensor:
    """Reads the weights of an LSTM under AllenNLP's names, in TensorFlow's order of gates and with its forget bias."""

    def read_as_tensorflow(name: str) -> DoubleArray:
        found = LSTM_NAME.fullmatch(name)
        if found is None:
            raise KeyError(name)
        stored = f"encoder/{('forward', 'backward')[int(found[1])]}_layer_{found[2]}"
        if found[3] == "W_P_0":
            return read(f"{stored}.state_projection.weight").T
        if found[3] == "B":
            i, f, j, o = np.split(read(f"{stored}.state_linearity.bias"), 4)
            return np.concatenate([i, j, f - 1, o])
        both = [read(f"{stored}.{part}.weight") for part in ("input_linearity", "state_linearity")]
        i, f, j, o = np.split(np.concatenate(both, axis=1), 4)
        return np.concatenate([i, j, f, o]).T

    return read_as_tensorflow
