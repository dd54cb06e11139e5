"""The words that a language model predicts: counted in text, the most frequent first, and checked.

The first places are those of `<S>`, `</S>` and `<UNK>`, as bilm-tf has them. The order matters: the sampled softmax
draws words by their place, as if frequencies fell off with it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..lexicon_elmo import WordVocabulary
from ..tokenization_elmo import ElmoTokenizer

SPECIAL_WORDS = ("<S>", "</S>", "<UNK>")


def count_words(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    """How often each word occurs.

    Args:
        sentences: Lists of words, such as a `Corpus`.
    """
    counts: Counter[str] = Counter()
    for words in sentences:
        counts.update(words)
    return counts


def build_vocabulary(
    sentences: Iterable[Sequence[str]] | Mapping[str, int], size: int | None = None, min_count: int = 1
) -> list[str]:
    """The vocabulary of a text: `<S>`, `</S>`, `<UNK>`, then words by falling frequency, equal ones by the alphabet.

    Args:
        sentences: Lists of words, such as a `Corpus`; or what `count_words` found in them.
        size: How many words the vocabulary may have, the three special ones included; all by default.
        min_count: How often a word must occur.

    Returns:
        The words; their places are their numbers.

    Raises:
        ValueError: `size` leaves no room for a word, or no word occurs often enough.
    """
    if size is not None and size <= len(SPECIAL_WORDS):
        raise ValueError(
            f"A vocabulary of {size} words has room only for {', '.join(SPECIAL_WORDS)}: it needs"
            f" {len(SPECIAL_WORDS) + 1} or more."
        )
    counts = sentences if isinstance(sentences, Mapping) else count_words(sentences)
    kept = [word for word, count in counts.items() if count >= min_count and word not in SPECIAL_WORDS]
    if not kept:
        raise ValueError(f"No word of the text occurs {min_count} times or more: nothing is left for a vocabulary.")
    kept.sort(key=lambda word: (-counts[word], word))
    return [*SPECIAL_WORDS, *kept][:size]


def check_vocabulary(
    words: Sequence[str], counts: Mapping[str, int] | None = None, name: str = "The word vocabulary"
) -> None:
    """Checks that a vocabulary can be trained with.

    Args:
        words: The words in their order.
        counts: How often they occur, to check the order; it is not checked without them.
        name: What messages call the vocabulary, such as its file.

    Raises:
        ValueError: A word is there twice, is empty or holds a blank; a special word is missing or not among the
            first; a word is more frequent than one before it.
    """
    places = Counter(words)
    twice = [word for word, count in places.items() if count > 1]
    if twice:
        raise ValueError(f"{name} holds {some(twice)} more than once: each word has one number.")
    for place, word in enumerate(words, start=1):
        if word.split() != [word]:
            problem = "is empty" if not word.strip() else f"holds a blank ({word!r})"
            raise ValueError(f"{name}, line {place}, {problem}: a line is one word.")
    missing = [word for word in SPECIAL_WORDS if word not in places]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}: it must begin with {', '.join(SPECIAL_WORDS)}.")
    if set(words[: len(SPECIAL_WORDS)]) != set(SPECIAL_WORDS):
        raise ValueError(
            f"{name} begins with {', '.join(words[: len(SPECIAL_WORDS)])}: it must begin with"
            f" {', '.join(SPECIAL_WORDS)}, and the most frequent words after them."
        )
    if counts is not None:
        rest = words[len(SPECIAL_WORDS) :]
        for before, after in itertools.pairwise(rest):
            if counts.get(after, 0) > counts.get(before, 0):
                raise ValueError(
                    f"{name} is not in the order of frequency: {after!r} ({counts.get(after, 0)} times) comes after"
                    f" {before!r} ({counts.get(before, 0)} times); the sampled softmax needs frequent words first."
                )


def read_vocabulary(path: str | Path) -> list[str]:
    """Reads and checks a vocabulary file: one word a line, or a word, a tab and its count.

    Raises:
        ValueError: The file is no text, or `check_vocabulary` refuses what it holds.
    """
    words = WordVocabulary.from_file(path).words
    lines = Path(path).read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    counts = {word: int(count) for word, _, count in (line.partition("\t") for line in lines) if count.isdecimal()}
    check_vocabulary(words, counts if len(counts) == len(lines) else None, str(path))
    return words


def some(words: Sequence[str], limit: int = 5) -> str:
    """A few words for a message."""
    shown = ", ".join(map(repr, words[:limit]))
    return shown if len(words) <= limit else f"{shown} and {len(words) - limit} more"


def vocabulary_of(tokenizer: ElmoTokenizer) -> WordVocabulary:
    """The word vocabulary of a tokenizer for a language model.

    Raises:
        ValueError: The tokenizer has none, or has no words that frame a sentence.
    """
    if tokenizer.word_vocabulary is None:
        raise ValueError(
            "The tokenizer has no word vocabulary (vocab.txt), so there are no words to predict: give"
            " ElmoTokenizer(word_vocabulary=...) the one that the model was trained with."
        )
    if tokenizer.bos_token is None or tokenizer.eos_token is None:
        raise ValueError("A language model needs the words that frame a sentence: bos_token and eos_token are None.")
    return tokenizer.word_vocabulary


def check_language_model(model: Any, tokenizer: ElmoTokenizer) -> None:
    """Checks that a tokenizer's word vocabulary is that of a model.

    Raises:
        ValueError: There is no vocabulary, or it does not fit the model's softmax.
    """
    words, outputs = len(vocabulary_of(tokenizer)), model.config.word_vocab_size
    if words != outputs:
        raise ValueError(
            f"The word vocabulary (vocab.txt) has {words} words, but the model's softmax has {outputs}"
            " (word_vocab_size): use the vocabulary that the model was trained with."
        )
