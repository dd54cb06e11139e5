"""Sentences from files: one class a format, all streaming, with every line accounted for.

A line that cannot be used is no reason to lose count: it comes as a `Line` with what is wrong with it, and keeps its
number.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

from .errors import InputError, SettingError, reason

STANDARD_INPUT = "-"
DEFAULT_COLUMNS = ("text", "sentence", "words", "tokens")

_COMPRESSIONS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


@dataclass(frozen=True)
class Line:
    """One sentence of the input.

    Attributes:
        content: A text, or its words; empty for a blank line and where there is an error.
        error: What is wrong with the line, to be read after its name ("is not valid UTF-8"), or None.
    """

    content: str | list[str]
    error: str | None = None

    @property
    def size(self) -> int:
        """Letters."""
        return len(self.content) if isinstance(self.content, str) else sum(map(len, self.content))

    @property
    def text(self) -> str:
        """The line without blanks around it; words with a blank between them."""
        return self.content.strip() if isinstance(self.content, str) else " ".join(self.content)


def fingerprint(lines: Iterable[Line]) -> str:
    """The SHA-256 of lines: equal for equal contents, whatever file they came from."""
    digest = hashlib.sha256()
    for line in lines:
        entry = json.dumps([line.content, line.error], ensure_ascii=True, separators=(",", ":"))
        digest.update(entry.encode("ascii") + b"\n")
    return digest.hexdigest()


class Source:
    """An input, open: a file or standard input, unpacked if it is packed, and how far it has been read.

    Args:
        path: The file, or `-`.

    Raises:
        InputError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = "standard input" if path == STANDARD_INPUT else path
        self.size: int | None = None
        try:
            self._raw = cast(BinaryIO, sys.stdin.buffer) if path == STANDARD_INPUT else self._open(Path(path))
        except OSError as error:
            raise InputError(f"The input {self.name} cannot be read: {reason(error)}.") from error
        buffered = self._raw if hasattr(self._raw, "peek") else io.BufferedReader(cast(Any, self._raw))
        head = cast(Any, buffered).peek(6)[:6]
        opener = next((opener for magic, opener in _COMPRESSIONS.items() if head.startswith(magic)), None)
        self.stream: BinaryIO = buffered if opener is None else opener(buffered, "rb")

    def _open(self, path: Path) -> BinaryIO:
        if path.is_dir():
            raise InputError(f"The input {path} is a folder; name one file, or pipe several into `-`.")
        stream = path.open("rb")
        self.size = os.fstat(stream.fileno()).st_size or None
        return stream

    def fraction(self) -> float | None:
        """How much of the file has been read, 0 to 1; None where that cannot be known."""
        if self.size is None or not self._raw.seekable():
            return None
        return min(1.0, self._raw.tell() / self.size)

    def close(self) -> None:
        """Closes the file; standard input stays open."""
        if self.path != STANDARD_INPUT:
            self.stream.close()
            self._raw.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Says which input it was that failed while it was read."""
        try:
            yield
        except _DAMAGED as error:
            raise InputError(f"The input {self.name} is damaged or cut short: {reason(error)}.") from error
        except OSError as error:
            raise InputError(f"The input {self.name} could not be read on: {reason(error)}.") from error


class Reader:
    """Reads the lines of one input, in order.

    Args:
        path: The file, or `-` for standard input; gzip, xz and bz2 are unpacked.
        column: Where the sentence stands, in formats with columns or fields.
        pretokenized: Whether texts are words with blanks between them, not to be split otherwise.
        most_bytes: The longest line to accept.

    Raises:
        InputError: It cannot be opened.
    """

    unit: ClassVar[str] = "line"
    has_columns: ClassVar[bool] = False

    def __init__(self, path: str, column: str | None, pretokenized: bool, most_bytes: int) -> None:
        self.column = column
        self.pretokenized = pretokenized
        self.most_bytes = most_bytes
        self.source = Source(path)

    def __iter__(self) -> Iterator[Line]:
        with self.source.reading():
            yield from self.lines()

    def lines(self) -> Iterator[Line]:
        """Reads the lines."""
        raise NotImplementedError

    def fraction(self) -> float | None:
        """How much has been read, 0 to 1; None where that cannot be known."""
        return self.source.fraction()

    def close(self) -> None:
        """Closes the input."""
        self.source.close()

    def name_of(self, number: int) -> str:
        """What a message calls the line with this number."""
        return f"{self.unit.capitalize()} {number + 1} of {self.source.name}"

    def raw_lines(self) -> Iterator[tuple[str, str | None]]:
        """Lines without their ends, and what is wrong with them."""
        first = True
        while True:
            data = self.source.stream.readline(self.most_bytes + 1)
            if not data:
                return
            if len(data) > self.most_bytes and not data.endswith(b"\n"):
                yield "", self._too_long(len(data) + self._rest_of_line())
                first = False
                continue
            if first:
                data, first = data.removeprefix(b"\xef\xbb\xbf"), False
            data = data.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield data.decode("utf-8"), None
            except UnicodeDecodeError as error:
                yield "", f"is not valid UTF-8 (byte 0x{data[error.start]:02x} after {error.start:,} bytes)"

    def _too_long(self, size: int) -> str:
        return f"has {size:,} bytes, more than the {self.most_bytes:,} that a line may have (--max-line-bytes)"

    def _rest_of_line(self) -> int:
        size = 0
        while True:
            data = self.source.stream.readline(1 << 20)
            size += len(data)
            if not data or data.endswith(b"\n"):
                return size - data.endswith(b"\n")

    def line_of(self, value: Any, what: str) -> Line:
        """A line of a value: a text, or a list of words; nothing is a blank line."""
        if value is None:
            return Line("")
        is_text = isinstance(value, str)
        if not is_text and not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
            return Line("", f"has neither a text nor a list of words {what}".rstrip())
        try:
            (value if is_text else "".join(value)).encode("utf-8")
        except UnicodeEncodeError:
            return Line("", "holds half of a surrogate pair, which is no letter")
        return Line(value.split() if is_text and self.pretokenized else value)


class TextReader(Reader):
    """Plain text, one sentence a line."""

    def lines(self) -> Iterator[Line]:
        """Reads the lines."""
        for text, error in self.raw_lines():
            yield Line("", error) if error else self.line_of(text, "")


class ConlluReader(Reader):
    """CoNLL-U: the forms of syntactic words; the ranges of fused words and empty nodes are left out."""

    unit = "sentence"

    def lines(self) -> Iterator[Line]:
        """Reads the sentences."""
        words: list[str] = []
        problem: str | None = None
        started = False
        for number, (text, error) in enumerate(self.raw_lines(), start=1):
            if not text.strip() and not error:
                if started:
                    yield Line([], problem) if problem else Line(words)
                words, problem, started = [], None, False
                continue
            if text.startswith("#"):
                continue
            started = True
            word, error = (None, error) if error else self._word(text)
            if error:
                problem = problem or f"cannot be used, for line {number} {error}"
            elif word is not None:
                words.append(word)
        if started:
            yield Line([], problem) if problem else Line(words)

    @staticmethod
    def _word(text: str) -> tuple[str | None, str | None]:
        columns = text.split("\t")
        identifier = columns[0]
        if len(columns) < 2 or not identifier.replace("-", "").replace(".", "").isdecimal():
            return None, "does not begin with a number, a tab and a word"
        return (columns[1] if identifier.isdecimal() else None), None


class JsonlReader(Reader):
    """JSON, one value a line: a text, a list of words, or an object with either in a field."""

    has_columns = True

    def lines(self) -> Iterator[Line]:
        """Reads the lines."""
        for text, error in self.raw_lines():
            if error:
                yield Line("", error)
            elif not text.strip():
                yield Line("")
            else:
                yield self._line(text)

    def _line(self, text: str) -> Line:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            return Line("", f"is no JSON: {reason(error)}")
        if not isinstance(value, dict):
            return self.line_of(value, "")
        column = self.column or next((name for name in DEFAULT_COLUMNS if name in value), None)
        if column is None or column not in value:
            wanted = repr(column) if column else " or ".join(map(repr, DEFAULT_COLUMNS))
            return Line("", f"has no field {wanted} but {', '.join(map(repr, value)) or 'none'} (--column)")
        return self.line_of(value[column], f"in the field {column!r}")


class CsvReader(Reader):
    """CSV with a header; fields may be quoted and then hold line breaks. Rows are numbered from 0."""

    unit = "row"
    has_columns = True
    delimiter: ClassVar[str] = ","

    def lines(self) -> Iterator[Line]:
        """Reads the rows."""
        csv.field_size_limit(max(csv.field_size_limit(), 2 * self.most_bytes))
        self._problem: str | None = None
        self._row_size = 0
        rows = csv.reader(self._physical_lines(), delimiter=self.delimiter)
        header = next(rows, [])
        if self._problem:
            raise InputError(f"The header of {self.source.name} {self._problem}.")
        place = column_among(header, self.column, self.source.name)
        while True:
            self._row_size = 0
            self._problem = None
            try:
                row = next(rows, None)
            except csv.Error as error:
                yield Line("", f"is no CSV: {reason(error)}")
                continue
            if row is None:
                return
            if self._problem:
                yield Line("", self._problem)
            elif row:
                missing = f"has {len(row)} fields, too few for the column {header[place]!r}"
                yield self.line_of(row[place], "") if place < len(row) else Line("", missing)

    def _physical_lines(self) -> Iterator[str]:
        for text, error in self.raw_lines():
            self._problem = self._problem or error
            self._row_size += len(text)
            if self._row_size > self.most_bytes:
                raise InputError(
                    f"{self.source.name} has a row of more than {self.most_bytes:,} letters over several lines: is a "
                    "quotation mark missing? (--max-line-bytes)"
                )
            yield text + "\n"


class TsvReader(CsvReader):
    """As CSV, with tabs."""

    delimiter = "\t"


class ParquetReader(Reader):
    """A column of a Parquet file: texts, or lists of words."""

    unit = "row"
    has_columns = True

    def __init__(self, path: str, column: str | None, pretokenized: bool, most_bytes: int) -> None:
        super().__init__(path, column, pretokenized, most_bytes)
        import pyarrow as pa
        import pyarrow.parquet as pq

        if path == STANDARD_INPUT:
            raise InputError("Parquet cannot be read from standard input: it has to be a file.")
        try:
            self.file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"The input {path} is no Parquet file: {reason(error)}.") from error
        self._read = 0

    def lines(self) -> Iterator[Line]:
        """Reads the rows."""
        import pyarrow as pa

        names = self.file.schema_arrow.names
        name = names[column_among(names, self.column, self.source.name)]
        try:
            for batch in self.file.iter_batches(batch_size=1024, columns=[name]):
                for value in values_of(batch.column(0)):
                    self._read += 1
                    if isinstance(value, UnicodeDecodeError):
                        yield Line("", "is not valid UTF-8")
                        continue
                    line = self.line_of(value, f"in the column {name!r}")
                    yield Line("", self._too_long(line.size)) if line.size > self.most_bytes else line
        except pa.ArrowException as error:
            raise InputError(f"The input {self.source.name} is damaged: {reason(error)}.") from error

    def fraction(self) -> float | None:
        """How many of the rows have been read."""
        rows = self.file.metadata.num_rows
        return self._read / rows if rows else None

    def close(self) -> None:
        """Closes the input."""
        self.file.close()
        super().close()


def values_of(array: Any) -> Iterator[Any]:
    """The values of an Arrow array, a UnicodeDecodeError for each text that is not valid UTF-8."""
    try:
        yield from array.to_pylist()
        return
    except UnicodeDecodeError:
        pass
    for value in array:
        try:
            yield value.as_py()
        except UnicodeDecodeError as error:
            yield error


def column_among(names: Sequence[str], column: str | None, source: str) -> int:
    """The place of a column.

    Args:
        names: The columns that there are.
        column: The one that is wanted, or None for the only one or one with a usual name.
        source: The input, for messages.

    Raises:
        InputError: It is not there, or it is not clear which is meant.
    """
    there = ", ".join(map(repr, names)) or "none"
    if column is not None:
        if column not in names:
            raise InputError(f"{source} has no column {column!r}; its columns are {there}.")
        return list(names).index(column)
    if len(names) == 1:
        return 0
    usual = next((name for name in DEFAULT_COLUMNS if name in names), None)
    if usual is None:
        raise InputError(f"Which column of {source} holds the sentences? Name it with --column: {there}.")
    return list(names).index(usual)


READERS: dict[str, type[Reader]] = {
    "text": TextReader,
    "conllu": ConlluReader,
    "jsonl": JsonlReader,
    "csv": CsvReader,
    "tsv": TsvReader,
    "parquet": ParquetReader,
}
_ENDINGS = {".conll": "conllu", ".ndjson": "jsonl", ".pq": "parquet"} | {f".{name}": name for name in READERS}
_PACKED = (".gz", ".xz", ".bz2")


def format_of(path: str, given: str | None = None) -> str:
    """The format of an input: the one that is given, or by the ending of its name, or plain text.

    Raises:
        SettingError: The given one is unknown.
    """
    if given is not None:
        if given not in READERS:
            raise SettingError(f"The input format {given!r} is unknown: choose one of {', '.join(READERS)}.")
        return given
    endings = [ending for ending in Path(path).suffixes[-2:] if ending not in _PACKED]
    return _ENDINGS.get(endings[-1].lower(), "text") if endings else "text"


def open_reader(
    path: str,
    format: str | None = None,
    column: str | None = None,
    pretokenized: bool = False,
    most_bytes: int = 1 << 20,
) -> Reader:
    """Opens an input.

    Args:
        path: The file, or `-`.
        format: One of `READERS`; by default by the ending of the name.
        column: The column or field with the sentence, in formats that have some.
        pretokenized: Whether texts are words with blanks between them.
        most_bytes: The longest line to accept.

    Raises:
        InputError: It cannot be opened.
        SettingError: The options do not fit the format.
    """
    reader = READERS[format_of(path, format)]
    if column is not None and not reader.has_columns:
        raise SettingError(f"--column is for JSONL, CSV and Parquet; {path} is read as {format_of(path, format)}.")
    return reader(path, column, pretokenized, most_bytes)
