"""The stream protocol of bilm-tf: sentences flow through parallel rows, a fixed number of words at a time.

Each row takes the next sentence of the corpus when it has used up its own. The forward direction reads `<S> w1 ... wn`
and predicts `w1 ... wn </S>`, the backward direction reads `</S> wn ... w1` and predicts `wn ... w1 <S>`; the states
of the LSTMs go from batch to batch, also across the end of a sentence. Source: `_get_batch` in bilm-tf's `data.py`,
`_batch_generator` in DeepPavlov.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from ..tokenization_elmo import ElmoTokenizer
from .corpus import Corpus, Sentences
from .word_rows import MAX_WORDS, WordRows

Words = list[str | None]


class Row:
    """One row of a stream: a sentence with its boundaries, and how many of its steps were taken."""

    def __init__(self, words: list[str] | None = None, at: int = 0) -> None:
        self.words = words or []
        self.backwards = self.words[::-1]
        self.at = at

    @property
    def left(self) -> int:
        """Steps that are left of the sentence; the last word is only predicted."""
        return max(0, len(self.words) - 1 - self.at)


class StreamBatches(IterableDataset[dict[str, Tensor]]):
    """Batches of the stream protocol; iterating goes on where it stopped, also in another process.

    A batch holds `input_ids` and `backward_input_ids`, (batch_size, unroll_steps, characters), and `forward_labels`
    and `backward_labels`, (batch_size, unroll_steps), all int64, all in the order of reading.

    Several processes read the same corpus; each gives its own rows of one batch of `batch_size * process_count` rows,
    so that their batches together are those that one process would give.

    Args:
        corpus: The sentences.
        tokenizer: The tokenizer, with a word vocabulary.
        batch_size: Rows of this process.
        unroll_steps: Words of a row in a batch.
        epochs: How often an iteration reads the corpus, without a break between; None for ever.
        seed: Shuffles the corpus, in each epoch otherwise; None keeps its order.
        process_index: Which process this is.
        process_count: How many there are.
        keep_incomplete: At the end, when some rows have no more sentence, give the others' words still, with zeros and
            the label -100 elsewhere. By default they are dropped, as in the originals.
        max_cached_words: How many words keep their rows of character ids in memory.

    Raises:
        ValueError: The tokenizer has no word vocabulary, or a number is not positive.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: ElmoTokenizer,
        batch_size: int,
        unroll_steps: int = 20,
        *,
        epochs: int | None = 1,
        seed: int | None = None,
        process_index: int = 0,
        process_count: int = 1,
        keep_incomplete: bool = False,
        max_cached_words: int = MAX_WORDS,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("unroll_steps", unroll_steps), ("epochs", epochs)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be 1 or more.")
        if not 0 <= process_index < process_count:
            raise ValueError(f"There is no process {process_index} of {process_count}: processes count from 0.")
        self.corpus = corpus
        self.batch_size = batch_size
        self.unroll_steps = unroll_steps
        self.epochs = epochs
        self.seed = seed
        self.keep_incomplete = keep_incomplete
        self.process_index = process_index
        self.process_count = process_count
        self._lookup = WordRows(tokenizer, max_cached_words)
        self._rewind(epoch=0)

    def _rewind(self, epoch: int) -> None:
        """Puts empty rows at the beginning of an epoch."""
        self._first_epoch = epoch
        self._rows = [Row() for _ in range(self.batch_size * self.process_count)]
        self._sentences: Sentences | None = self.corpus.iterate(epoch, self.seed)
        self._batches = 0

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with this epoch, from its beginning; nothing where it is already in it."""
        if epoch != self._first_epoch:
            self._rewind(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch given: what the rows hold, and where the corpus was.

        Plain numbers, lists and strings, the same in every process.
        """
        return {
            "first_epoch": self._first_epoch,
            "batches": self._batches,
            "rows": [{"words": row.words, "at": row.at} for row in self._rows],
            "sentences": None if self._sentences is None else self._sentences.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a position: the next batch is the one that would have followed.

        Raises:
            ValueError: The position has another number of rows, or is one of another corpus.
        """
        rows = state["rows"]
        if len(rows) != self.batch_size * self.process_count:
            raise ValueError(
                f"The position has {len(rows)} rows, but the batch has {self.batch_size * self.process_count}"
                f" ({self.batch_size} in each of {self.process_count} processes): go on with as many."
            )
        self._rows = [Row(list(row["words"]), row["at"]) for row in rows]
        self._first_epoch, self._batches = state["first_epoch"], state["batches"]
        self._sentences = None
        if state["sentences"] is not None:
            self._sentences = self.corpus.iterate(seed=self.seed, position=state["sentences"])

    def progress(self) -> int:
        """How much of the size of the corpus has been read."""
        return self.corpus.size if self._sentences is None else self._sentences.progress()

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while (lines := self._read()) is not None:
            self._batches += 1
            yield self._encode(lines)
        self._rewind(self._first_epoch + (self.epochs or 0))

    def count(self, batches_of_epochs: int | None = None) -> int:
        """How many batches an iteration from the beginning gives; reads the corpus once an epoch, without encoding.

        Args:
            batches_of_epochs: Count these epochs instead of `epochs`, which may have no end.
        """
        epochs = batches_of_epochs or self.epochs
        if epochs is None:
            raise ValueError("Batches without end cannot be counted: say of how many epochs.")
        steps = self.unroll_steps
        free = [(0, row, 0) for row in range(len(self._rows))]
        end = 0
        for epoch in range(self._first_epoch, self._first_epoch + epochs):
            for words in self.corpus.iterate(epoch, self.seed):
                _, row, taken = free[0]
                taken += len(words) + 1
                end = max(end, taken)
                heapq.heapreplace(free, (taken // steps, row, taken))
        return -(-end // steps) if self.keep_incomplete else free[0][0]

    def _next_sentence(self) -> list[str] | None:
        """The next sentence of the corpus, in the next epoch if need be; None when there is none."""
        while self._sentences is not None:
            words = next(self._sentences, None)
            if words is not None:
                return words
            following = self._sentences.epoch + 1
            has_more = self.epochs is None or following < self._first_epoch + self.epochs
            self._sentences = self.corpus.iterate(following, self.seed) if has_more else None
        return None

    def _read(self) -> list[tuple[Words, Words, Words, Words]] | None:
        """Moves every row on by a batch.

        Returns:
            For each row of this process the words that the forward direction reads and predicts, and those of the
            backward direction, None where there are none; or None at the end.
        """
        own = range(self.process_index * self.batch_size, (self.process_index + 1) * self.batch_size)
        steps = self.unroll_steps
        lines: list[tuple[Words, Words, Words, Words]] = []
        is_empty = True
        for index, row in enumerate(self._rows):
            line: tuple[Words, Words, Words, Words] = ([], [], [], [])
            room = steps
            while room:
                if not row.left:
                    words = self._next_sentence()
                    if words is None:
                        if not self.keep_incomplete:
                            return None
                        break
                    row = self._rows[index] = Row([self._lookup.bos, *words, self._lookup.eos])
                begin, end = row.at, row.at + min(room, row.left)
                if index in own:
                    line[0].extend(row.words[begin:end])
                    line[1].extend(row.words[begin + 1 : end + 1])
                    line[2].extend(row.backwards[begin:end])
                    line[3].extend(row.backwards[begin + 1 : end + 1])
                room -= end - begin
                row.at = end
                is_empty = False
            if index in own:
                for part in line:
                    part.extend([None] * room)
                lines.append(line)
        return None if is_empty else lines

    def _encode(self, lines: list[tuple[Words, Words, Words, Words]]) -> dict[str, Tensor]:
        lookup = self._lookup
        shape = (4, len(lines), self.unroll_steps)
        slots = lookup.slots([word for part in range(4) for line in lines for word in line[part]]).reshape(shape)
        return {
            "input_ids": torch.from_numpy(lookup.rows(slots[0])),
            "forward_labels": torch.from_numpy(lookup.numbers(slots[1])),
            "backward_input_ids": torch.from_numpy(lookup.rows(slots[2])),
            "backward_labels": torch.from_numpy(lookup.numbers(slots[3])),
        }
