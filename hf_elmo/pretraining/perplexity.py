"""How well a language model expects a text, in the two ways that the originals measure it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..modeling_elmo import NO_LABEL
from ..tokenization_elmo import ElmoTokenizer
from .corpus import Corpus
from .sentences import SentenceBatches
from .streams import StreamBatches
from .vocabulary import check_language_model, vocabulary_of

PROTOCOLS = ("sentence", "stream")
# Rows of a batch where nothing is said; for streams it is that of bilm-tf's `test()`.
BATCH_SIZES = {"sentence": 64, "stream": 256}
# Words that the model reads at a time.
WORDS_AT_A_TIME = 8192


@dataclass(frozen=True)
class PerplexityReport:
    """Perplexities with the full softmax.

    Attributes:
        forward: Of the words as the left-to-right direction expects them, and the end of each sentence.
        backward: Of the words as the right-to-left direction expects them, and the beginning of each sentence.
        average: exp of the mean of both directions' losses, as the originals report it.
        tokens: Words that each direction predicted, the boundary of each sentence included.
        unknown: How many of them are not in the vocabulary, so that their place is taken by the unknown word.
        protocol: `"sentence"` or `"stream"`.
        batch_size: The parallel streams, on which the figures of this protocol depend; None with sentences.
    """

    forward: float
    backward: float
    average: float
    tokens: int
    unknown: int
    protocol: str
    batch_size: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The figures by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def summary(self) -> str:
        """The figures for a person."""
        streams = f", {self.batch_size} streams" if self.batch_size else ""
        lines = [
            f"Perplexity, protocol {self.protocol}{streams}, full softmax",
            f"  forward   {self.forward:.2f}",
            f"  backward  {self.backward:.2f}",
            f"  average   {self.average:.2f}",
            f"{self.tokens:,} words and ends of sentences, {self.unknown:,} of them unknown"
            f" ({self.unknown / self.tokens:.1%})",
        ]
        return "\n".join(lines)


def perplexity(
    model: Any,
    tokenizer: ElmoTokenizer,
    corpus: Corpus,
    protocol: str = "sentence",
    batch_size: int | None = None,
    unroll_steps: int = 1,
    *,
    keep_incomplete: bool = False,
    progress: bool = False,
) -> PerplexityReport:
    """Measures the perplexity of a text.

    Protocol `"sentence"`: each sentence from zero states; every word counts, and nothing depends on the batches.
    Protocol `"stream"`: sentences flow through parallel rows, whose states go from one to the next, as in training;
    reading ends where the first row finds no more sentence, and the words that other rows have left are not counted.
    This is `test()` of bilm-tf (256 rows, 1 step) and DeepPavlov's validation, without its dropout.

    Args:
        model: An `ElmoForPreTraining`.
        tokenizer: Its tokenizer, with its word vocabulary.
        corpus: The text.
        protocol: `"sentence"` or `"stream"`.
        batch_size: Sentences at a time (64), or parallel streams (256).
        unroll_steps: With streams: how many words each row takes before the next one takes its own, which decides
            which row reads which sentence.
        keep_incomplete: With streams: count the words of all rows to their end.
        progress: Show a bar.

    Raises:
        ValueError: The protocol is unknown; the vocabulary does not fit the model; the text has no sentence, or fewer
            than there are streams.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"The protocol must be one of {', '.join(PROTOCOLS)}, but is {protocol!r}.")
    check_language_model(model, tokenizer)
    size = BATCH_SIZES[protocol] if batch_size is None else batch_size
    source: SentenceBatches | StreamBatches
    if protocol == "sentence":
        source = SentenceBatches(corpus, tokenizer, size, max_words=WORDS_AT_A_TIME)
    else:
        source = StreamBatches(corpus, tokenizer, size, unroll_steps, keep_incomplete=keep_incomplete)
    vocabulary = vocabulary_of(tokenizer)
    number = int(vocabulary.words_to_ids([vocabulary.unknown_word])[0]) - 1

    totals, tokens, unknown, states = [0.0, 0.0], 0, 0, None
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), corpus.bar(shown=progress) as bar:
            for batch in merged(source) if isinstance(source, StreamBatches) else source:
                inputs: dict[str, Any] = {name: values.to(model.device) for name, values in batch.items()}
                if protocol == "stream":
                    inputs["states"] = states
                output = model(**inputs, reduction="none")
                states = output.states
                for direction, losses in enumerate((output.forward_loss, output.backward_loss)):
                    totals[direction] += float(losses.double().sum())
                targets = batch["forward_labels"] if protocol == "stream" else batch["labels"][:, 1:]
                tokens += int((targets != NO_LABEL).sum())
                unknown += int((targets == number).sum())
                bar.update(source.progress() - bar.n)
            bar.update(corpus.size - bar.n)
    finally:
        model.train(was_training)
    if not tokens:
        raise ValueError(
            f"{corpus.name} has fewer sentences than the {size} parallel streams, so that none was read to its end:"
            " give a smaller batch size."
        )
    forward, backward = (total / tokens for total in totals)
    if not math.isfinite(forward + backward):
        raise ValueError(
            f"The model gives {corpus.name} no finite perplexity: its weights hold NaN, or training has diverged; use"
            " an earlier checkpoint."
        )
    return PerplexityReport(
        forward=exponential(forward),
        backward=exponential(backward),
        average=exponential((forward + backward) / 2),
        tokens=tokens,
        unknown=unknown,
        protocol=protocol,
        batch_size=size if protocol == "stream" else None,
    )


def merged(batches: StreamBatches) -> Iterator[dict[str, Tensor]]:
    """Puts batches of few steps one after the other: the model reads them at once, with the same result."""
    at_a_time = max(1, WORDS_AT_A_TIME // (batches.batch_size * batches.unroll_steps))
    source = iter(batches)
    while parts := list(islice(source, at_a_time)):
        yield {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}


def exponential(loss: float) -> float:
    """A perplexity, infinite where it cannot be written."""
    return math.exp(loss) if loss < 700 else math.inf
