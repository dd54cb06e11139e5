"""The input in chunks, cut by its lines and the options alone, so that every start cuts it the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from .batching import grouped
from .errors import ChangedError
from .readers import Line, Reader, fingerprint
from .settings import JobSettings
from .shards import Chunk, ShardRecord


def chunks_of(lines: Iterable[Line], most_lines: int, most_letters: int) -> Iterator[Chunk]:
    """Cuts the lines of an input into chunks."""
    first = 0
    for index, group in enumerate(grouped(lines, most_lines, most_letters, lambda line: line.size)):
        yield Chunk(index, first, group, fingerprint(group))
        first += len(group)


class OpenChunks:
    """The chunks of an input that have no shard yet; those that have one are compared with it.

    Args:
        settings: How to cut.
        reader: The input.
        done: The shards that are there, by the index of their chunk.
        watch: Called after each chunk that has been read.

    Attributes:
        count: Chunks read so far, open or not.
        fraction: How much of the input has been read, 0 to 1, or None.
    """

    def __init__(
        self,
        settings: JobSettings,
        reader: Reader,
        done: Mapping[int, ShardRecord],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.reader = reader
        self.done = dict(done)
        self.watch = watch
        self.count = 0
        self.fraction = reader.fraction()

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in chunks_of(self.reader, self.settings.shard_lines, self.settings.shard_letters):
            self.seen(self.count + 1, self.reader.fraction())
            record = self.done.get(chunk.index)
            if record is None:
                yield chunk
            elif (record.input, record.first_line) != (chunk.input, chunk.first_line):
                last = record.first_line + record.lines
                raise ChangedError(
                    f"The input {self.reader.source.name} has changed since {self.settings.output} was begun: "
                    f"{self.reader.unit}s {record.first_line + 1:,} to {last:,} are not those that were embedded. "
                    "Give the same input, another output, or --overwrite to start anew."
                )

    def seen(self, count: int, fraction: float | None) -> None:
        """Says how far the input has been read, here or elsewhere."""
        self.count, self.fraction = count, fraction
        self.watch()
