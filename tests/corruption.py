"""Damage to the files of checkpoints, and what a damaged checkpoint says when somebody else reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

Files = dict[str, bytes]
Arrays = dict[str, np.ndarray]

ODD_VALUES = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    1e308,
    math.inf,
    0.5,
    "",
    "relu",
    "x" * 1000,
    [],
    {},
    [[1, 2]],
    [None],
)


class Damage:
    """Damages a copy of some files; the same number does the same damage.

    Args:
        files: Name -> content.
        strangers: Contents of other checkpoints' files, by their suffix.
        number: Which damage.
    """

    def __init__(self, files: Mapping[str, bytes], strangers: Mapping[str, Sequence[bytes]], number: int) -> None:
        self.files = dict(files)
        self.strangers = strangers
        self.random = np.random.default_rng(number)
        kinds = KINDS if any(name.endswith(".json") for name in files) else KINDS[:-1]
        self.what = kinds[number % len(kinds)](self)

    def choose(self, suffix: str = "") -> str:
        """The name of a file that is not empty."""
        names = sorted(name for name, content in self.files.items() if content and name.endswith(suffix))
        return names[self.random.integers(len(names))]

    def below(self, end: int) -> int:
        """A number from 0 to end - 1."""
        return int(self.random.integers(end))

    def edit(self, name: str, start: int, end: int, content: bytes) -> str:
        """Puts bytes in the place of others."""
        self.files[name] = self.files[name][:start] + content + self.files[name][end:]
        return f"{name}: bytes {start} to {end} are {len(content)} others"


def flip_in(start: float, end: float) -> Callable[[Damage], str]:
    """One bit, in a part of a file."""

    def flip(damage: Damage) -> str:
        name = damage.choose()
        length = len(damage.files[name])
        place = min(length - 1, int(length * (start + (end - start) * damage.random.random())))
        bit = 1 << damage.below(8)
        damage.edit(name, place, place + 1, bytes([damage.files[name][place] ^ bit]))
        return f"{name}: bit {bit} of byte {place} flipped"

    return flip


def truncate(damage: Damage) -> str:
    name = damage.choose()
    return damage.edit(name, damage.below(len(damage.files[name])), len(damage.files[name]), b"")


def shorten(damage: Damage) -> str:
    name = damage.choose()
    length = len(damage.files[name])
    return damage.edit(name, max(0, length - 1 - damage.below(16)), length, b"")


def zero(damage: Damage) -> str:
    name = damage.choose()
    start = damage.below(len(damage.files[name]))
    end = min(start + 1 + damage.below(4096), len(damage.files[name]))
    return damage.edit(name, start, end, bytes(end - start))


def scribble(damage: Damage) -> str:
    name = damage.choose()
    start = damage.below(len(damage.files[name]))
    end = min(start + 16, len(damage.files[name]))
    return damage.edit(name, start, end, damage.random.bytes(end - start))


def leave_out(damage: Damage) -> str:
    name = damage.choose()
    start = damage.below(len(damage.files[name]))
    return damage.edit(name, start, start + 1 + damage.below(64), b"")


def repeat(damage: Damage) -> str:
    name = damage.choose()
    start = damage.below(len(damage.files[name]))
    return damage.edit(name, start, start, damage.files[name][start : start + 1 + damage.below(64)])


def append(damage: Damage) -> str:
    name = damage.choose()
    length = len(damage.files[name])
    return damage.edit(name, length, length, damage.random.bytes(1 + damage.below(1024)))


def empty(damage: Damage) -> str:
    name = damage.choose()
    return damage.edit(name, 0, len(damage.files[name]), b"")


def remove(damage: Damage) -> str:
    name = damage.choose()
    del damage.files[name]
    return f"{name}: removed"


def swap(damage: Damage) -> str:
    first, second = damage.choose(), damage.choose()
    damage.files[first], damage.files[second] = damage.files[second], damage.files[first]
    return f"{first} and {second}: swapped"


def replace_by_stranger(damage: Damage) -> str:
    name = damage.choose()
    others = damage.strangers.get(Path(name).suffix, ())
    if not others or damage.below(4) == 0:
        others = [content for contents in damage.strangers.values() for content in contents]
    place = damage.below(len(others))
    damage.edit(name, 0, len(damage.files[name]), others[place])
    return f"{name}: another checkpoint's"


def edit_json(damage: Damage) -> str:
    """One value of a JSON file becomes an odd one, or its key another."""
    name = damage.choose(".json")
    content = json.loads(damage.files[name])
    places: list[tuple[Any, Any]] = []
    pending = [content]
    while pending:
        node = pending.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        places += [(node, key) for key in keys]
        pending += [node[key] for key in keys if isinstance(node[key], dict | list)]
    node, key = places[damage.below(len(places))]
    value = ODD_VALUES[damage.below(len(ODD_VALUES))]
    if isinstance(node, dict) and damage.below(4) == 0:
        node[f"{key}x"] = node.pop(key)
    else:
        node[key] = value
    damage.files[name] = json.dumps(content).encode()
    return f"{name}: {key} becomes {value!r:.50}"


KINDS = (
    flip_in(0, 1),
    flip_in(0, 0.01),
    flip_in(0.99, 1),
    flip_in(0, 1),
    flip_in(0, 0.1),
    truncate,
    shorten,
    zero,
    scribble,
    leave_out,
    repeat,
    append,
    empty,
    remove,
    swap,
    replace_by_stranger,
    edit_json,
)

OPTIONS = {
    "character_embedding_size": ("char_cnn", "embedding", "dim"),
    "filters": ("char_cnn", "filters"),
    "hidden_act": ("char_cnn", "activation"),
    "num_highway_layers": ("char_cnn", "n_highway"),
    "max_characters_per_token": ("char_cnn", "max_characters_per_token"),
    "projection_size": ("lstm", "projection_dim"),
    "cell_size": ("lstm", "dim"),
    "num_hidden_layers": ("lstm", "n_layers"),
    "cell_clip": ("lstm", "cell_clip"),
    "projection_clip": ("lstm", "proj_clip"),
    "use_skip_connections": ("lstm", "use_skip_connections"),
}
MANYLANGS_OPTIONS = {
    "character_embedding_size": ("token_embedder", "char_dim"),
    "word_embedding_size": ("token_embedder", "word_dim"),
    "filters": ("token_embedder", "filters"),
    "hidden_act": ("token_embedder", "activation"),
    "num_highway_layers": ("token_embedder", "n_highway"),
    "max_characters_per_token": ("token_embedder", "max_characters_per_token"),
    "projection_size": ("encoder", "projection_dim"),
    "cell_size": ("encoder", "dim"),
    "num_hidden_layers": ("encoder", "n_layers"),
    "cell_clip": ("encoder", "cell_clip"),
    "projection_clip": ("encoder", "proj_clip"),
}
"""Field of a configuration -> where an options file says it."""

WITHOUT_THE_OPTION = {
    "n_highway": 0,
    "n_layers": 1,
    "cell_clip": None,
    "proj_clip": None,
    "use_skip_connections": False,
}
"""What bilm-tf does when an option is not there."""


def fields_of(options: Mapping[str, Any], table: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The fields of a configuration as options say them."""
    fields = {}
    for field, (*groups, key) in table.items():
        node: Any = options
        for group in groups:
            node = node[group]
        value = node[key] if key in node else WITHOUT_THE_OPTION[key]
        if key in ("n_highway", "use_skip_connections", "word_dim"):
            value = value or {"n_highway": 0, "use_skip_connections": False, "word_dim": None}[key]
        fields[field] = value
    return fields


def arrays_of_hdf5(path: Path) -> Arrays:
    """Every dataset of an HDF5 file."""
    arrays: Arrays = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[...].astype(np.float32)

    with h5py.File(path, "r") as file:
        file.visititems(take)
    return arrays


def arrays_of_state_dict(path: Path, prefix: str = "") -> Arrays:
    """Every tensor of a state dict."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    return {prefix + name: value.float().numpy() for name, value in state.items() if value.is_floating_point()}


def entries_of_lexicon(path: Path) -> dict[str, int]:
    """Entry -> number, read as ELMoForManyLangs reads its lexicons."""
    entries = {}
    for line in path.read_bytes().decode().splitlines():
        parts = line.strip().split("\t")
        if len(parts) == 1:
            parts.insert(0, "\u3000")
        entry, number = parts
        entries[entry] = int(number)
    return entries


def same_arrays(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    """Whether two sets of arrays have the same names, shapes and bits."""
    return first.keys() == second.keys() and all(
        first[name].shape == second[name].shape and first[name].tobytes() == second[name].tobytes() for name in first
    )
