"""Reads AllenNLP's and bilm-tf's checkpoints: an options file in JSON and the weights in HDF5."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .checkpoint import FloatArray, SourceCheckpoint, StoredTensor
from .errors import ConversionError

FORMAT = "allennlp"
SUFFIXES = (".hdf5", ".h5")
WEIGHT_STEMS = ("weights", "model")
LARGEST_OPTIONS_FILE = 2**20
SMALLEST_SUSPECT = 2**28
"""Bytes below which a highly compressed file cannot do any harm."""

# What h5py raises on damaged files depends on where the damage is.
DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, SystemError)


def recognises(source: Path) -> bool:
    """Whether a path looks like such a checkpoint, also when it is damaged."""
    if source.is_dir():
        return bool(weight_candidates(source))
    return source.suffix.lower() in SUFFIXES or (source.is_file() and h5py.is_hdf5(str(source)))


def read(source: Path, options_file: Path | None = None) -> SourceCheckpoint:
    """Reads the options and the index of the tensors; their values are read later, one at a time.

    Args:
        source: The HDF5 file, or the folder with it.
        options_file: The options file; looked for beside the weights when it is `None`.

    Raises:
        ConversionError: When a file is missing, damaged, ambiguous or points outside itself.
    """
    weights_file = find_weights(source)
    if options_file is None:
        options_file = find_options(weights_file)
    return SourceCheckpoint(
        format=FORMAT,
        options=read_options(options_file),
        tensors=index_tensors(weights_file),
        options_file=options_file,
        weights_file=weights_file,
    )


def weight_candidates(folder: Path) -> list[Path]:
    """HDF5 files in a folder; of several, those with the usual name alone."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    usual = [path for path in found if path.stem.endswith(WEIGHT_STEMS)]
    return usual or found


def find_weights(source: Path) -> Path:
    """The HDF5 file that a path means."""
    if not source.is_dir():
        return source
    found = weight_candidates(source)
    if not found:
        raise ConversionError(f"There is no HDF5 file in the folder {source}.")
    if len(found) > 1:
        raise ConversionError(
            f"The folder {source} holds several HDF5 files ({names(found)}); name the one to convert, "
            "and its options file with --options."
        )
    return found[0]


def find_options(weights_file: Path) -> Path:
    """The options file beside an HDF5 file: the one of the same stem, otherwise the only one."""
    folder, stem = weights_file.parent, weights_file.stem
    for ending in WEIGHT_STEMS:
        stem = stem.removesuffix(ending)
    stem = stem.rstrip("_-.")
    same_stem = [f"{stem}{sign}options.json" for sign in "_-."] if stem else ["options.json"]
    for name in same_stem:
        if (folder / name).is_file():
            return folder / name
    found = sorted(path for path in folder.glob("*options.json") if path.is_file())
    if not found:
        raise ConversionError(
            f"There is no options file (*options.json) beside {weights_file}; give it with --options."
        )
    if len(found) > 1:
        raise ConversionError(
            f"There are several options files beside {weights_file} ({names(found)}); choose one with --options."
        )
    return found[0]


def names(paths: list[Path]) -> str:
    """File names for a message."""
    return ", ".join(path.name for path in paths)


def read_options(path: Path) -> dict[str, Any]:
    """The content of an options file.

    Raises:
        ConversionError: When it cannot be read or is no JSON object.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_OPTIONS_FILE + 1)
    except OSError as error:
        raise ConversionError(f"The options file {path} cannot be read: {error.strerror or error}.") from error
    if len(content) > LARGEST_OPTIONS_FILE:
        raise ConversionError(f"The options file {path} is larger than a megabyte; it is no options file.")
    try:
        options = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"The options file {path} is not valid JSON: {error}.") from error
    if not isinstance(options, dict):
        raise ConversionError(f"The options file {path} must hold a JSON object, not a {type(options).__name__}.")
    return options


def index_tensors(path: Path) -> dict[str, StoredTensor]:
    """Names, shapes and types of the tensors in an HDF5 file, without reading them.

    Raises:
        ConversionError: When the file is missing or damaged, or holds something other than plain tensors.
    """
    if not path.is_file():
        raise ConversionError(f"The weights file {path} does not exist.")
    problems: list[str] = []
    try:
        with h5py.File(path, "r", locking=False) as file:
            tensors = {
                name: StoredTensor(dataset.shape, dataset.dtype.name, loader(path, name, dataset.shape))
                for name, dataset in walk(file, problems)
            }
    except DAMAGE as error:
        raise ConversionError(
            f"The weights file {path} cannot be read as HDF5; it is damaged, cut short or in another format ({error})."
        ) from error
    size = sum(4 * math.prod(tensor.shape) for tensor in tensors.values())
    if size > max(SMALLEST_SUSPECT, 100 * path.stat().st_size):
        problems.append(f"the tensors would take {size:.3g} bytes, but the file has {path.stat().st_size:.3g}")
    if problems:
        raise ConversionError(f"The weights file {path} is refused:", problems)
    return tensors


def walk(file: h5py.File, problems: list[str]) -> Iterator[tuple[str, h5py.Dataset]]:
    """Every dataset of a file that can be read safely; says in `problems` what cannot.

    Links are looked at before they are followed: a file from somebody else must not make us read other files.
    """
    pending = [("", file)]
    seen = set()
    while pending:
        prefix, group = pending.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            problems.append(f"the group {prefix} contains itself")
            continue
        seen.add(address)
        for key in group:
            name = f"{prefix}{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                problems.append(f"{name} is a link to another place; only tensors stored in the file itself are read")
                continue
            item = group[key]
            if isinstance(item, h5py.Group):
                pending.append((f"{name}/", item))
            elif problem := dataset_problem(item):
                problems.append(f"{name} {problem}")
            else:
                yield name, item


def dataset_problem(item: Any) -> str | None:
    """Why an HDF5 object is no tensor to be read, `None` when it is one."""
    if not isinstance(item, h5py.Dataset):
        return "is no tensor"
    if item.shape is None:
        return "is empty"
    if item.dtype.kind != "f" or item.dtype.itemsize not in (2, 4, 8):
        return f"has the type {item.dtype}; weights are float16, float32 or float64"
    if item.external or item.is_virtual:
        return "is stored in another file; only tensors stored in the file itself are read"
    if item.size and not item.id.get_storage_size():
        return "has a shape but no values"
    return None


def loader(path: Path, name: str, shape: tuple[int, ...]) -> Any:
    """A function that reads one tensor as float32."""

    def load() -> FloatArray:
        try:
            with h5py.File(path, "r", locking=False) as file:
                stored = file[name][...]
        except DAMAGE as error:
            raise ConversionError(
                f"The tensor {name} in {path} cannot be read; the file is damaged ({error})."
            ) from error
        if stored.shape != shape:
            raise ConversionError(f"The tensor {name} in {path} changed while it was read.")
        # A float64 beyond float32's range becomes infinite here and is refused with the other infinite values.
        with np.errstate(over="ignore"):
            return np.asarray(stored, dtype=np.float32)

    return load
