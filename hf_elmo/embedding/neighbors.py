"""The nearest words in context: the paper's table 4, over any number of sentences."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
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
    """Keeps, for each of some vectors, the nearest words of a stream of sentences.

    Args:
        queries: Vectors, shape (queries, dim).
        top_k: How many to keep for each.
    """

    def __init__(self, queries: np.ndarray, top_k: int) -> None:
        if top_k < 1:
            raise ValueError(f"top_k must be 1 or more, not {top_k}.")
        self.queries = unit_vectors(queries)
        self.top_k = top_k
        self._kept: list[list[tuple[float, int, int, list[str]]]] = [[] for _ in queries]

    def read(
        self,
        sentences: Iterable[tuple[int, list[str], np.ndarray]],
        word: str | None = None,
        left_out: frozenset[tuple[int, int]] = frozenset(),
        ignore_case: bool = False,
    ) -> None:
        """Goes through sentences.

        Args:
            sentences: Number, words, and vectors (words, dim) of each sentence.
            word: Only this word; by default all words.
            left_out: Places (sentence, position) that do not count, such as those of the queries.
            ignore_case: Whether capitals make no difference to `word`.
        """
        wanted = word.casefold() if word is not None and ignore_case else word
        for number, words, vectors in sentences:
            found = [
                position
                for position, candidate in enumerate(words)
                if (wanted is None or (candidate.casefold() if ignore_case else candidate) == wanted)
                and (number, position) not in left_out
            ]
            if found:
                self._keep(number, words, found, unit_vectors(vectors[found]) @ self.queries.T)

    def _keep(self, number: int, words: list[str], positions: list[int], similarities: np.ndarray) -> None:
        for query, kept in enumerate(self._kept):
            column = similarities[:, query]
            best = np.argsort(-column, kind="stable")[: self.top_k]
            for place in best.tolist():
                # Equal similarities: the earlier sentence stays.
                entry = (float(column[place]), -number, -positions[place], words)
                if len(kept) < self.top_k:
                    heapq.heappush(kept, entry)
                elif entry[:3] > kept[0][:3]:
                    heapq.heapreplace(kept, entry)

    def results(self) -> list[list[Neighbor]]:
        """For each query its neighbours, nearest first."""
        return [
            [Neighbor(similarity, -number, -position, words) for similarity, number, position, words in ordered]
            for ordered in (sorted(kept, key=lambda entry: entry[:3], reverse=True) for kept in self._kept)
        ]


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Vectors (n, dim) at length 1, float32; zeros stay."""
    vectors = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)
