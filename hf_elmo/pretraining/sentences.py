"""The sentence protocol: whole sentences from zero states, those of like length together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from ..modeling_elmo import NO_LABEL
from ..tokenization_elmo import ElmoTokenizer
from .corpus import Corpus, Sentences
from .word_rows import MAX_WORDS, WordRows

# Sentences that are sorted by length at a time.
WINDOW = 8192


class SentenceBatches(IterableDataset[dict[str, Tensor]]):
    """Batches of whole sentences; iterating goes on where it stopped, also in another process.

    A batch holds `input_ids` (batch, seq, characters), `attention_mask` (batch, seq) and `labels` (batch, seq), the
    numbers of the words, all int64; the boundaries are words among them, and -100 is the label of padding.

    Sentences are read in windows, sorted by length within a window and cut into batches, which are shuffled if there
    is a seed. Several processes read the same corpus, and each takes its share of every batch: together they have the
    batches of one process with batches as large as theirs together.

    Args:
        corpus: The sentences.
        tokenizer: The tokenizer, with a word vocabulary.
        batch_size: Sentences of a batch, at most, in this process.
        max_words: Words of a batch, at most, padding and boundaries included, in this process; a sentence that is
            longer is a batch by itself.
        epochs: How often an iteration reads the corpus; None for ever.
        seed: Shuffles the corpus and the batches, in each epoch otherwise; None keeps their order.
        process_index: Which process this is.
        process_count: How many there are.
        max_cached_words: How many words keep their rows of character ids in memory.

    Raises:
        ValueError: The tokenizer has no word vocabulary, a number is not positive, or batches are not limited.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: ElmoTokenizer,
        batch_size: int | None = None,
        max_words: int | None = None,
        *,
        epochs: int | None = 1,
        seed: int | None = None,
        process_index: int = 0,
        process_count: int = 1,
        max_cached_words: int = MAX_WORDS,
    ) -> None:
        if batch_size is None and max_words is None:
            raise ValueError("Give batch_size or max_words: one of them limits the batches.")
        for name, value in (("batch_size", batch_size), ("max_words", max_words), ("epochs", epochs)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be 1 or more.")
        if not 0 <= process_index < process_count:
            raise ValueError(f"There is no process {process_index} of {process_count}: processes count from 0.")
        self.corpus = corpus
        self.batch_size = batch_size
        self.max_words = max_words
        self.epochs = epochs
        self.seed = seed
        self.process_index = process_index
        self.process_count = process_count
        self._lookup = WordRows(tokenizer, max_cached_words)
        whole = WINDOW if batch_size is None else batch_size * process_count
        self._window_size = max(1, WINDOW // whole) * whole
        self._rewind(epoch=0)

    def _rewind(self, epoch: int) -> None:
        """Goes to the beginning of an epoch."""
        self._first_epoch = epoch
        self._open(self.corpus.iterate(epoch, self.seed))

    def _open(self, sentences: Sentences) -> None:
        """Begins a window where the sentences are."""
        self._sentences = sentences
        self._window_start, self._window_progress = sentences.state_dict(), sentences.progress()
        self._window: list[list[list[str]]] | None = None
        self._taken = 0

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with this epoch, from its beginning; nothing where it is already in it."""
        if epoch != self._first_epoch:
            self._rewind(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch given; plain numbers and strings, the same in every process."""
        return {"first_epoch": self._first_epoch, "window": self._window_start, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a position: the next batch is the one that would have followed.

        Raises:
            ValueError: The position is one of another corpus.
        """
        self._first_epoch = state["first_epoch"]
        self._open(self.corpus.iterate(seed=self.seed, position=state["window"]))
        self._taken = state["taken"]

    def progress(self) -> int:
        """How much of the size of the corpus the batches given so far are."""
        begin, end = self._window_progress, self._sentences.progress()
        return begin + (end - begin) * self._taken // max(1, len(self._window or []))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while (batch := self._next_batch()) is not None:
            yield self._encode(batch)
        self._rewind(self._first_epoch + (self.epochs or 0))

    def count(self, batches_of_epochs: int | None = None) -> int:
        """How many batches an iteration from the beginning gives; reads the corpus once an epoch, without encoding.

        Args:
            batches_of_epochs: Count these epochs instead of `epochs`, which may have no end.
        """
        epochs = batches_of_epochs or self.epochs
        if epochs is None:
            raise ValueError("Batches without end cannot be counted: say of how many epochs.")
        found = 0
        for epoch in range(self._first_epoch, self._first_epoch + epochs):
            sentences = self.corpus.iterate(epoch, self.seed)
            while window := self._read_window(sentences):
                found += len(window)
        return found

    def _next_batch(self) -> list[list[str]] | None:
        """The sentences of the next batch of all processes; None at the end."""
        if self._window is None:
            self._window = self._read_window(self._sentences)
        while self._taken >= len(self._window):
            following = self._sentences.epoch
            if not self._window:
                following += 1
                if self.epochs is not None and following >= self._first_epoch + self.epochs:
                    return None
                self._open(self.corpus.iterate(following, self.seed))
            else:
                self._open(self._sentences)
            self._window = self._read_window(self._sentences)
        self._taken += 1
        return self._window[self._taken - 1]

    def _read_window(self, sentences: Sentences) -> list[list[list[str]]]:
        """The batches of the next window of sentences; none at the end of the epoch."""
        start = sentences.number
        window = list(islice(sentences, self._window_size))
        batches = self._cut(sorted(window, key=len))
        if self.seed is None:
            return batches
        order = np.random.default_rng([self.seed, sentences.epoch, start]).permutation(len(batches))
        return [batches[place] for place in order]

    def _cut(self, window: list[list[str]]) -> list[list[list[str]]]:
        """Cuts sentences, sorted by length, into batches of all processes."""
        most = None if self.batch_size is None else self.batch_size * self.process_count
        room = None if self.max_words is None else self.max_words * self.process_count
        batches: list[list[list[str]]] = []
        for words in window:
            count = len(batches[-1]) + 1 if batches else 0
            # In the fullest of the processes.
            padded = -(-count // self.process_count) * self.process_count * (len(words) + 2)
            if not batches or (most is not None and count > most) or (room is not None and padded > room):
                batches.append([])
            batches[-1].append(words)
        return batches

    def _encode(self, batch: list[list[str]]) -> dict[str, Tensor]:
        own = batch[self.process_index :: self.process_count]
        # A process that is left without a sentence takes one that does not count: all must take part in a step.
        sentences = own or batch[:1]
        lookup = self._lookup
        length = max(map(len, sentences)) + 2
        words: list[str | None] = []
        for sentence in sentences:
            words += [lookup.bos, *sentence, lookup.eos, *[None] * (length - 2 - len(sentence))]
        slots = lookup.slots(words).reshape(len(sentences), length)
        labels = lookup.numbers(slots) if own else np.full(slots.shape, NO_LABEL)
        return {
            "input_ids": torch.from_numpy(lookup.rows(slots)),
            "attention_mask": torch.from_numpy((slots != 0).astype(np.int64)),
            "labels": torch.from_numpy(labels),
        }
