"""Training a language model further on the text of a domain (Peters et al. 2018, section 3.4, table 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed
from transformers.utils import cached_file

from ..language_model_elmo import ElmoForPreTraining
from ..lexicon_elmo import WordVocabulary
from ..tokenization_elmo import ElmoTokenizer
from .choices import TrainingChoices
from .corpus import Corpus, TextFile
from .pretrain import PretrainingReport, ignore, make_batches, run_training
from .processes import in_first_process
from .runs import fingerprint, open_run, record_run
from .survey import begin_run
from .trainer import ElmoPreTrainer
from .vocabulary import build_vocabulary, check_language_model

ADAPTING = TrainingChoices(epochs=3, batch_size=32, optimizer="adamw", save_every=500)
# AdamW's learning rate where nothing is said: lower than for a new model.
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class AdaptationReport:
    """What adapting did.

    Attributes:
        training: What the run did.
        measured_on: Whether perplexity is that of the validation text, or, without one, of the training text.
        before: Average perplexity before; None where the model came without a softmax.
        after: Average perplexity after.
    """

    training: PretrainingReport
    measured_on: str
    before: float | None
    after: float

    def summary(self) -> str:
        """Two lines for people."""
        before = f"{self.before:.2f}" if self.before is not None else "none (the model had no softmax)"
        return (
            f"Perplexity of the {self.measured_on}: {before} before, {self.after:.2f} after.\n"
            f"The adapted model is in {self.training.output} ({self.training.steps:,} steps)."
        )


def adapt(
    model: str,
    train: Sequence[str],
    output: Path,
    *,
    valid: Sequence[str] = (),
    vocabulary_size: int | None = None,
    minimum_count: int = 1,
    word_splitter: str | None = None,
    settings: Mapping[str, Any] | None = None,
    choices: TrainingChoices = ADAPTING,
    tell: Callable[[str], None] = print,
) -> AdaptationReport:
    """Trains a language model further, or goes on with such a run that was interrupted.

    A model that was converted without its softmax gets a new one over the words of the training text.

    Args:
        model: A folder or a repository of the Hub.
        train: Files of training text (plain, .gz, .xz), folders and patterns.
        output: The folder of the run: its checkpoints, and in the end the model.
        valid: Files of validation text, on which perplexity is measured before and after; by default it is measured
            on the training text.
        vocabulary_size: How many words a new vocabulary may have.
        minimum_count: How often a word must occur to be in a new vocabulary.
        word_splitter: How a line of text becomes words; by default the model's own.
        settings: Fields of the configuration that differ, such as `num_sampled_words`.
        choices: How to train; the learning rate is by default 0.001 with AdamW.
        tell: What to do with a line about what is going on.

    Raises:
        ValueError: An option, a file, the model or the folder cannot be used as it is.
        OSError: A file cannot be read or written.
    """
    if choices.optimizer == "adamw" and choices.learning_rate is None:
        choices = replace(choices, learning_rate=LEARNING_RATE)
    tokenizer = ElmoTokenizer.from_pretrained(model)
    splitter = word_splitter or tokenizer.word_splitter
    corpus = Corpus(list(train), word_splitter=splitter)
    measured = Corpus(list(valid), word_splitter=splitter) if valid else corpus
    weights = cached_file(model, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    identity = {
        "model": model if weights is None else fingerprint(Path(weights).resolve()),
        "train": [fingerprint(part.path) for part in corpus.parts if isinstance(part, TextFile)],
        "word_splitter": splitter,
        "vocabulary_size": vocabulary_size,
        "minimum_count": minimum_count,
        **{f"field {name}": value for name, value in (settings or {}).items()},
        **choices.identity(),
    }
    arguments = choices.arguments(output, evaluate=False)
    tell = tell if arguments.process_index == 0 else ignore
    is_new = tokenizer.word_vocabulary is None

    def facts_of_the_run() -> dict[str, Any]:
        return open_run(output, identity) or begin_run(
            output,
            identity,
            corpus,
            lambda counts: build_vocabulary(counts, vocabulary_size, minimum_count) if is_new else None,
        )

    facts = in_first_process(arguments, facts_of_the_run)

    set_seed(choices.seed)
    fields = dict(settings or {})
    if is_new:
        tell("The model has no word vocabulary: its softmax starts anew, over the words of the training text.")
        vocabulary = WordVocabulary(facts["vocabulary"])
        fields["word_vocab_size"] = len(vocabulary)
        tokenizer = ElmoTokenizer(
            word_splitter=tokenizer.word_splitter,
            max_characters_per_token=tokenizer.max_characters_per_token,
            word_vocabulary=vocabulary,
        )
    language_model = ElmoForPreTraining.from_pretrained(model, dtype=torch.float32, **fields)
    check_language_model(language_model, tokenizer)
    batches = make_batches(corpus, tokenizer, arguments, facts["words"] + facts["sentences"])
    trainer = ElmoPreTrainer(
        language_model, arguments, train_dataset=batches, eval_dataset=measured, processing_class=tokenizer
    )
    measured_on = "validation text" if valid else "training text"
    before = facts.get("before")
    if before is None and not is_new:
        before = trainer.evaluate()["eval_perplexity"]
        tell(f"Perplexity of the {measured_on} before: {before:.2f}.")
        if arguments.process_index == 0:
            record_run(output, identity, {**facts, "before": before})
    report = run_training(trainer, output, tell)
    assert report.perplexity is not None
    return AdaptationReport(report, measured_on, before, report.perplexity)
