"""The arithmetic of ELMoForManyLangs in NumPy, straight from its lexicons and weights, to compare a conversion with.

The LSTM is the one of `verify`, seen through the names and the layout of TensorFlow.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from .checkpoint import SourceCheckpoint
from .verify import SENTENCES, DoubleArray, Expected, ReadTensor, bilm_layers, read_allennlp_lstm, relu, sigmoid

BOUNDARIES = ("<bos>", "<eos>")

SAMPLED = 12
"""Entries of each lexicon that are words of the sentences compared."""


def evaluate(checkpoint: SourceCheckpoint) -> Expected:
    """Every layer for a few sentences, from zero states: those of `verify`, and entries of the lexicons as words."""

    def read(name: str) -> DoubleArray:
        return checkpoint.tensors[name].load().astype(np.float64)

    embedder = checkpoint.options["token_embedder"]
    room = embedder["max_characters_per_token"] - 2
    sentences = [*SENTENCES, sample(checkpoint.tokenizer["character_lexicon"].characters)]
    if "word_vocabulary" in checkpoint.tokenizer:
        sentences.append(sample(checkpoint.tokenizer["word_vocabulary"].words))
    framed = [["<bos>", *sentence, "<eos>"] for sentence in sentences]
    words = [word if word in BOUNDARIES else word[:room] for sentence in framed for word in sentence]
    vectors = token_layer(words, checkpoint.tokenizer, embedder, read)
    inputs = np.split(vectors, np.cumsum([len(sentence) for sentence in framed])[:-1])
    encoder = {**checkpoint.options["encoder"], "use_skip_connections": True}
    return Expected(bilm_layers(inputs, encoder, partial(read_allennlp_lstm, read, "encoder/")), [], sentences)


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
        spelled = [word] if word in BOUNDARIES else word
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
