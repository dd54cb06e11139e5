"""Word vectors of text files, as GloVe, word2vec and fastText write them, for the words of a tokenizer."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from ..lexicon_elmo import WordVocabulary
from ..modeling_elmo import ElmoPreTrainedModel
from ..pretraining.corpus import decompressed
from ..tokenization_elmo import ElmoTokenizer

LONGEST_LINE = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class WordVectors(NamedTuple):
    """Vectors of the words of a vocabulary. V is the number of words.

    Attributes:
        vectors: In the order of word ids, so that row 0 is padding, shape (V + 1, size), float32; zeros where the
            file has no vector.
        found: For which ids the file has one, bool, shape (V + 1,).
    """

    vectors: torch.Tensor
    found: torch.Tensor

    @property
    def coverage(self) -> float:
        """The share of words that have a vector."""
        return float(self.found[1:].double().mean())


def load_word_vectors(
    path: str | os.PathLike[str],
    tokenizer: ElmoTokenizer | WordVocabulary | Sequence[str],
    model: ElmoPreTrainedModel | None = None,
    show_progress: bool | None = None,
) -> WordVectors:
    """Reads the vectors of known words from a file, and puts them into the word vectors x of a head.

    The file is read once, line by line: a word, then its numbers, parted by blanks; a first line with the numbers of
    words and of columns (word2vec, fastText) is taken for what it is. It may be packed (.gz, .xz). A word that the
    file does not have as it is written has the vector of its lower-case form. Words without a vector keep what the
    model has for them.

    Args:
        path: The file.
        tokenizer: A tokenizer with a word vocabulary, or its words in the order of their ids.
        model: A head with `task_embedding_size`; without one the vectors are only returned.
        show_progress: Whether to show a bar; by default at a terminal.

    Raises:
        ValueError: The tokenizer has no words, the model has no place for the vectors or another size, the file is no
            text with vectors of one length (the message names the line), or it has none of the words.
        OSError: The file cannot be read.
    """
    words = words_of(tokenizer)
    table = None if model is None else table_of(model, len(words))
    name, size = os.fspath(path), None if table is None else table.shape[1]
    rows_of_word, rows_of_lower = _rows(words)
    vectors: np.ndarray | None = None
    exact, found = (np.zeros(len(words) + 1, dtype=bool) for _ in range(2))
    for line in _lines(Path(path), size, show_progress):
        rows, others = rows_of_word.get(line.word, ()), rows_of_lower.get(line.word, ())
        rows = [row for row in rows if not exact[row]]
        others = [row for row in others if not found[row]]
        if vectors is None:
            vectors = np.zeros((len(words) + 1, line.size), dtype=np.float32)
        if rows or others:
            vectors[rows + others] = line.numbers()
            exact[rows] = found[rows + others] = True
    if vectors is None or not found.any():
        raise ValueError(
            f"{name} has a vector for none of the {len(words)} words: is it of another language, or are its words "
            "written in another way?"
        )
    result = WordVectors(torch.from_numpy(vectors), torch.from_numpy(found))
    if table is not None:
        with torch.no_grad():
            chosen = result.found.to(table.device)
            table[chosen] = result.vectors[result.found].to(table)
    return result


def words_of(tokenizer: ElmoTokenizer | WordVocabulary | Sequence[str]) -> list[str]:
    """The words in the order of their ids, which begin with 1.

    Raises:
        ValueError: A tokenizer has none.
    """
    vocabulary = tokenizer.word_vocabulary if isinstance(tokenizer, ElmoTokenizer) else tokenizer
    if vocabulary is None:
        raise ValueError(
            "The tokenizer has no word vocabulary, so there are no words to find vectors for: make it with "
            "`word_vocabulary=WordVocabulary(build_vocabulary(sentences))`."
        )
    return vocabulary.words if isinstance(vocabulary, WordVocabulary) else list(vocabulary)


def table_of(model: ElmoPreTrainedModel, count: int) -> torch.Tensor:
    """The word vectors of a head, shape (count + 1, size).

    Raises:
        ValueError: It has none, or those of another number of words.
    """
    embeddings = getattr(getattr(model, "task_network", None), "embeddings", None)
    if embeddings is None:
        raise ValueError(
            f"This {type(model).__name__} has no word vectors: make a head with `task_embedding_size=` and "
            "`word_vocab_size=`."
        )
    if len(embeddings.weight) != count + 1:
        raise ValueError(
            f"The tokenizer has {count} words, but the model has vectors of {len(embeddings.weight) - 1} "
            "(`word_vocab_size`)."
        )
    return embeddings.weight


def _rows(words: Sequence[str]) -> tuple[dict[bytes, list[int]], dict[bytes, list[int]]]:
    """The ids of words as they are written, and of words that are not in lower case by their lower-case form."""
    as_written: dict[bytes, list[int]] = {}
    in_lower_case: dict[bytes, list[int]] = {}
    for row, word in enumerate(words, start=1):
        as_written.setdefault(word.encode("utf-8", "surrogatepass"), []).append(row)
        if (lower := word.lower()) != word:
            in_lower_case.setdefault(lower.encode("utf-8", "surrogatepass"), []).append(row)
    return as_written, in_lower_case


class _Line(NamedTuple):
    """A word and its numbers, which are parsed when they are wanted."""

    name: str
    number: int
    word: bytes
    rest: bytes
    size: int

    def numbers(self) -> np.ndarray:
        """Shape (size,), float32."""
        try:
            numbers = np.array(self.rest.split()).astype(np.float32)
        except ValueError:
            numbers = np.array(np.nan)
        if numbers.shape != (self.size,) or not np.isfinite(numbers).all():
            raise ValueError(
                f"{self.name}, line {self.number}, has no {self.size} numbers behind {self._shown()}: "
                f"{self.rest[:40].decode('utf-8', 'replace')} ..."
            )
        return numbers

    def _shown(self) -> str:
        return repr(self.word[:40].decode("utf-8", "replace"))


def _lines(path: Path, size: int | None, show_progress: bool | None) -> Iterator[_Line]:
    """The lines with vectors of one size: `size`, or that of the first line."""
    name, expected, number = str(path), size, 0
    with _opened(path, show_progress) as (file, advance):
        while raw := file.readline(LONGEST_LINE + 1):
            number += 1
            advance()
            line = raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
            line = line.replace(b"\t", b" ").strip()
            if len(raw) > LONGEST_LINE or b"\0" in line:
                raise ValueError(
                    f"{name}, line {number}, is no text with word vectors; write binary vectors as text, and "
                    "unpack archives."
                )
            if not line:
                raise ValueError(f"{name}, line {number}, is empty: each line is a word and its numbers.")
            word, _, rest = line.partition(b" ")
            columns = rest.count(b" ") + 1 if rest else 0
            if number == 1:
                if columns == 1 and word.isdigit() and rest.isdigit():
                    size = int(rest)
                    _check_size(name, size, expected)
                    continue
                size = columns if expected is None else expected
            assert size is not None
            if columns != size:
                columns = len(rest.split())  # more than one blank between numbers
            if columns != size:
                if columns > size and _is_phrase(rest, columns - size):
                    continue
                if number == 1:
                    _check_size(name, columns, expected)
                raise ValueError(
                    f"{name}, line {number}, has {columns} numbers behind {word[:40].decode('utf-8', 'replace')!r}, "
                    f"but the vectors of this file have {size}."
                )
            yield _Line(name, number, word, rest, size)
    if number == 0:
        raise ValueError(f"{name} is empty: it holds no word vectors.")


def _is_phrase(rest: bytes, more: int) -> bool:
    """Whether what is too much before the numbers is the rest of an entry with blanks, which is no word."""
    try:
        for part in rest.split()[:more]:
            float(part)
    except ValueError:
        return True
    return False


def _check_size(name: str, size: int, expected: int | None) -> None:
    if expected is not None and size != expected:
        raise ValueError(
            f"{name} has vectors of {size} numbers, but the model has room for {expected} (`task_embedding_size`)."
        )


@contextmanager
def _opened(path: Path, show_progress: bool | None) -> Iterator[tuple[io.BufferedIOBase, Callable[[], None]]]:
    """A file, packed or not, and what to call after each line."""
    with (
        open(path, "rb") as raw,
        tqdm(
            total=path.stat().st_size,
            unit="B",
            unit_scale=True,
            desc=f"Reading {path.name}",
            disable=not (sys.stderr.isatty() if show_progress is None else show_progress),
        ) as bar,
    ):
        file, lines = decompressed(raw), 0

        def advance() -> None:
            nonlocal lines
            lines += 1
            if lines % 1000 == 0:
                bar.update(raw.tell() - bar.n)

        try:
            yield file, advance
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{path} is damaged or incomplete after line {lines}: {error}") from error
        bar.update(path.stat().st_size - bar.n)


__all__ = ["WordVectors", "load_word_vectors"]
