"""Text -> sentences, streaming: files of any size, one sentence a line, or a dataset; from any place on.

The walk over a corpus reads blocks of lines. Within a block the order may be shuffled; where a block begins and how
much of it was taken is all that has to be remembered, so going on needs one block to be read again.
"""

from __future__ import annotations

import glob
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np
from tqdm import tqdm

from ..word_splitters_elmo import build_word_splitter

# Lines in a block: where the order is kept, and where it is shuffled.
PLAIN_BLOCK = 256
SHUFFLED_BLOCK = 50_000
# Bytes that a line may have: a file without line breaks must not end up in memory.
LONGEST_LINE = 16 * 2**20

GZIP_MAGIC = b"\x1f\x8b"
XZ_MAGIC = b"\xfd7zXZ\x00"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# A sentence that is not yet split, or the words of one.
Sentence = str | list[str]
Position = dict[str, Any]


class Unit(NamedTuple):
    """What a source is read in, a line or a row.

    Attributes:
        place: The place after it.
        done: How much of the source's size was read.
        sentences: Its sentences, without blank ones.
    """

    place: int
    done: int
    sentences: list[Sentence]


class Source(Protocol):
    """A file or a dataset: units (lines, rows) that hold sentences, which can be read from any place on."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def size(self) -> int:
        """How large it is, in what `progress` counts; 0 if that is unknown."""

    def units(self, place: int, number: int) -> Iterator[Unit]:
        """Reads from a place on, where `number` units lie before."""


class TextFile:
    """A text file in UTF-8, plain, gzip or xz, with one sentence a line. Places are bytes of the text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    @cached_property
    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    def units(self, place: int, number: int) -> Iterator[Unit]:
        """Lines.

        Raises:
            ValueError: The file is damaged, or no text in UTF-8 with lines of a reasonable length.
        """
        with open(self.path, "rb") as raw:
            file = decompressed(raw)
            try:
                if place:
                    file.seek(place)
                while line := file.readline(LONGEST_LINE + 1):
                    number += 1
                    place += len(line)
                    text = self._text(line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line, number)
                    yield Unit(place, place if file is raw else raw.tell(), [text] if text else [])
            except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
                raise ValueError(f"{self.name} is damaged or incomplete after line {number}: {error}") from error

    def _text(self, line: bytes, number: int) -> str:
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"{self.name}, line {number}, is longer than {LONGEST_LINE // 2**20} MiB: a text has one sentence a"
                " line."
            )
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.name}, line {number}, is no text in UTF-8 (byte {error.start}: {error.reason}); convert the"
                " file to UTF-8 first."
            ) from error
        if "\0" in text:
            raise ValueError(f"{self.name}, line {number}, is no text: it holds a zero byte.")
        return text


def decompressed(raw: BinaryIO) -> io.BufferedIOBase:
    """The content of a file that is open: unpacked where its first bytes say gzip or xz."""
    magic = raw.read(len(XZ_MAGIC))
    raw.seek(0)
    if magic.startswith(GZIP_MAGIC):
        return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw)))
    if magic == XZ_MAGIC:
        return io.BufferedReader(cast(io.RawIOBase, lzma.LZMAFile(raw)))
    return cast(io.BufferedIOBase, raw)


class DatasetRows:
    """A dataset of the `datasets` library, also a streaming one. Places are rows.

    A row holds text, each line of it a sentence, or one sentence as a list of words.
    """

    def __init__(self, dataset: Any, column: str) -> None:
        names = getattr(dataset, "column_names", None)
        if isinstance(names, dict):
            raise ValueError(f"This is a dictionary of datasets: choose one of {', '.join(names)}.")
        if names is not None and column not in names:
            raise ValueError(f"The dataset has no column {column!r}: text_column must be one of {', '.join(names)}.")
        self.dataset = dataset
        self.column = column
        self.name = "the dataset"

    @property
    def size(self) -> int:
        """Rows; 0 for a streaming dataset."""
        return len(self.dataset) if hasattr(self.dataset, "__len__") else 0

    def units(self, place: int, number: int) -> Iterator[Unit]:
        """Rows.

        Raises:
            ValueError: A row holds neither text nor words, or lacks the column.
        """
        rows = self.dataset.select_columns([self.column]) if hasattr(self.dataset, "select_columns") else self.dataset
        for row in rows.skip(place) if place else rows:
            if self.column not in row:
                raise ValueError(f"Row {place} of the dataset has no column {self.column!r}.")
            sentences = self._sentences(row[self.column], place)
            place += 1
            yield Unit(place, place, sentences)

    def _sentences(self, content: Any, row: int) -> list[Sentence]:
        if content is None:
            return []
        if isinstance(content, str):
            return [line for line in map(str.strip, content.splitlines()) if line]
        if isinstance(content, (list, tuple)) and all(isinstance(word, str) for word in content):
            return [list(content)] if content else []
        raise ValueError(
            f"Row {row} of the dataset holds neither text nor a list of words in column {self.column!r}, but"
            f" {type(content).__name__}."
        )


@dataclass(frozen=True)
class Corpus:
    """Sentences to train on or to measure, read as they are needed.

    Args:
        sources: Files (plain text, gzip, xz; one sentence a line), folders and patterns of files; or a dataset of the
            `datasets` library.
        word_splitter: How a line becomes words: the name of a splitter, or a tokenizer whose splitter is taken. By
            default the words are separated by blanks already, as in the originals' training text.
        text_column: The column of a dataset that holds text, or lists of words.

    Raises:
        FileNotFoundError: A file is missing, or a pattern or folder matches none.
        ValueError: The splitter or the column is unknown.
    """

    sources: Any
    word_splitter: Any = "whitespace"
    text_column: str = "text"
    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"There is no part {self.index} of {self.count}: parts count from 0.")
        build_word_splitter(self.splitter_name)
        assert self.parts

    @property
    def splitter_name(self) -> str:
        """The name of the word splitter."""
        return self.word_splitter if isinstance(self.word_splitter, str) else self.word_splitter.word_splitter

    @cached_property
    def parts(self) -> list[Source]:
        """The files or the dataset, in the order that is the same everywhere."""
        if isinstance(self.sources, (str, Path)):
            return [TextFile(path) for path in find_files([self.sources])]
        if isinstance(self.sources, Sequence) and all(isinstance(source, (str, Path)) for source in self.sources):
            return [TextFile(path) for path in find_files(self.sources)]
        return [DatasetRows(self.sources, self.text_column)]

    @property
    def name(self) -> str:
        """What messages call the corpus."""
        return self.parts[0].name if len(self.parts) == 1 else f"{self.parts[0].name} and {len(self.parts) - 1} more"

    @property
    def size(self) -> int:
        """Bytes on disk, or rows of a dataset; 0 where that is unknown."""
        return sum(part.size for part in self.parts)

    def bar(self, shown: bool = True) -> tqdm:
        """A progress bar over `size`, which `Sentences.progress` moves."""
        unit = "B" if isinstance(self.parts[0], TextFile) else " rows"
        return tqdm(total=self.size or None, unit=unit, unit_scale=True, disable=not shown)

    @cached_property
    def fingerprint(self) -> int:
        """Tells whether a position belongs to this corpus: from the names and sizes of the files, not the folders."""
        described = [f"{Path(part.name).name}:{part.size}" for part in self.parts]
        return zlib.crc32("\n".join([self.splitter_name, self.text_column, *described]).encode())

    def shard(self, index: int, count: int) -> Corpus:
        """Part `index` of `count`: every `count`-th sentence, for a process of its own."""
        return Corpus(self.sources, self.word_splitter, self.text_column, index, count)

    def __iter__(self) -> Iterator[list[str]]:
        return self.iterate()

    def iterate(self, epoch: int = 0, seed: int | None = None, position: Position | None = None) -> Sentences:
        """The sentences of one epoch.

        Args:
            epoch: Which one; with a seed, each has its own order.
            seed: Shuffles the files, and the sentences within blocks of 50,000; None keeps the order.
            position: Where to go on: what `Sentences.state_dict` gave, for the same seed.

        Raises:
            ValueError: The position is one of another corpus.
        """
        return Sentences(self, epoch, seed, position)

    @cached_property
    def split(self) -> Callable[[str], list[str]]:
        """Splits a sentence into words."""
        if self.splitter_name == "whitespace":
            return str.split
        splitter = build_word_splitter(self.splitter_name)
        return lambda text: [word for word, _ in splitter.pre_tokenize_str(text)]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("split", "parts")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Sentences(Iterator[list[str]]):
    """One epoch of a corpus: an iterator over sentences, lists of words, that knows where it is.

    Blank lines are left out. `number` counts the sentences met so far, in all shards together.

    Raises:
        ValueError: While iterating: a source is no text, or the whole corpus holds no sentence.
    """

    def __init__(self, corpus: Corpus, epoch: int, seed: int | None, position: Position | None) -> None:
        self.corpus = corpus
        self.epoch = epoch
        self.seed = seed
        self.number = 0
        self._source = 0
        self._start = self._end = (0, 0)
        self._taken = 0
        self._done = (0, 0)
        if position is not None:
            self._restore(position)
        order = np.arange(len(corpus.parts))
        self._order = order if seed is None else np.random.default_rng([seed, self.epoch]).permutation(order)
        self._block: list[Sentence] = []
        self._units: Iterator[Unit] | None = None
        if position is not None and self._source < len(self._order):
            self._end = self._start
            taken, self._taken = self._taken, 0
            if taken:
                self._read_block()
                self._taken = taken

    def _restore(self, position: Position) -> None:
        if position["fingerprint"] != self.corpus.fingerprint:
            raise ValueError(
                f"The position is one of other text than {self.corpus.name}: to go on, give the same files, unchanged."
            )
        if position["seed"] != self.seed:
            raise ValueError(f"The position belongs to the order of seed {position['seed']}, not {self.seed}.")
        self.epoch, self.number = position["epoch"], position["number"]
        self._source, self._start, self._taken = position["source"], tuple(position["start"]), position["taken"]

    def state_dict(self) -> Position:
        """Where the iterator is: plain numbers, for `Corpus.iterate` to go on after the last sentence given."""
        return {
            "epoch": self.epoch,
            "seed": self.seed,
            "number": self.number,
            "source": self._source,
            "start": list(self._start),
            "taken": self._taken,
            "fingerprint": self.corpus.fingerprint,
        }

    def progress(self) -> int:
        """How much of `Corpus.size` has been read."""
        before, after = self._done
        within = before + (after - before) * self._taken // max(1, len(self._block))
        return within + sum(self.corpus.parts[place].size for place in self._order[: self._source])

    def __next__(self) -> list[str]:
        index, count, split = self.corpus.index, self.corpus.count, self.corpus.split
        while True:
            while self._taken == len(self._block):
                self._next_block()
            sentence = self._block[self._taken]
            self._taken += 1
            self.number += 1
            if count == 1 or (self.number - 1) % count == index:
                words = split(sentence) if isinstance(sentence, str) else sentence
                if words:
                    return words

    def _next_block(self) -> None:
        """Reads the next block that there is, in the next source if need be."""
        while self._source < len(self._order):
            self._start, self._taken = self._end, 0
            if self._read_block():
                return
            self._source += 1
            self._units, self._end, self._block, self._done = None, (0, 0), [], (0, 0)
        self._start = (0, 0)
        if self.number == 0:
            raise ValueError(f"{self.corpus.name} holds no sentence: a text has one sentence a line.")
        raise StopIteration

    def _read_block(self) -> bool:
        """Reads the block that begins at `_end`; False where the source is at its end."""
        part = self._order[self._source]
        place, number = self._end
        if self._units is None:
            self._units = self.corpus.parts[part].units(place, number)
        block: list[Sentence] = []
        first, done = number, self._done[1]
        for unit in self._units:
            place, number, done = unit.place, number + 1, unit.done
            block.extend(unit.sentences)
            if number - first == (PLAIN_BLOCK if self.seed is None else SHUFFLED_BLOCK):
                break
        if self.seed is not None:
            shuffled = np.random.default_rng([self.seed, self.epoch, int(part), first]).permutation(len(block))
            block = [block[index] for index in shuffled]
        self._block, self._end, self._done = block, (place, number), (self._done[1], done)
        return number > first


def find_files(sources: Sequence[str | Path]) -> list[Path]:
    """The files that paths, folders and patterns name, those of a folder or a pattern sorted.

    Raises:
        FileNotFoundError: There is none for one of them.
    """
    found: list[Path] = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
            if not files:
                raise FileNotFoundError(f"The folder {path} holds no files.")
            found.extend(files)
        elif path.exists():
            found.append(path)
        else:
            matching = sorted(Path(name) for name in glob.glob(str(source), recursive=True) if Path(name).is_file())
            if not matching:
                raise FileNotFoundError(f"There is no file {source}.")
            found.extend(matching)
    if not found:
        raise FileNotFoundError("No file was given to read.")
    return found
