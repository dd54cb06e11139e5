"""The output formats, by the ending of the output's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .errors import SettingError
from .shards import EmbeddedChunk, ShardRecord

LAYOUTS = ("allennlp", "elmoformanylangs")
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Shape:
    """What the vectors are, as writers need to know it.

    Attributes:
        columns: Names of the vectors of a word: `vectors`, or one for each layer.
        layer_axis: Whether there is an axis for layers.
        pooled: Whether a sentence has one vector.
        dim: Numbers in a vector.
        dtype: `float32`, `float16` or `bfloat16`.
    """

    columns: list[str]
    layer_axis: bool
    pooled: bool
    dim: int
    dtype: str


class OutputFormat(ABC):
    """How chunks are written as shards, and how shards become the output.

    Args:
        shape: What the vectors are.
        layout: `allennlp` or `elmoformanylangs`, for HDF5.
        keeps_shards: Whether the output is a folder with the shards in it.
    """

    name: ClassVar[str]
    ending: ClassVar[str]  # of the output
    shard_ending: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16")
    may_keep_shards: ClassVar[bool] = False
    may_merge: ClassVar[bool] = True

    def __init__(self, shape: Shape, layout: str = "allennlp", keeps_shards: bool = False) -> None:
        self.shape = shape
        self.layout = layout
        self.keeps_shards = keeps_shards
        if shape.dtype not in self.dtypes:
            raise SettingError(
                f"{self.name} has no numbers of the type {shape.dtype}: use --dtype {' or '.join(self.dtypes)}"
                + ("." if shape.dtype != "bfloat16" else ", or an OUTPUT that ends in .safetensors.")
            )
        if keeps_shards and not self.may_keep_shards:
            raise SettingError(f"--shards is for .parquet; {self.name} is one file.")

    def shard_name(self, index: int) -> str:
        """The file name of a shard."""
        return f"part-{index:08d}{self.shard_ending}"

    @abstractmethod
    def write_shard(self, path: Path, chunk: EmbeddedChunk) -> None:
        """Writes a chunk to a new file: the same bytes for the same chunk."""

    @abstractmethod
    def read_record(self, path: Path) -> ShardRecord:
        """Reads what a shard says of itself.

        Raises:
            ValueError: It is no whole shard.
        """

    def merge(self, shards: list[Path], output: Path, about: dict[str, Any]) -> Iterator[int]:
        """Writes one file of all shards, one at a time, yielding how many are done; `about` is the manifest."""
        raise NotImplementedError

    def complete_folder(self, folder: Path, shards: list[Path], about: dict[str, Any]) -> None:
        """Writes what a folder of shards needs besides them and the manifest; by default nothing."""
        return


def format_for(output: str, shape: Shape, layout: str = "allennlp", keeps_shards: bool = False) -> OutputFormat:
    """The format of an output, by the ending of its name; without an ending it is a folder for `datasets`.

    Raises:
        SettingError: The ending is unknown, or the format does not have what is asked for.
    """
    from .write_dataset import DatasetFormat
    from .write_hdf5 import Hdf5Format
    from .write_npz import NpzFormat
    from .write_parquet import ParquetFormat
    from .write_safetensors import SafetensorsFormat

    formats: tuple[type[OutputFormat], ...] = (
        Hdf5Format,
        ParquetFormat,
        DatasetFormat,
        SafetensorsFormat,
        NpzFormat,
    )
    by_ending = {kind.ending: kind for kind in formats} | {".h5": Hdf5Format}
    ending = Path(output).suffix.lower()
    if ending not in by_ending:
        endings = ", ".join(kind.ending for kind in formats if kind.ending)
        raise SettingError(
            f"{output}: what is to be written? Its name must end in {endings}, or have no ending (datasets)."
        )
    if layout not in LAYOUTS:
        raise SettingError(f"The layout {layout!r} is unknown: choose one of {', '.join(LAYOUTS)}.")
    kind = by_ending[ending]
    if layout != "allennlp" and kind is not Hdf5Format:
        raise SettingError(f"--layout is for .hdf5; {kind.name} has one layout.")
    return kind(shape, layout, keeps_shards or not kind.may_merge)
