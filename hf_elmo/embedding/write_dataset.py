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
        import pyarrow as pa

        from .arrow_tables import table_of

        table = table_of(chunk, self._features().arrow_schema)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)

    def read_record(self, path: Path) -> ShardRecord:
        """Reads the metadata."""
        import pyarrow as pa

        from .arrow_tables import RECORD

        try:
            with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as stream:
                return ShardRecord.from_json(stream.schema.metadata[RECORD])
        except (pa.ArrowException, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no whole shard: {error}") from error

    def complete_folder(self, folder: Path, shards: list[Path], about: dict[str, Any]) -> None:
        """Writes what `datasets` keeps beside the data."""
        from datasets import DatasetInfo

        DatasetInfo(features=self._features()).write_to_directory(str(folder))
        state = {
            "_data_files": [{"filename": shard.name} for shard in shards],
            "_fingerprint": about["job"][:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        write_json(folder / "state.json", state)

    def _features(self) -> Any:
        from datasets import Features, List, Value

        vector = List(Value(self.shape.dtype), length=self.shape.dim)
        columns = {column: vector if self.shape.pooled else List(vector) for column in self.shape.columns}
        return Features({"line": Value("int64"), "words": List(Value("string")), "error": Value("string"), **columns})
