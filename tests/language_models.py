"""Tiny language models with their vocabulary, text files, and a second opinion on how streams flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_elmo import ElmoTokenizer
from hf_elmo.language_model_elmo import ElmoForPreTraining
from hf_elmo.lexicon_elmo import WordVocabulary
from hf_elmo.pretraining.vocabulary import build_vocabulary
from tests.tiny_models import tiny_model

# Lengths 1 to 9, a word twice, words of other scripts; "zebra" and "½" are left out of the vocabulary.
TEXT = [
    "the cat sat on the mat .",
    "no",
    "the quick brown fox jumps over the lazy dog",
    "мама мыла раму .",
    "a zebra sat",
    "the dog saw a naïve fox , and the cat saw ½ .",
    "on and on",
    "yes , the cat .",
    "over the mat jumps a fox .",
    "dog and cat",
    "a brown dog sat on the lazy cat .",
]
SENTENCES = [line.split() for line in TEXT]


def write_lines(path: Path, lines: Sequence[str] = TEXT) -> Path:
    """A text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def tiny_vocabulary() -> list[str]:
    """The words of `TEXT` but two."""
    return [word for word in build_vocabulary(SENTENCES) if word not in ("zebra", "½")]


def tiny_tokenizer(**options: Any) -> ElmoTokenizer:
    """A tokenizer with the tiny vocabulary."""
    return ElmoTokenizer(word_vocabulary=WordVocabulary(tiny_vocabulary()), **options)


def tiny_language_model(**overrides: Any) -> ElmoForPreTraining:
    """A model whose probabilities differ from word to word."""
    model = tiny_model(ElmoForPreTraining, word_vocab_size=len(tiny_vocabulary()), **overrides)
    for name, parameter in model.named_parameters():
        if "convolutions" in name or "lstm" in name:
            parameter.data.mul_(3.0)
    with torch.no_grad():
        encoded = tiny_tokenizer()(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
        logits = model(encoded["input_ids"], encoded["attention_mask"], output_logits=True).forward_logits
        model.softmax.weight.mul_(1.5 / logits.std())
    return model


def save_language_model(folder: Path, **overrides: Any) -> Path:
    """Saves the tiny model and its tokenizer."""
    tiny_language_model(**overrides).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def flow(sentences: Sequence[Sequence[str]], rows: int, steps: int) -> Iterator[list[list[tuple[str, ...]]]]:
    """Streams word by word: for each batch and row what is read and predicted, forward and backward.

    Written from the description of bilm-tf's `_get_batch`: rows are filled one after the other, each up to `steps`
    words; the batch in which the sentences run out is not given.
    """
    waiting = iter(sentences)
    reading: list[Iterator[tuple[str, ...]]] = [iter(()) for _ in range(rows)]
    while True:
        batch = []
        for row in range(rows):
            filled: list[tuple[str, ...]] = []
            while len(filled) < steps:
                step = next(reading[row], None)
                if step is not None:
                    filled.append(step)
                    continue
                sentence = next(waiting, None)
                if sentence is None:
                    return
                framed = ["<S>", *sentence, "</S>"]
                turned = framed[::-1]
                reading[row] = iter(list(zip(framed, framed[1:], turned, turned[1:], strict=False)))
            batch.append(filled)
        yield batch
