"""What has to be known of a text before training: how much there is of it, and which words."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .corpus import Corpus
from .runs import record_run


@dataclass(frozen=True)
class TextFacts:
    """What one walk through the training text finds.

    Attributes:
        sentences: Sentences.
        words: Words, boundaries left out.
        counts: How often each word occurs.
    """

    sentences: int
    words: int
    counts: Mapping[str, int]

    @property
    def targets(self) -> int:
        """Words that each direction predicts: those of the sentences, and the end of each."""
        return self.words + self.sentences


def survey(corpus: Corpus, show_progress: bool = False) -> TextFacts:
    """Walks through a text once and counts.

    Raises:
        ValueError: There is no sentence.
    """
    counts: Counter[str] = Counter()
    number = 0
    walk = corpus.iterate()
    with corpus.bar(shown=show_progress) as bar:
        for number, words in enumerate(walk, start=1):
            counts.update(words)
            if number % 10_000 == 0:
                bar.update(walk.progress() - bar.n)
    return TextFacts(number, counts.total(), counts)


def begin_run(
    output: Path,
    identity: Mapping[str, Any],
    corpus: Corpus,
    choose_words: Callable[[Mapping[str, int]], Sequence[str] | None],
) -> dict[str, Any]:
    """Walks through the text of a new run and records what it finds, so that going on need not do it again.

    Args:
        output: The folder of the run.
        identity: All that the numbers of the run depend on.
        corpus: The text.
        choose_words: Makes a vocabulary of the counts, where the run has one of its own.

    Returns:
        `sentences`, `words` (their number) and `vocabulary`.

    Raises:
        ValueError: There is no sentence, or no vocabulary can be made.
        OSError: The text cannot be read, or the record not written.
    """
    found = survey(corpus, show_progress=sys.stderr.isatty())
    vocabulary = choose_words(found.counts)
    facts = {"sentences": found.sentences, "words": found.words, "vocabulary": vocabulary}
    record_run(output, identity, facts)
    return facts
