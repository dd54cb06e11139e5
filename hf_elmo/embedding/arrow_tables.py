"""Chunks as Arrow tables, for Parquet and for `datasets`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .formats import Shape
from .shards import EmbeddedChunk, ShardRecord

RECORD = b"hf_elmo_record"


def schema_of(shape: Shape) -> Any:
    """The columns: the number of the line, its words, what was wrong with it, and the vectors."""
    vector: Any = pa.list_(getattr(pa, shape.dtype)(), shape.dim)
    fields: list[tuple[str, Any]] = [("line", pa.int64()), ("words", pa.list_(pa.string())), ("error", pa.string())]
    fields += [(column, vector if shape.pooled else pa.list_(vector)) for column in shape.columns]
    return pa.schema(fields)


def table_of(chunk: EmbeddedChunk, schema: Any) -> Any:
    """The table of a chunk; its record is in the schema's metadata."""
    first = chunk.record.first_line
    columns = [
        pa.array(range(first, first + chunk.record.lines), pa.int64()),
        pa.array(chunk.words, pa.list_(pa.string())),
        pa.array(chunk.errors, pa.string()),
    ]
    for vectors in chunk.vectors.values():
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.numpy().reshape(-1)), vectors.shape[-1])
        if chunk.offsets is not None:
            column = pa.ListArray.from_arrays(pa.array(chunk.offsets.astype(np.int32)), column)
        columns.append(column)
    schema = with_record(schema, chunk.record)
    # Inner fields may be named otherwise than the schema has them.
    arrays = [
        column.cast(field.type) if column.type != field.type else column
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def with_record(schema: Any, record: ShardRecord) -> Any:
    """A schema whose metadata holds what a shard says of itself."""
    return schema.with_metadata({**(schema.metadata or {}), RECORD: record.to_json().encode("ascii")})


def write_stream(path: Path, table: Any) -> None:
    """Writes a table as one Arrow stream, as `datasets` keeps it."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def read_stream_record(path: Path) -> ShardRecord:
    """What a shard that `write_stream` wrote says of itself.

    Raises:
        ValueError: It is no whole shard.
    """
    try:
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as stream:
            return ShardRecord.from_json(stream.schema.metadata[RECORD])
    except (pa.ArrowException, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no whole shard: {error}") from error
