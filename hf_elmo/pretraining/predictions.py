"""The words that a language model expects in the place of each word of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from ..conversion.listing import open_console
from ..tokenization_elmo import ElmoTokenizer
from .vocabulary import check_language_model, vocabulary_of

# Scores that exist at once: 64 MB in float32.
SCORES_AT_A_TIME = 2**24

Expected = list[tuple[str, float]]


@dataclass(frozen=True)
class WordPredictions:
    """What a model expects in the place of a word, each with its probability, the most probable first.

    Attributes:
        word: The word that stands there.
        is_known: Whether it is in the vocabulary, so that it could be expected.
        left: What the words before it let expect.
        right: What the words after it let expect.
        combined: What both let expect: the product of both probabilities, scaled so that those of all words that may
            be given add up to 1.
    """

    word: str
    is_known: bool
    left: Expected
    right: Expected
    combined: Expected


def predict(
    model: Any,
    tokenizer: ElmoTokenizer,
    sentence: str | Sequence[str],
    top_k: int = 10,
    *,
    keep_special: bool = False,
) -> list[WordPredictions]:
    """The most probable words in the place of each word: lexical substitutes.

    simple_elmo's `get_elmo_substitutes` gives such words from the left and from the right, also without the
    boundaries; its numbers are scores before the softmax, and it sees one neighbour of a word only, because it
    starts every step from zero states. Here all of the sentence is seen.

    Args:
        model: An `ElmoForPreTraining`.
        tokenizer: Its tokenizer, with its word vocabulary.
        sentence: Text, which the tokenizer splits, or a list of words.
        top_k: How many words for each place.
        keep_special: Let boundaries and the unknown word be given too.

    Returns:
        One record for each word.

    Raises:
        ValueError: The vocabulary does not fit the model, the sentence has no word, or `top_k` is no positive number
            of words.
    """
    check_language_model(model, tokenizer)
    vocabulary = vocabulary_of(tokenizer)
    special = {str(tokenizer.bos_token), str(tokenizer.eos_token), vocabulary.unknown_word}
    left_out = [] if keep_special else [place for place, word in enumerate(vocabulary.words) if word in special]
    most = len(vocabulary) - len(left_out)
    if not 1 <= top_k <= most:
        raise ValueError(f"top_k is {top_k}: between 1 and {most} words can be given.")
    encoded = tokenizer(sentence, is_split_into_words=not isinstance(sentence, str), return_tensors="pt")
    words = encoded.tokens(0)[1:-1] if isinstance(sentence, str) else list(sentence)
    if not words:
        raise ValueError("The sentence has no word.")

    inputs = {name: encoded[name].to(model.device) for name in ("input_ids", "attention_mask")}
    was_training = model.training
    model.eval()
    predictions: list[WordPredictions] = []
    try:
        with torch.inference_mode():
            top = model(**inputs, output_hidden_states=True).hidden_states[-1][0]
            forward, backward = top.chunk(2, dim=-1)
            step = max(1, SCORES_AT_A_TIME // len(vocabulary))
            for start in range(0, len(words), step):
                places = range(start, min(start + step, len(words)))
                # Word i stands at i + 1, behind the beginning of the sentence.
                before, after = (
                    log_probabilities(model.softmax(half[first + start : first + start + len(places)]))
                    for half, first in ((forward, 0), (backward, 2))
                )
                both = before + after
                for scores in (before, after, both):
                    scores[:, left_out] = -torch.inf
                found = [best(scores, top_k, vocabulary.words) for scores in (before, after, log_probabilities(both))]
                for place, left, right, combined in zip(places, *found, strict=True):
                    word = words[place]
                    predictions.append(WordPredictions(word, word in vocabulary, left, right, combined))
    finally:
        model.train(was_training)
    return predictions


def log_probabilities(scores: Tensor) -> Tensor:
    """Log-probabilities (n, words) from scores."""
    return scores.float().log_softmax(dim=-1)


def best(scores: Tensor, count: int, words: Sequence[str]) -> list[Expected]:
    """The words with the highest log-probabilities (n, words), for each of the n places."""
    found = scores.topk(count, dim=-1)
    return [
        [(words[number], value) for number, value in zip(numbers, values, strict=True)]
        for numbers, values in zip(found.indices.tolist(), found.values.exp().tolist(), strict=True)
    ]


def print_predictions(predictions: Sequence[WordPredictions]) -> None:
    """Prints a table: the words of the sentence, and what is expected from the left, from the right and from both."""
    table = Table(show_lines=True, header_style="bold")
    for column in ("word", "from the left", "from the right", "both"):
        table.add_column(column, overflow="fold")
    for prediction in predictions:
        word = escape(prediction.word) + ("" if prediction.is_known else "\n(unknown)")
        lists = (prediction.left, prediction.right, prediction.combined)
        table.add_row(word, *("\n".join(f"{escape(each)} {value:.3f}" for each, value in found) for found in lists))
    open_console().print(table)
