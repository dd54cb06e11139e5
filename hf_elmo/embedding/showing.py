"""Occurrences of a word from a file, and how they look in a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from .embedder import ElmoEmbedder, Sentence
from .errors import InputError
from .neighbors import Occurrence, find_occurrences
from .readers import STANDARD_INPUT, open_reader

QUERY_STYLE, SAME_STYLE, OTHER_STYLE = "bold black on yellow", "bold green", "bold cyan"


def sentences_of(
    path: str, format: str | None = None, column: str | None = None, pretokenized: bool = False
) -> Callable[[], Iterator[Sentence]]:
    """A file that can be read as often as it is called; a line that cannot be used counts as blank.

    Raises:
        InputError: The file cannot be opened.
    """
    if path == STANDARD_INPUT:
        raise InputError("The sentences are read twice, which standard input does not allow: name a file.")
    open_reader(path, format, column, pretokenized).close()

    def read() -> Iterator[Sentence]:
        with contextlib.closing(open_reader(path, format, column, pretokenized)) as reader:
            for line in reader:
                yield line.content

    return read


def vectors_of_occurrences(
    embedder: ElmoEmbedder,
    sentences: Callable[[], Iterable[Sentence]],
    word: str,
    most: int,
    ignore_case: bool = False,
) -> tuple[list[tuple[int, int, list[str]]], np.ndarray]:
    """The first occurrences of a word and their vectors in all layers.

    Returns:
        (sentence, position, words) of each, and an array of shape (occurrences, layers, dim).

    Raises:
        ValueError: The word does not occur.
    """
    found = find_occurrences(embedder.split_lazily(sentences()), word, most, ignore_case)
    vectors = embedder.embed([words for _, _, words in found], layers="all")
    return found, np.stack([one[:, place] for one, (_, place, _) in zip(vectors, found, strict=True)])


def show_occurrences(occurrences: Sequence[Occurrence], console: Console) -> None:
    """Prints occurrences, each with its neighbours below it, lined up at the word."""
    for number, occurrence in enumerate(occurrences):
        if number:
            console.print()
        word = occurrence.words[occurrence.position]
        room = max(30, console.width - 18)
        head = Text(f"{'line':>6} {occurrence.sentence + 1:<8,}  ", style="bold")
        head.append_text(context_line(occurrence.words, occurrence.position, QUERY_STYLE, room))
        console.print(head, no_wrap=True, overflow="ellipsis", crop=True)
        if not occurrence.neighbors:
            console.print(Text("        no other sentence has it", style="dim"))
        for neighbor in occurrence.neighbors:
            style = SAME_STYLE if neighbor.word.casefold() == word.casefold() else OTHER_STYLE
            row = Text(f"{neighbor.similarity:6.3f}", style=similarity_style(neighbor.similarity))
            row.append(f" {neighbor.sentence + 1:<8,}  ", style="dim")
            row.append_text(context_line(neighbor.words, neighbor.position, style, room))
            console.print(row, no_wrap=True, overflow="ellipsis", crop=True)


def similarity_style(similarity: float) -> str:
    """Near is bright."""
    return "bold green" if similarity >= 0.8 else "yellow" if similarity >= 0.6 else "dim"


def context_line(words: Sequence[str], position: int, style: str, width: int) -> Text:
    """A sentence around a word, cut on both sides to a width, the word at the same place in each line."""
    half = max(8, (width - len(words[position])) // 2 - 1)
    before, after = " ".join(words[:position]), " ".join(words[position + 1 :])
    before = before if len(before) <= half else "…" + before[len(before) - half + 1 :]
    after = after if len(after) <= half else after[: half - 1] + "…"
    line = Text(before.rjust(half) + " ")
    line.append(words[position], style=style)
    line.append(" " + after)
    return line
