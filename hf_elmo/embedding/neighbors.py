"""The nearest words in context: the paper's table 4, over any number of sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class Neighbor(NamedTuple):
    """A word in a sentence, near to the one that was asked for.

    Attributes:
        similarity: Cosine similarity.
        sentence: The number of the sentence among those that were read, from 0.
        position: The place of the word in it, from 0.
        words: The words of the sentence.
    """

    similarity: float
    sentence: int
    position: int
    words: list[str]

    @property
    def word(self) -> str:
        """The word itself."""
        return self.words[self.position]


class NearestWords:
    """Keeps, for each of some words, the nearest words of a stream of sentences.

    Sentences that are equal to that of the word do not count, and of equal sentences only the first does.

    Args:
        queries: Vectors, shape (queries, dim).
        sentences: The words of the sentence of each.
        top_k: How many to keep for each.
    """

    def __init__(self, queries: np.ndarray, sentences: Sequence[Sequence[str]], top_k: int) -> None:
        if top_k < 1:
            raise ValueError(f"top_k must be 1 or more, not {top_k}.")
        self.queries = unit_vectors(queries)
        self.sentences = [list(words) for words in sentences]
        self.top_k = top_k
        self._kept: list[list[Neighbor]] = [[] for _ in self.sentences]

    def read(
        self,
        sentences: Iterable[tuple[int, list[str], np.ndarray]],
        word: str | None = None,
        ignore_case: bool = False,
    ) -> None:
        """Goes through sentences.

        Args:
            sentences: Number, words, and vectors (words, dim) of each sentence.
            word: Only this word; by default all words.
            ignore_case: Whether capitals make no difference to `word`.
        """
        for number, words, vectors in sentences:
            positions = list(range(len(words))) if word is None else positions_of(word, words, ignore_case)
            if positions:
                similarities = unit_vectors(vectors[positions]) @ self.queries.T
                for query, kept in enumerate(self._kept):
                    if words != self.sentences[query]:
                        self._keep(kept, number, words, positions, similarities[:, query])

    def _keep(
        self, kept: list[Neighbor], number: int, words: list[str], positions: list[int], similarities: np.ndarray
    ) -> None:
        least = kept[-1].similarity if len(kept) == self.top_k else -np.inf
        found = [
            Neighbor(float(similarities[place]), number, positions[place], words)
            for place in np.flatnonzero(similarities > least).tolist()
        ]
        known = {(neighbor.position, *neighbor.words) for neighbor in kept} if found else set()
        kept += [neighbor for neighbor in found if (neighbor.position, *neighbor.words) not in known]
        # Equal similarities: the earlier sentence comes first, for it is there already, and sorting is stable.
        kept.sort(key=lambda neighbor: -neighbor.similarity)
        del kept[self.top_k :]

    def results(self) -> list[list[Neighbor]]:
        """For each query its neighbours, nearest first."""
        return self._kept


class Occurrence(NamedTuple):
    """A word where it occurs, and its neighbours.

    Attributes:
        sentence: The number of the sentence, from 0.
        position: The place of the word in it, from 0.
        words: The words of the sentence.
        neighbors: The nearest words in other sentences, nearest first.
    """

    sentence: int
    position: int
    words: list[str]
    neighbors: list[Neighbor]


def positions_of(word: str, words: Sequence[str], ignore_case: bool = False) -> list[int]:
    """Where a word stands in a sentence."""
    if not ignore_case:
        return [position for position, candidate in enumerate(words) if candidate == word]
    folded = word.casefold()
    return [position for position, candidate in enumerate(words) if candidate.casefold() == folded]


def find_occurrences(
    sentences: Iterable[list[str]], word: str, most: int | None = None, ignore_case: bool = False
) -> list[tuple[int, int, list[str]]]:
    """Where a word occurs in sentences: (number of the sentence, place in it, its words).

    Args:
        sentences: Lists of words; read until there are enough occurrences.
        word: The word.
        most: How many occurrences to find; equal sentences count once.
        ignore_case: Whether capitals make no difference.

    Raises:
        ValueError: The word does not occur.
    """
    found: list[tuple[int, int, list[str]]] = []
    seen: set[tuple[str, ...]] = set()
    variants: set[str] = set()
    for number, words in enumerate(sentences):
        positions = positions_of(word, words, ignore_case)
        if not positions:
            variants.update(words[position] for position in positions_of(word, words, ignore_case=True))
        elif tuple(words) not in seen:
            seen.add(tuple(words))
            found += [(number, position, words) for position in positions]
        if most is not None and len(found) >= most:
            return found[:most]
    if not found:
        hint = f", but {', '.join(map(repr, sorted(variants)))} does (--ignore-case)" if variants else ""
        raise ValueError(f"The word {word!r} does not occur{hint}.")
    return found


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Vectors (n, dim) at length 1, float32; zeros stay."""
    vectors = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)
