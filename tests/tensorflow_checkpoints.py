"""Tiny random checkpoints as TensorFlow saves them, written without any code of the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints import random_tensors, tiny_options
from tests.tensor_bundles import write_bundle

WORDS = ("<S>", "</S>", "<UNK>", "the", "crane", "Ёлка", "flew")
MIX = {"W": np.array([0.25, -1.5, 0.75], dtype=np.float32), "gamma": np.array([1.75], dtype=np.float32)}

Tensors = dict[str, np.ndarray]


def training_tensors(options: Mapping[str, Any] | None = None, words: int = len(WORDS)) -> Tensors:
    """Weights, softmax and what the optimizer adds, under the names of bilm-tf's training."""
    options = tiny_options() if options is None else options
    generator = np.random.default_rng(1)
    tensors: Tensors = {}
    for name, array in random_tensors(options).items():
        name = name.replace("/RNN/MultiRNNCell/Cell", "/rnn/multi_rnn_cell/cell_").replace("LSTMCell", "lstm_cell")
        tensors[f"lm/{name_of_variable(name)}"] = array
    size = options["lstm"]["projection_dim"]
    tensors["lm/softmax/W"] = generator.normal(size=(words, size)).astype(np.float32)
    tensors["lm/softmax/b"] = generator.normal(size=words).astype(np.float32)
    tensors |= {f"{name}/Adagrad": np.ones_like(array) for name, array in tensors.items()}
    return tensors | {"global_step": np.array(5), "train_perplexity": np.float32(12.5)}


def module_tensors(options: Mapping[str, Any] | None = None, mix: Tensors | None = None) -> Tensors:
    """Weights, states and mix under the names of a TF-Hub module."""
    tensors: Tensors = {}
    for name, array in random_tensors(tiny_options() if options is None else options).items():
        tensors[f"bilm/{name_of_variable(name.replace('LSTMCell', 'rnn/lstm_cell'))}"] = array
    table = tensors["bilm/char_embed"]
    tensors["bilm/char_embed"] = np.concatenate([np.zeros_like(table[:1]), table])
    for scope in ("bilm", "bilm_1"):
        tensors |= {f"{scope}/Variable{end}": np.zeros((4, 3), dtype=np.float32) for end in ("", "_1")}
    mix = {f"elmo_output_ELMo_{name}": array for name, array in MIX.items()} if mix is None else mix
    return tensors | {f"aggregation/{name}": array for name, array in mix.items()}


def name_of_variable(name: str) -> str:
    """TensorFlow's name of an LSTM's variable."""
    for theirs, ours in (("/W_P_0", "/projection/kernel"), ("/W_0", "/kernel"), ("/B", "/bias")):
        if name.endswith(theirs):
            return name.removesuffix(theirs) + ours
    return name


def write_training(
    folder: Path,
    options: Mapping[str, Any] | None = None,
    tensors: Tensors | None = None,
    name: str = "model.ckpt-5",
    words: tuple[str, ...] = WORDS,
) -> Path:
    """Writes a training checkpoint with its options and vocabulary into a folder and returns the folder."""
    options = tiny_options(char_cnn__n_characters=261) if options is None else options
    write_bundle(folder / name, training_tensors(options) if tensors is None else tensors)
    (folder / "options.json").write_text(json.dumps(options))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    (folder / "checkpoint").write_text('model_checkpoint_path: "/gone/with/the/machine/model.ckpt-9"\n')
    return folder


def write_module(folder: Path, tensors: Tensors | None = None, num_shards: int = 2) -> Path:
    """Writes a TF-Hub module and returns its folder."""
    write_bundle(
        folder / "variables" / "variables", module_tensors() if tensors is None else tensors, num_shards=num_shards
    )
    (folder / "saved_model.pb").write_bytes(b"a graph that nobody reads")
    (folder / "tfhub_module.pb").write_bytes(b"\x08\x03")
    return folder
