"""Checkpoints as ELMoForManyLangs writes them, tiny and random, and its way from words to ids, word by word."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

CHARACTERS = [
    *"abcdefghijklmnopqrstuvwxyzTHY.,äßМыл水",
    "\u3000",
    "<bos>",
    "<eos>",
    "<oov>",
    "<pad>",
    "<bow>",
    "<eow>",
]
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "fox", "水", "\u3000", "x" * 18]
ARCHITECTURE: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 6, "cell_clip": 0.5, "proj_clip": 0.3, "dim": 9, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [4, 5]],
        "n_highway": 2,
        "word_dim": 7,
        "char_dim": 5,
        "max_characters_per_token": 20,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 8},
    "dropout": 0.1,
}


def architecture(**changes: Any) -> dict[str, Any]:
    """The architecture, with changes of single options: `word_dim=0`, `cell_clip=None`."""
    options = copy.deepcopy(ARCHITECTURE)
    for name, value in changes.items():
        section = "encoder" if name in options["encoder"] else "token_embedder"
        options[section][name] = value
    return options


def state_dicts(options: dict[str, Any], characters: int, words: int) -> dict[str, dict[str, torch.Tensor]]:
    """Random weights of both files."""
    cnn, lstm = options["token_embedder"], options["encoder"]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    features = sum(count for _, count in cnn["filters"])
    projection, cell = lstm["projection_dim"], lstm["dim"]
    embedder = {}
    if cnn["word_dim"]:
        embedder["word_emb_layer.embedding.weight"] = random(words, cnn["word_dim"])
    embedder["char_emb_layer.embedding.weight"] = random(characters, cnn["char_dim"])
    for index, (width, count) in enumerate(cnn["filters"]):
        embedder[f"convolutions.{index}.weight"] = random(count, cnn["char_dim"], width)
        embedder[f"convolutions.{index}.bias"] = random(count)
    for index in range(cnn["n_highway"]):
        embedder[f"highways._layers.{index}.weight"] = random(2 * features, features) / features**0.5
        embedder[f"highways._layers.{index}.bias"] = random(2 * features)
    embedder["projection.weight"] = random(projection, features + cnn["word_dim"]) / features**0.5
    embedder["projection.bias"] = random(projection)
    encoder = {}
    for layer in range(lstm["n_layers"]):
        for side in ("forward", "backward"):
            name = f"{side}_layer_{layer}"
            encoder[f"{name}.input_linearity.weight"] = random(4 * cell, projection)
            encoder[f"{name}.state_linearity.weight"] = random(4 * cell, projection)
            encoder[f"{name}.state_linearity.bias"] = random(4 * cell)
            encoder[f"{name}.state_projection.weight"] = random(projection, cell)
    return {"token_embedder.pkl": embedder, "encoder.pkl": encoder}


def lexicon_lines(entries: Sequence[str]) -> str:
    return "".join(f"{entry}\t{number}\n" for number, entry in enumerate(entries))


def write_model(folder: Path, characters: Sequence[str] = CHARACTERS, zipped: bool = False, **changes: Any) -> Path:
    """Writes a checkpoint into a new folder.

    Args:
        folder: The folder.
        characters: The character lexicon.
        zipped: Write the weights in the newer of PyTorch's formats.
        **changes: Options of the architecture.
    """
    folder.mkdir(parents=True)
    options = architecture(**changes)
    (folder / "config.json").write_text(json.dumps({"config_path": "/home/someone/configs/tiny.json", "seed": 1}))
    (folder / "tiny.json").write_text(json.dumps(options))
    (folder / "char.dic").write_text(lexicon_lines(characters), encoding="utf-8")
    if options["token_embedder"]["word_dim"]:
        (folder / "word.dic").write_text(lexicon_lines(WORDS), encoding="utf-8")
    for name, state in state_dicts(options, len(characters), len(WORDS)).items():
        torch.save(state, folder / name, _use_new_zipfile_serialization=zipped)
    return folder


def ids_of(
    sentence: Sequence[str], characters: Sequence[str], words: Sequence[str], width: int
) -> tuple[np.ndarray, list[int]]:
    """The ids of a sentence with its boundaries, as the original counts them: (words + 2, width) and (words + 2,)."""
    number = {entry: place for place, entry in enumerate(characters)}
    place_of = {entry: place for place, entry in enumerate(words)}
    rows, places = [], []
    for word in ["<bos>", *sentence, "<eos>"]:
        cut = word[: width - 2] if len(word) + 2 > width else word
        spelled = [cut] if cut in ("<bos>", "<eos>") else cut
        row = [number["<eow>"], *(number.get(letter, number["<oov>"]) for letter in spelled), number["<bow>"]]
        rows.append(row + [number["<pad>"]] * (width - len(row)))
        places.append(place_of.get(cut, place_of["<oov>"]))
    return np.array(rows), places
