"""Words -> rows of character ids and numbers in the vocabulary, as fast as training reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..modeling_elmo import NO_LABEL
from ..tokenization_elmo import ElmoTokenizer
from .vocabulary import vocabulary_of

# Words whose rows are kept by default: 50 MB at 50 characters a word.
MAX_WORDS = 500_000


class WordRows:
    """Looks words up, with a memory for those it has met: each of them is spelled out once.

    Args:
        tokenizer: The tokenizer; it has a word vocabulary.
        max_words: How many words are kept; when they are exceeded, all are forgotten.

    Raises:
        ValueError: The tokenizer has no word vocabulary, or no words that frame a sentence.
    """

    def __init__(self, tokenizer: ElmoTokenizer, max_words: int = MAX_WORDS) -> None:
        self.tokenizer = tokenizer
        self.max_words = max_words
        self._vocabulary = vocabulary_of(tokenizer)
        self.bos, self.eos = str(tokenizer.bos_token), str(tokenizer.eos_token)
        self._forget()

    def _forget(self) -> None:
        self._slots: dict[str | None, int] = {None: 0}
        self._rows = np.zeros((1, self.tokenizer.max_characters_per_token), dtype=np.int32)
        self._numbers = np.full(1, NO_LABEL, dtype=np.int64)

    def slots(self, words: Sequence[str | None]) -> np.ndarray:
        """Where words are in the memory, shape (n,); good for `rows` and `numbers` until the next call of this."""
        known = self._slots
        missing = {word for word in words if word not in known}
        if missing:
            if len(known) + len(missing) > self.max_words:
                self._forget()
                known, missing = self._slots, set(words) - {None}
            self._learn([word for word in missing if word is not None])
        return np.fromiter(map(known.__getitem__, words), dtype=np.int64, count=len(words))

    def rows(self, slots: np.ndarray) -> np.ndarray:
        """Rows of character ids, shape (..., characters), int64; zeros for None."""
        return self._rows[slots].astype(np.int64)

    def numbers(self, slots: np.ndarray) -> np.ndarray:
        """Numbers of words, counted from 0 as the softmax has them, int64; -100 for None."""
        return self._numbers[slots]

    def _learn(self, words: list[str]) -> None:
        tokenizer = self.tokenizer
        boundaries, width = tokenizer.boundaries, tokenizer.max_characters_per_token
        rows = tokenizer._characters.words_to_rows(words, width, boundaries)
        if tokenizer.character_lexicon is not None:
            spelled = [word if word in boundaries else word[: width - 2] for word in words]
        else:
            spelled = words
        begin, end = len(self._slots), len(self._slots) + len(words)
        if end > len(self._rows):
            room = max(end, min(2 * end, self.max_words))
            self._rows = np.concatenate([self._rows, np.zeros((room - len(self._rows), width), dtype=np.int32)])
            self._numbers = np.concatenate([self._numbers, np.zeros(room - len(self._numbers), dtype=np.int64)])
        self._rows[begin:end] = rows
        self._numbers[begin:end] = self._vocabulary.words_to_ids(spelled) - 1
        self._slots.update(zip(words, range(begin, end), strict=True))
