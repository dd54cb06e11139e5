"""A chunk of the input, what became of it, and the file it is kept in."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import OutputError, reason
from .readers import Line

UNFINISHED = ".tmp"
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class Chunk:
    """Consecutive lines of the input, cut by the input and the options alone.

    Attributes:
        index: Its place among the chunks, from 0.
        first_line: The number of its first line, from 0.
        lines: The lines.
        input: The fingerprint of the lines.
    """

    index: int
    first_line: int
    lines: list[Line]
    input: str


@dataclass(frozen=True)
class ShardRecord:
    """What a shard says of itself, kept inside it.

    Attributes:
        job: Fingerprint of the job: model and options.
        index: As of the chunk.
        first_line: As of the chunk.
        lines: How many lines.
        words: How many words.
        input: As of the chunk.
        skipped: The lines that could not be embedded, each with the reason.
    """

    job: str
    index: int
    first_line: int
    lines: int
    words: int
    input: str
    skipped: list[tuple[int, str]] = field(default_factory=list)

    def to_json(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> ShardRecord:
        """Reads what `to_json` wrote."""
        content = json.loads(text)
        content["skipped"] = [(int(line), str(why)) for line, why in content["skipped"]]
        return cls(**content)


@dataclass(frozen=True)
class EmbeddedChunk:
    """The vectors of a chunk.

    Attributes:
        record: What it is.
        texts: The lines as texts, n of them.
        words: The words of each line.
        errors: What was wrong with each line, or None.
        vectors: By column, on the CPU: (all words, dim) one line after the other, or (n, dim) where pooled.
        offsets: Where the rows of each line begin, and the end: shape (n + 1,); None where pooled.
    """

    record: ShardRecord
    texts: list[str]
    words: list[list[str]]
    errors: list[str | None]
    vectors: dict[str, torch.Tensor]
    offsets: np.ndarray | None


def stacked(
    columns: list[str], vectors: list[torch.Tensor], layer_axis: bool, pooled: bool
) -> dict[str, torch.Tensor]:
    """Sentences one after the other, column by column.

    Args:
        columns: The names of the columns.
        vectors: For each sentence (words, dim), or (dim,) where pooled; with a layer axis, one axis more in front.
        layer_axis: Whether there is one.
        pooled: Whether the sentences are pooled.

    Returns:
        For each column (all words, dim), or (sentences, dim) where pooled.
    """
    join: Callable[..., torch.Tensor] = torch.stack if pooled else torch.cat
    if not layer_axis:
        return {columns[0]: join(vectors)}
    return {column: join([one[place] for one in vectors]) for place, column in enumerate(columns)}


def stored(vectors: torch.Tensor, dtype: str) -> torch.Tensor:
    """Vectors in the type in which they are written.

    Raises:
        ValueError: A number is too large for the type.
    """
    converted = vectors.to(DTYPES[dtype])
    if not converted.isfinite().all():
        raise ValueError(f"A number is too large for {dtype}, or not finite: use --dtype float32.")
    return converted


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, little-endian."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


@contextlib.contextmanager
def written_aside(path: Path, by_several: bool = False) -> Iterator[Path]:
    """A file under another name that becomes `path`, complete and on the disk, when the block ends.

    Args:
        path: The file.
        by_several: Whether others may be writing the same file: a worker that is taken for dead and is not, and the
            one in its place. Then the other name is new each time, and whoever ends last leaves a whole file.

    Raises:
        OutputError: The system did not let us write.
    """
    mark = f".{secrets.token_hex(4)}" if by_several else ""
    aside = path.with_name(f"{path.name}{mark}{UNFINISHED}")
    try:
        try:
            yield aside
            with aside.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(aside, path)
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"{path} could not be written: {reason(error)}.") from error
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def write_json(path: Path, content: Any) -> None:
    """Writes JSON, aside first."""
    with written_aside(path) as aside:
        aside.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
