"""NumPy's .npz: the vectors of all words, one after the other, and where each line begins."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from .shards import as_bytes
from .write_safetensors import OpenShard, SafetensorsShards


class NpzFormat(SafetensorsShards):
    """One file: an array (words, dim) for each column, or (lines, dim) where pooled.

    `offsets` has the shape (lines + 1,): the vectors of line i are rows offsets[i] to offsets[i + 1].
    """

    name = ".npz"
    ending = ".npz"

    def merge(self, shards: list[Path], output: Path, about: dict[str, Any]) -> Iterator[int]:
        """Writes the file, column by column."""
        rows = about["lines"] if self.shape.pooled else about["rows"]
        done = 0
        with zipfile.ZipFile(output, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for column in self.shape.columns:
                with self._member(archive, column, (rows, self.shape.dim), self.shape.dtype) as member:
                    for path in shards:
                        member.write(as_bytes(OpenShard(path).tensors[column]))
                        done += 1
                        yield done // len(self.shape.columns)
            if not self.shape.pooled:
                with self._member(archive, "offsets", (about["lines"] + 1,), "int64") as member:
                    member.write(np.zeros(1, dtype="<i8").tobytes())
                    for offsets in offsets_of(shards):
                        member.write(offsets.astype("<i8").tobytes())

    @staticmethod
    def _member(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: str) -> IO[bytes]:
        # A date of its own would make every file different.
        member = archive.open(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), "w", force_zip64=True)
        description = np.lib.format.dtype_to_descr(np.dtype(dtype).newbyteorder("<"))
        np.lib.format.write_array_header_1_0(member, {"descr": description, "fortran_order": False, "shape": shape})
        return member


def offsets_of(shards: Iterable[Path]) -> Iterator[np.ndarray]:
    """Where the lines of each shard end, counted over all of them."""
    start = 0
    for path in shards:
        offsets = OpenShard(path).offsets
        assert offsets is not None
        yield np.array(offsets[1:], dtype=np.int64) + start
        start += offsets[-1]
