"""Small fine-tuning runs: a data set, a tiny head and a stock Trainer with stock collators for each kind of task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_elmo import ElmoForSequenceClassification, ElmoForTokenClassification, ElmoPreTrainedModel, ElmoTokenizer
from tests.saved_folders import varied_model

# Of different lengths, so that no two batches have the same number of words.
TEXTS = [
    "the fox runs",
    "a dog sleeps",
    "one fox",
    "no cat is here today",
    "foxes ?",
    "the dog and the old red fox",
    "cats",
    "Мама saw a fox in New York ...",
] * 2
BIO = ["O", "B-FOX", "I-FOX", "B-DOG", "I-DOG"]
TOKENIZER = ElmoTokenizer()


def bio_labels(words: list[str]) -> list[int]:
    """A fox or a dog with all the words before it, back to the one before that or to the start, is an entity."""
    labels: list[int] = []
    start = 0
    for place, word in enumerate(words):
        labels.append(0)
        if word in ("fox", "dog"):
            first = BIO.index(f"B-{word.upper()}")
            labels[start:] = [first] + [first + 1] * (place - start)
            start = place + 1
    return labels


def texts_with(labels: list[Any]) -> Dataset:
    """Texts and their labels."""
    dataset = Dataset.from_dict({"text": TEXTS, "label": labels})
    return dataset.map(lambda batch: TOKENIZER(batch["text"]), batched=True, remove_columns="text")


def pairs() -> Dataset:
    """Each text with the one after it; 1 where both have a fox or neither has."""
    others = TEXTS[1:] + TEXTS[:1]
    labels = [int(("fox" in text) == ("fox" in other)) for text, other in zip(TEXTS, others, strict=True)]
    dataset = Dataset.from_dict({"text": TEXTS, "other": others, "label": labels})
    return dataset.map(
        lambda batch: TOKENIZER(batch["text"], batch["other"], return_token_type_ids=True),
        batched=True,
        remove_columns=["text", "other"],
    )


def tagged_words() -> Dataset:
    """Words, each with its label; boundaries have none."""

    def encode(batch: dict[str, list]) -> dict[str, Any]:
        encoded = TOKENIZER(batch["words"], is_split_into_words=True)
        encoded["labels"] = [
            [-100 if word is None else labels[word] for word in encoded.word_ids(row)]
            for row, labels in enumerate(batch["tags"])
        ]
        return encoded

    words = [text.split() for text in TEXTS]
    dataset = Dataset.from_dict({"words": words, "tags": list(map(bio_labels, words))})
    return dataset.map(encode, batched=True, remove_columns=["words", "tags"])


@dataclass(frozen=True)
class Task:
    """A head with its settings, its data, and the collator that goes with it."""

    model_class: type[ElmoPreTrainedModel]
    dataset: Callable[[], Dataset]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def collator(self) -> type:
        is_tagger = self.model_class is ElmoForTokenClassification
        return DataCollatorForTokenClassification if is_tagger else DataCollatorWithPadding


TAGS: dict[str, Any] = {
    "id2label": dict(enumerate(BIO)),
    "label2id": {name: number for number, name in enumerate(BIO)},
}
TASKS: dict[str, Task] = {
    "classes": Task(ElmoForSequenceClassification, lambda: texts_with([int("fox" in text) for text in TEXTS])),
    "numbers": Task(
        ElmoForSequenceClassification,
        lambda: texts_with([len(text.split()) / 4 for text in TEXTS]),
        {"num_labels": 1, "problem_type": "regression"},
    ),
    "several classes": Task(
        ElmoForSequenceClassification,
        lambda: texts_with([[float(word in text) for word in ("fox", "dog", "the")] for text in TEXTS]),
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ),
    "pairs": Task(ElmoForSequenceClassification, pairs, {"classifier_pooling": "max"}),
    "tags": Task(ElmoForTokenClassification, tagged_words, TAGS),
    "tags with a CRF": Task(
        ElmoForTokenClassification, tagged_words, {**TAGS, "use_crf": True, "label_scheme": "BIO"}
    ),
}
# Small, and with every part that learns: the mixes at both ends, their penalty, the BiLSTM.
SMALL: dict[str, Any] = {"task_hidden_size": 7, "elmo_at_output": True, "mix_l2": 0.3}
NO_DROPOUT: dict[str, Any] = {"representation_dropout": 0.0, "task_dropout": 0.0}


def make_model(task: str, **settings: Any) -> ElmoPreTrainedModel:
    """The tiny head of a task, with words that differ and a classifier that knows nothing yet."""
    model = varied_model(TASKS[task].model_class, **{**SMALL, **TASKS[task].settings, **settings})
    with torch.no_grad():
        model.classifier.weight.mul_(0.02)
        model.classifier.bias.zero_()
    return model


def make_trainer(
    task: str,
    output: Path,
    model: torch.nn.Module | None = None,
    extras: dict[str, Any] | None = None,
    **arguments: Any,
) -> Trainer:
    """A stock Trainer; `arguments` are those of `TrainingArguments`, `extras` those of `Trainer`."""
    dataset = TASKS[task].dataset()
    model = make_model(task) if model is None else model
    set_seed(0)
    defaults: dict[str, Any] = {
        "max_steps": 6,
        "learning_rate": 0.02,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return Trainer(
        **{
            "model": model,
            "args": TrainingArguments(str(output), **{**defaults, **arguments}),
            "train_dataset": dataset,
            "eval_dataset": dataset,
            "data_collator": TASKS[task].collator(TOKENIZER),
            "processing_class": TOKENIZER,
            **(extras or {}),
        }
    )
