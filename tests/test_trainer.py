"""transformers' Trainer fine-tunes the heads from `datasets`, with the stock collators."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_elmo import ElmoForSequenceClassification, ElmoForTokenClassification, ElmoTokenizer
from tests.assertions import assert_close, assert_far, assert_identical
from tests.saved_folders import varied_model

# A text is of class 1, and a word has label 1, where the fox is.
TEXTS = [
    "the fox runs",
    "a dog sleeps",
    "one fox",
    "no cat is here today",
    "foxes ?",
    "the dog and the fox",
    "cats",
] * 4
TOKENIZER = ElmoTokenizer()


def texts_dataset() -> Dataset:
    dataset = Dataset.from_dict({"text": TEXTS, "label": [int(" fox" in text) for text in TEXTS]})
    return dataset.map(lambda batch: TOKENIZER(batch["text"]), batched=True, remove_columns="text")


def words_dataset() -> Dataset:
    def encode(batch: dict[str, list]) -> dict[str, Any]:
        encoded = TOKENIZER(batch["words"], is_split_into_words=True)
        encoded["labels"] = [
            [-100 if word is None else int(words[word] == "fox") for word in encoded.word_ids(row)]
            for row, words in enumerate(batch["words"])
        ]
        return encoded

    dataset = Dataset.from_dict({"words": [text.split() for text in TEXTS]})
    return dataset.map(encode, batched=True, remove_columns="words")


TASKS = {
    "texts": (ElmoForSequenceClassification, texts_dataset, DataCollatorWithPadding),
    "words": (ElmoForTokenClassification, words_dataset, DataCollatorForTokenClassification),
}


def accuracy(prediction: Any) -> dict[str, float]:
    known = prediction.label_ids != -100
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids)[known].mean())}


def make_trainer(task: str, output: Path, model: torch.nn.Module | None = None, **arguments: Any) -> Trainer:
    model_class, make_dataset, collator = TASKS[task]
    dataset = make_dataset()
    set_seed(0)
    defaults = {"max_steps": 6, "learning_rate": 0.02, "per_device_train_batch_size": 8, "save_strategy": "no"}
    return Trainer(
        model=varied_model(model_class, num_labels=2, representation_dropout=0.0) if model is None else model,
        args=TrainingArguments(
            str(output), report_to=[], use_cpu=True, disable_tqdm=True, **{**defaults, **arguments}
        ),
        train_dataset=dataset,
        eval_dataset=dataset,
        data_collator=collator(TOKENIZER),
        processing_class=TOKENIZER,
        compute_metrics=accuracy,
    )


@pytest.mark.parametrize("task", TASKS)
def test_a_head_is_trained_evaluated_and_predicts(task, tmp_path):
    settings = {"representation_dropout": 0.0, "task_dropout": 0.0, "task_hidden_size": 8}
    model = varied_model(TASKS[task][0], num_labels=2, freeze_bilm=False, **settings)
    trainer = make_trainer(task, tmp_path, model, max_steps=40)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < 0.5 * before["eval_loss"]
    assert after["eval_accuracy"] > 0.9
    prediction = trainer.predict(trainer.eval_dataset)
    # The arrays of the model's other outputs (states, layers) do not get in the way.
    assert isinstance(prediction.predictions, np.ndarray)
    assert prediction.predictions.shape[0] == len(TEXTS)
    assert prediction.predictions.shape[-1] == 2


@pytest.mark.parametrize("task", TASKS)
def test_a_frozen_bilm_stays_as_it_is_while_the_mix_and_the_head_learn(task, tmp_path):
    trainer = make_trainer(task, tmp_path, weight_decay=0.1)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        if not name.startswith(("elmo.embeddings.", "elmo.encoder.")):
            assert_far(parameter, before[name], 1e-4, name)
        else:
            assert parameter.grad is None, name
            assert_identical(parameter, before[name], name)


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path):
    arguments = {"save_strategy": "steps", "save_steps": 3}
    whole = make_trainer("texts", tmp_path / "whole", **arguments)
    whole.train()
    resumed = make_trainer("texts", tmp_path / "resumed", **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed.state.global_step == 6
    for name, expected in whole.model.state_dict().items():
        assert_close(resumed.model.state_dict()[name], expected, 1e-6, name)
    trained = [name for name, parameter in resumed.model.named_parameters() if parameter.requires_grad]
    assert trained == [name for name, _ in resumed.model.named_parameters() if not name.startswith("elmo.e")]


def test_a_checkpoint_is_a_folder_like_any_other(tmp_path):
    trainer = make_trainer("words", tmp_path)
    trainer.train()
    trainer.save_model(str(tmp_path / "best"))
    loaded = ElmoForTokenClassification.from_pretrained(tmp_path / "best").eval()
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "best")
    batch = tokenizer(TEXTS[:3], padding=True, return_tensors="pt")
    assert_close(loaded(**batch).logits, trainer.model.eval()(**batch).logits, 5e-6)
    assert (tmp_path / "best" / "modeling_elmo.py").is_file()


@pytest.mark.parametrize("task", TASKS)
def test_batches_are_padded_with_rows_of_zeros(task):
    _, make_dataset, collator = TASKS[task]
    dataset = make_dataset()
    batch = collator(TOKENIZER)([dataset[row] for row in range(4)])
    assert batch["input_ids"].shape == (4, 7, 50)
    assert batch["input_ids"].dtype == torch.int64
    assert batch["attention_mask"].sum(dim=1).tolist() == [5, 5, 4, 7]
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()
    if task == "words":
        assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_batches_are_grouped_by_their_number_of_words(tmp_path):
    trainer = make_trainer("texts", tmp_path, train_sampling_strategy="group_by_length")
    sampler = trainer._get_train_sampler()
    assert sampler.lengths == [len(text.split()) + 2 for text in TEXTS]
    trainer.train()


def test_words_are_counted_not_characters(tmp_path):
    """With "non_padding"; transformers counts a number of `input_ids` for a token otherwise."""
    trainer = make_trainer(
        "texts", tmp_path, max_steps=-1, num_train_epochs=1, include_num_input_tokens_seen="non_padding"
    )
    trainer.train()
    assert trainer.state.num_input_tokens_seen == sum(len(text.split()) + 2 for text in TEXTS)


def test_training_with_gradient_checkpointing_gives_the_same_weights(tmp_path):
    weights = []
    for checkpointing in (False, True):
        model = varied_model(ElmoForTokenClassification, num_labels=2, representation_dropout=0.0, freeze_bilm=False)
        trainer = make_trainer("words", tmp_path, model, activation_checkpointing=checkpointing, max_steps=3)
        trainer.train()
        weights.append(trainer.model.state_dict())
    for name, expected in weights[0].items():
        assert_close(weights[1][name], expected, 1e-4, name)
