"""Small pretraining runs: text, models and trainers that learn something in a second."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hf_elmo import ElmoForPreTraining, ElmoTokenizer
from hf_elmo.lexicon_elmo import WordVocabulary
from hf_elmo.pretraining.arguments import ElmoPreTrainingArguments
from hf_elmo.pretraining.choices import TrainingChoices
from hf_elmo.pretraining.corpus import Corpus
from hf_elmo.pretraining.pretrain import PretrainingReport, make_batches, pretrain
from hf_elmo.pretraining.survey import survey
from hf_elmo.pretraining.trainer import ElmoPreTrainer
from hf_elmo.pretraining.vocabulary import build_vocabulary
from tests.tiny_models import tiny_model

SETTINGS: dict[str, Any] = {
    "filters": [[1, 4], [2, 6]],
    "character_embedding_size": 5,
    "projection_size": 6,
    "cell_size": 11,
}
NAMES = ["Ann", "Bob", "Clara", "Dan", "Eve", "Frank", "Grace", "Hugo", "Iris", "Jack"]
VERBS = ["sees", "likes", "finds", "calls", "helps"]
THINGS = ["the old dog", "a red house", "one small boat", "the river", "her sister", "a letter from home"]


def random_sentences(count: int, seed: int = 0) -> list[str]:
    """Different sentences of 4 to 12 words."""
    source = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        clauses = [
            f"{source.choice(NAMES)} {source.choice(VERBS)} {source.choice(THINGS)}"
            for _ in range(source.choice((1, 1, 2)))
        ]
        found[" and ".join(clauses) + " ."] = None
    return list(found)


def write_text(path: Path, count: int = 120, seed: int = 0) -> Path:
    """A file of random sentences."""
    path.write_text("".join(f"{line}\n" for line in random_sentences(count, seed)), encoding="utf-8")
    return path


def choices(**changes: Any) -> TrainingChoices:
    """A short run: 12 steps of 4 streams, a checkpoint every 3."""
    usual: dict[str, Any] = {
        "steps": 12,
        "batch_size": 4,
        "unroll_steps": 5,
        "optimizer": "adamw",
        "learning_rate": 0.02,
        "save_every": 3,
        "log_every": 3,
        "keep": 9,
    }
    return TrainingChoices(**{**usual, **changes})


def short_run(
    text: Path, output: Path, settings: Mapping[str, Any] | None = None, **changes: Any
) -> PretrainingReport:
    """Pretrains a tiny model; `changes` are training choices."""
    return pretrain(
        [str(text)],
        output,
        config="tiny",
        settings={**SETTINGS, **(settings or {})},
        choices=choices(**changes),
        tell=lambda line: None,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in a folder."""
    return load_file(folder / "model.safetensors")


def contents(folder: Path) -> list[str]:
    """What is in a run's folder, but for TensorBoard's files, which are there where it is installed."""
    return sorted(path.name for path in folder.iterdir() if path.name != "runs")


def make_trainer(
    text: Path, output: Path, settings: Mapping[str, Any] | None = None, **arguments: Any
) -> ElmoPreTrainer:
    """A trainer of a tiny model without dropout, for runs that a computation is compared with."""
    corpus = Corpus([text])
    found = survey(corpus)
    words = build_vocabulary(found.counts)
    tokenizer = ElmoTokenizer(word_vocabulary=WordVocabulary(words))
    fields = {"bilm_dropout": 0.0, "num_sampled_words": None, "freeze_bilm": False, **SETTINGS, **(settings or {})}
    model = tiny_model(ElmoForPreTraining, word_vocab_size=len(words), **fields)
    defaults: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "unroll_steps": 5,
        "save_strategy": "no",
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": [],
    }
    training = ElmoPreTrainingArguments(output_dir=str(output), **{**defaults, **arguments})
    batches = make_batches(corpus, tokenizer, training, found.targets)
    return ElmoPreTrainer(model, training, train_dataset=batches, eval_dataset=corpus, processing_class=tokenizer)
