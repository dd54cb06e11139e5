"""Parquet: a row for each line, a column of vectors for each layer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .formats import OutputFormat
from .shards import EmbeddedChunk, ShardRecord

ABOUT = b"hf_elmo"


class ParquetFormat(OutputFormat):
    """One file with a row group for each shard, or a folder of files.

    The columns are `line`, `words`, `error` (null where there was none) and `vectors`, or `layer_0` and so on.
    """

    name = "Parquet"
    ending = ".parquet"
    shard_ending = ".parquet"
    may_keep_shards = True

    def write_shard(self, path: Path, chunk: EmbeddedChunk) -> None:
        """Writes a chunk as one row group."""
        from .arrow_tables import schema_of, table_of

        table = table_of(chunk, schema_of(self.shape))
        with self._writer(path, table.schema) as writer:
            writer.write_table(table, row_group_size=max(1, table.num_rows))

    def read_record(self, path: Path) -> ShardRecord:
        """Reads the metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from .arrow_tables import RECORD

        try:
            return ShardRecord.from_json(pq.read_schema(path).metadata[RECORD])
        except (pa.ArrowException, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no whole shard: {error}") from error

    def merge(self, shards: list[Path], output: Path, about: dict[str, Any]) -> Iterator[int]:
        """Writes one file, shard by shard."""
        import pyarrow.parquet as pq

        from .arrow_tables import schema_of

        schema = schema_of(self.shape).with_metadata({ABOUT: json.dumps(about).encode("ascii")})
        with self._writer(output, schema) as writer:
            for done, path in enumerate(shards, start=1):
                with pq.ParquetFile(path) as shard:
                    table = shard.read()
                writer.write_table(table.cast(schema), row_group_size=max(1, table.num_rows))
                yield done

    def _writer(self, path: Path, schema: Any) -> Any:
        import pyarrow.parquet as pq

        # Vectors do not get smaller by compression or a dictionary; they only take longer to write.
        return pq.ParquetWriter(
            path,
            schema,
            compression={"words.list.element": "zstd"},
            use_dictionary=["words.list.element"],
            write_statistics=["line"],
        )
