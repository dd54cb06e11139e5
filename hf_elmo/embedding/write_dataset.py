"""A folder for `datasets.load_from_disk`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .formats import OutputFormat
from .shards import EmbeddedChunk, ShardRecord, write_json


class DatasetFormat(OutputFormat):
    """Arrow files, as `datasets` saves them, read back with `datasets.load_from_disk` without copying.

    The columns are those of Parquet.
    """

    name = "a folder for datasets"
    ending = ""
    shard_ending = ".arrow"
    may_keep_shards = True
    may_merge = False

    def write_shard(self, path: Path, chunk: EmbeddedChunk) -> None:
        """Writes a chunk as one Arrow stream."""
        from .arrow_tables import table_of, write_stream

        write_stream(path, table_of(chunk, self._features().arrow_schema))

    def read_record(self, path: Path) -> ShardRecord:
        """Reads the metadata."""
        from .arrow_tables import read_stream_record

        return read_stream_record(path)

    def complete_folder(self, folder: Path, shards: list[Path], about: dict[str, Any]) -> None:
        """Writes what `datasets` keeps beside the data."""
        write_dataset_files(folder, shards, self._features(), about["job"])

    def _features(self) -> Any:
        from datasets import Features, List, Value

        vector = List(Value(self.shape.dtype), length=self.shape.dim)
        columns = {column: vector if self.shape.pooled else List(vector) for column in self.shape.columns}
        return Features({"line": Value("int64"), "words": List(Value("string")), "error": Value("string"), **columns})


def write_dataset_files(
    folder: Path,
    shards: list[Path],
    features: Any,
    fingerprint: str,
    split: str | None = None,
    formatted: tuple[str, dict[str, Any]] | None = None,
) -> None:
    """Writes what `datasets` keeps beside the data.

    Args:
        folder: The folder of one data set.
        shards: Its Arrow streams, in order.
        features: Its columns, a `datasets.Features`.
        fingerprint: A SHA-256 of all that decides the data.
        split: The name of the split that it is.
        formatted: A column that is read as arrays of NumPy, and how they are made; the others are read as they are.
    """
    from datasets import DatasetInfo

    DatasetInfo(features=features).write_to_directory(str(folder))
    column, options = formatted or (None, {})
    state = {
        "_data_files": [{"filename": shard.name} for shard in shards],
        "_fingerprint": fingerprint[:16],
        "_format_columns": None if column is None else [column],
        "_format_kwargs": options,
        "_format_type": None if column is None else "numpy",
        "_output_all_columns": column is not None,
        "_split": split,
    }
    write_json(folder / "state.json", state)
