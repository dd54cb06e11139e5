"""Tiny random checkpoints in AllenNLP's layout, written without any code of the package."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

TINY_OPTIONS: dict[str, Any] = {
    "lstm": {
        "cell_clip": 3,
        "use_skip_connections": True,
        "n_layers": 2,
        "proj_clip": 3,
        "projection_dim": 6,
        "dim": 10,
    },
    "char_cnn": {
        "embedding": {"dim": 4},
        "filters": [[1, 3], [2, 5], [3, 4]],
        "n_highway": 2,
        "n_characters": 262,
        "max_characters_per_token": 50,
        "activation": "relu",
    },
}

REMOVED = object()
"""As the value of a changed option: the option is left out."""


def tiny_options(**changes: Any) -> dict[str, Any]:
    """The options of a tiny model; `lstm__n_layers=1` changes the option `lstm.n_layers`."""
    options = copy.deepcopy(TINY_OPTIONS)
    for path, value in changes.items():
        *groups, key = path.split("__")
        node = options
        for group in groups:
            node = node[group]
        if value is REMOVED:
            node.pop(key, None)
        else:
            node[key] = value
    return options


def original_shapes(options: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that bilm-tf writes for these options."""
    cnn, lstm = options["char_cnn"], options["lstm"]
    dim, projection, cell = cnn["embedding"]["dim"], lstm["projection_dim"], lstm["dim"]
    features = sum(count for _, count in cnn["filters"])
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, dim)}
    for index, (width, count) in enumerate(cnn["filters"]):
        shapes[f"CNN/W_cnn_{index}"] = (1, width, dim, count)
        shapes[f"CNN/b_cnn_{index}"] = (count,)
    for index in range(cnn.get("n_highway") or 0):
        for gate in ("carry", "transform"):
            shapes[f"CNN_high_{index}/W_{gate}"] = (features, features)
            shapes[f"CNN_high_{index}/b_{gate}"] = (features,)
    if features != projection:
        shapes["CNN_proj/W_proj"] = (features, projection)
        shapes["CNN_proj/b_proj"] = (projection,)
    for direction in (0, 1):
        for layer in range(lstm.get("n_layers", 1)):
            prefix = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes[f"{prefix}/W_0"] = (2 * projection, 4 * cell)
            shapes[f"{prefix}/B"] = (4 * cell,)
            shapes[f"{prefix}/W_P_0"] = (cell, projection)
    return shapes


def random_tensors(options: Mapping[str, Any], seed: int = 0, scale: float = 0.5) -> dict[str, np.ndarray]:
    """Uniform random weights, large enough that activations matter and some are clipped."""
    generator = np.random.default_rng(seed)
    return {
        name: generator.uniform(-scale, scale, shape).astype(np.float32)
        for name, shape in original_shapes(options).items()
    }


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    """Writes an HDF5 file."""
    with h5py.File(path, "w") as file:
        for name, array in tensors.items():
            file.create_dataset(name, data=array)
    return path


def write_checkpoint(
    folder: Path, options: Mapping[str, Any] | None = None, tensors: Mapping[str, np.ndarray] | None = None
) -> Path:
    """Writes options.json and weights.hdf5 into a folder and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    options = tiny_options() if options is None else options
    (folder / "options.json").write_text(json.dumps(options))
    write_tensors(folder / "weights.hdf5", random_tensors(options) if tensors is None else tensors)
    return folder
