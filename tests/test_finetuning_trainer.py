"""transformers' Trainer does with the heads all that it does with other models; `test_trainer.py` has the basics."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import DataCollatorForTokenClassification, EarlyStoppingCallback, default_data_collator

from hf_elmo import ElmoForSequenceClassification, ElmoForTokenClassification, ElmoModel, modules_to_save
from tests.assertions import assert_close, assert_far
from tests.finetuning_runs import BIO, NO_DROPOUT, TASKS, TEXTS, TOKENIZER, bio_labels, make_model, make_trainer
from tests.saved_folders import varied_model
from tests.tiny_models import tiny_model

EQUAL = 5e-6


def assert_same_weights(model: torch.nn.Module, other: torch.nn.Module, tolerance: float = EQUAL) -> None:
    expected = other.state_dict()
    assert model.state_dict().keys() == expected.keys()
    for name, value in model.state_dict().items():
        assert_close(value, expected[name], tolerance, name)


def trainable(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}


@pytest.mark.parametrize("task", TASKS)
def test_every_kind_of_task_is_learned_evaluated_and_predicted(task, tmp_path):
    settings = {"freeze_bilm": False, "mix_l2": 0.0, **NO_DROPOUT}
    trainer = make_trainer(task, tmp_path, make_model(task, **settings), max_steps=60, lr_scheduler_type="constant")
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.3 * before
    prediction = trainer.predict(trainer.eval_dataset)
    assert isinstance(prediction.predictions, np.ndarray)
    assert prediction.predictions.shape[0] == len(TEXTS)
    assert prediction.predictions.shape[-1] == trainer.model.config.num_labels
    assert prediction.metrics["test_loss"] == pytest.approx(trainer.evaluate()["eval_loss"])


@pytest.mark.parametrize("task", TASKS)
def test_training_goes_on_from_a_checkpoint_with_the_same_dropout(task, tmp_path):
    arguments = {"save_strategy": "steps", "save_steps": 3}
    whole = make_trainer(task, tmp_path / "whole", **arguments)
    whole.train()
    resumed = make_trainer(task, tmp_path / "resumed", **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed.state.global_step == 6
    assert_same_weights(resumed.model, whole.model)


@pytest.mark.parametrize("task", TASKS)
def test_small_batches_accumulated_are_one_large_batch(task, tmp_path):
    """The penalty of the mixes included, whatever the number of words in each small batch."""
    models = []
    for size, steps in ((8, 1), (2, 4)):
        trainer = make_trainer(
            task,
            tmp_path,
            make_model(task, **NO_DROPOUT),
            max_steps=3,
            optim="sgd",
            learning_rate=0.05 if task == "numbers" else 0.5,
            max_grad_norm=0.0,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
        )
        start = trainable(trainer.model)
        trainer.train()
        models.append(trainer.model)
    assert_same_weights(*models)
    for name, value in trainable(models[0]).items():
        if task == "pairs" or not name.startswith("pair_classifier."):
            assert_far(value, start[name], 2e-5, name)


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_of_an_evaluation_is_that_of_the_model(task, tmp_path):
    trainer = make_trainer(task, tmp_path, per_device_eval_batch_size=len(TEXTS))
    batch = trainer.data_collator([trainer.eval_dataset[row] for row in range(len(TEXTS))])
    with torch.no_grad():
        expected = trainer.model.eval()(**batch).loss
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_bfloat16_learns_as_float32_does(task, tmp_path):
    losses = []
    for bf16 in (False, True):
        trainer = make_trainer(task, tmp_path, make_model(task, **NO_DROPOUT), max_steps=20, bf16=bf16)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        losses.append(trainer.evaluate()["eval_loss"])
        assert all(value.dtype == torch.float32 for value in trainer.model.parameters())
        assert losses[-1] < before
    assert losses[1] == pytest.approx(losses[0], rel=0.1, abs=0.02)


@pytest.mark.parametrize("task", TASKS)
def test_an_evaluation_runs_in_bfloat16(task, tmp_path):
    exact = make_trainer(task, tmp_path).predict(TASKS[task].dataset())
    trainer = make_trainer(task, tmp_path, bf16_full_eval=True)
    rounded = trainer.predict(TASKS[task].dataset())
    assert next(trainer.model.parameters()).dtype == torch.bfloat16
    assert rounded.predictions.dtype == np.float32
    assert rounded.metrics["test_loss"] == pytest.approx(exact.metrics["test_loss"], rel=0.1, abs=0.02)


@pytest.mark.parametrize("task", TASKS)
def test_batches_of_similar_lengths_are_drawn(task, tmp_path):
    trainer = make_trainer(task, tmp_path, train_sampling_strategy="group_by_length")
    assert trainer._get_train_sampler().lengths == [len(row) for row in trainer.train_dataset["attention_mask"]]
    trainer.train()
    assert trainer.state.global_step == 6


class TestStopping:
    def train(self, output: Path, scores: list[float], patience: int) -> Any:
        """Trains with an evaluation and a checkpoint at each step, whose scores are given."""
        told: Iterator[float] = iter(scores)
        trainer = make_trainer(
            "tags with a CRF",
            output,
            extras={
                "compute_metrics": lambda prediction: {"score": next(told)},
                "callbacks": [EarlyStoppingCallback(patience)],
            },
            max_steps=len(scores),
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model="score",
        )
        trainer.train()
        return trainer

    def test_training_stops_when_nothing_gets_better_and_the_best_model_is_there(self, tmp_path: Path) -> None:
        trainer = self.train(tmp_path, [0.1, 0.5, 0.3, 0.2, 0.9, 0.9], patience=2)
        assert trainer.state.global_step == 4
        assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
        best = ElmoForTokenClassification.from_pretrained(tmp_path / "checkpoint-2")
        assert_same_weights(trainer.model, best, tolerance=0)
        last = ElmoForTokenClassification.from_pretrained(tmp_path / "checkpoint-4")
        for name, value in trainable(trainer.model).items():
            assert_far(last.state_dict()[name], value, 1e-4, name)

    def test_what_was_frozen_is_frozen_in_the_best_model(self, tmp_path: Path) -> None:
        trainer = self.train(tmp_path, [0.1, 0.5, 0.3], patience=5)
        names = set(trainable(make_model("tags with a CRF")))
        assert set(trainable(trainer.model)) == names
        assert not [name for name in names if name.startswith(("elmo.encoder.", "elmo.embeddings."))]


def assert_bio(labels: list[int]) -> None:
    names = [BIO[label] for label in labels]
    for before, after in zip(["O", *names], names, strict=False):
        assert not after.startswith("I-") or before[1:] == after[1:], names


@pytest.mark.parametrize("precision", ["float32", "bf16", "bf16_full_eval"])
def test_predictions_of_a_crf_are_the_decoded_labels(precision, tmp_path):
    """Whatever the Trainer pads, rounds, concatenates or takes the largest of."""
    options = {} if precision == "float32" else {precision: True}
    model = varied_model(ElmoForTokenClassification, **TASKS["tags with a CRF"].settings)
    trainer = make_trainer("tags with a CRF", tmp_path, model, per_device_eval_batch_size=3, **options)
    prediction = trainer.predict(trainer.eval_dataset)
    emissions = []
    model.crf.register_forward_pre_hook(lambda crf, inputs: emissions.append(inputs))
    seen = set()
    for row, example in enumerate(trainer.eval_dataset):
        ids = torch.tensor([example["input_ids"]])
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            model.eval()(input_ids=ids)
        decoded = model.crf.decode(*emissions[-1])[0, 1:-1].tolist()
        counted = prediction.label_ids[row] != -100
        predicted = prediction.predictions[row].argmax(axis=-1)[counted].tolist()
        assert predicted == decoded
        assert_bio(predicted)
        seen.update(predicted)
    assert len(seen) > 2


class TestAligning:
    """Labels come to their words through `word_ids()`, as in the examples of transformers."""

    @staticmethod
    def align(batch: dict[str, list], label_all_tokens: bool) -> dict[str, Any]:
        encoded = TOKENIZER(batch["tokens"], truncation=True, max_length=8, is_split_into_words=True)
        rows = []
        for index, tags in enumerate(batch["ner_tags"]):
            previous, row = None, []
            for word in encoded.word_ids(batch_index=index):
                is_first = word is not None and word != previous
                row.append(tags[word] if is_first or (label_all_tokens and word is not None) else -100)
                previous = word
            rows.append(row)
        encoded["labels"] = rows
        return encoded

    @pytest.mark.parametrize("label_all_tokens", [False, True])
    def test_every_word_has_its_label_and_boundaries_have_none(self, label_all_tokens: bool) -> None:
        words = [["New York", "can't", "...", "fox"], ["x"], ["w"] * 9]
        tags = [[1, 2, 0, 3], [4], list(range(9))]
        encoded = self.align({"tokens": words, "ner_tags": tags}, label_all_tokens)
        assert encoded["labels"] == [[-100, 1, 2, 0, 3, -100], [-100, 4, -100], [-100, 0, 1, 2, 3, 4, 5, -100]]
        batch = DataCollatorForTokenClassification(TOKENIZER, pad_to_multiple_of=5)(
            [{name: encoded[name][row] for name in ("input_ids", "attention_mask", "labels")} for row in range(3)]
        )
        assert batch["input_ids"].shape == (3, 10, 50)
        assert batch["labels"][1].tolist() == [-100, 4] + [-100] * 8
        loss = make_model("tags", num_labels=9)(**batch).loss
        assert loss.isfinite()

    def test_batches_padded_to_one_length_need_no_collator_of_their_own(self, tmp_path: Path) -> None:
        """As the examples do it with `pad_to_max_length` and `default_data_collator`."""
        losses = []
        for padding in (False, "max_length"):
            encoded = TOKENIZER(TEXTS, padding=padding, max_length=12)
            tags = [bio_labels(text.split()) for text in TEXTS]
            rows = [
                [-100, *tag] + [-100] * (len(ids) - len(tag) - 1)
                for tag, ids in zip(tags, encoded["input_ids"], strict=True)
            ]
            data = [
                {"input_ids": ids, "attention_mask": mask, "labels": row}
                for ids, mask, row in zip(encoded["input_ids"], encoded["attention_mask"], rows, strict=True)
            ]
            extras = {"train_dataset": data, "eval_dataset": data}
            if padding:
                extras["data_collator"] = default_data_collator
            trainer = make_trainer("tags with a CRF", tmp_path, make_model("tags with a CRF", **NO_DROPOUT), extras)
            trainer.train()
            losses.append(trainer.evaluate()["eval_loss"])
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)


class TestNewModels:
    """`model_init`, which searches for hyper-parameters start every run with."""

    def test_every_run_starts_with_a_new_model(self, tmp_path: Path) -> None:
        trainer = make_trainer("tags", tmp_path, extras={"model": None, "model_init": lambda: make_model("tags")})
        found = []
        for rate in (0.02, 0.03, 0.02):
            trainer.args.learning_rate = rate
            trainer.train()
            found.append(trainer.model)
        assert found[0] is not found[2]
        assert_same_weights(found[0], found[2], tolerance=0)
        assert_far(found[1].classifier.weight, found[0].classifier.weight, 1e-3)

    def test_optuna_searches_among_settings_of_training_and_of_the_head(self, tmp_path: Path) -> None:
        optuna = pytest.importorskip("optuna")
        grid: dict[str, Any] = {"learning_rate": [1e-6, 0.03], "task_num_layers": [0, 1]}
        layers: list[int] = []

        def new_model(trial: Any) -> torch.nn.Module:
            suggested = 1 if trial is None else trial.suggest_categorical("task_num_layers", grid["task_num_layers"])
            layers.append(suggested)
            return make_model("tags", task_num_layers=suggested, **NO_DROPOUT)

        trainer = make_trainer("tags", tmp_path, extras={"model": None, "model_init": new_model}, max_steps=20)
        best = trainer.hyperparameter_search(
            direction="minimize",
            backend="optuna",
            n_trials=4,
            hp_space=lambda trial: {
                "learning_rate": trial.suggest_categorical("learning_rate", grid["learning_rate"])
            },
            sampler=optuna.samplers.GridSampler(grid, seed=0),
        )
        assert best.hyperparameters["learning_rate"] == 0.03
        assert sorted(layers[-4:]) == [0, 0, 1, 1]


class TestAdapters:
    """LoRA inside the frozen biLM, while the head and the mixes are trained and saved whole."""

    HEAD = ["representations.0", "representations.1", "task_network", "classifier", "crf"]

    def test_the_parts_of_a_head_are_listed(self) -> None:
        assert modules_to_save(make_model("tags with a CRF")) == self.HEAD
        head = tiny_model(ElmoForSequenceClassification, classifier_pooling="biattentive", mix_trainable=False)
        assert modules_to_save(head) == ["task_network", "pooling", "classifier", "pair_classifier"]
        with pytest.raises(ValueError, match="a head of ELMo, not ElmoModel"):
            modules_to_save(tiny_model(ElmoModel))

    @pytest.fixture
    def trained(self, tmp_path: Path) -> Any:
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(
            r=2, target_modules=["input_gates", "recurrent_gates"], modules_to_save=self.HEAD, task_type="TOKEN_CLS"
        )
        model = peft.get_peft_model(make_model("tags with a CRF"), config)
        return make_trainer("tags with a CRF", tmp_path / "run", model, save_strategy="steps", save_steps=3)

    def test_adapters_and_head_are_trained_and_nothing_else(self, trained: Any) -> None:
        before = {name: value.detach().clone() for name, value in trained.model.named_parameters()}
        trained.train()
        for name, value in trained.model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                assert_far(value, before[name], 1e-4, name)
            else:
                assert_close(value, before[name], 0, name)

    def test_what_is_saved_is_small_and_gives_the_same_model(self, trained: Any, tmp_path: Path) -> None:
        from peft import PeftModel

        trained.train()
        trained.save_model(str(tmp_path / "adapter"))
        names = load_file(tmp_path / "adapter" / "adapter_model.safetensors").keys()
        assert any("crf.transitions" in name for name in names)
        assert not [name for name in names if "character_embeddings" in name or ".projection." in name]
        again = PeftModel.from_pretrained(make_model("tags with a CRF"), tmp_path / "adapter")
        batch = TOKENIZER(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            expected = trained.model.eval()(**batch).logits.exp()
            assert_close(again.eval()(**batch).logits.exp(), expected, 1e-5)
            merged = again.merge_and_unload()
            assert_close(merged(**batch).logits.exp(), expected, 1e-4)

    def test_training_goes_on_from_a_checkpoint(self, trained: Any, tmp_path: Path) -> None:
        from peft import PeftModel

        trained.train()
        checkpoint = tmp_path / "run" / "checkpoint-3"
        model = PeftModel.from_pretrained(make_model("tags with a CRF"), checkpoint, is_trainable=True)
        resumed = make_trainer("tags with a CRF", tmp_path / "resumed", model)
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert resumed.state.global_step == 6
        assert_same_weights(resumed.model, trained.model)


RANKS = """
import sys
from pathlib import Path
import torch
from tests.finetuning_runs import NO_DROPOUT, make_model, make_trainer

task, output = sys.argv[1:]
trainer = make_trainer(
    task, Path(output), make_model(task, **NO_DROPOUT), max_steps=4, optim="sgd", learning_rate=0.05,
    max_grad_norm=0.0, per_device_train_batch_size=2, gradient_accumulation_steps=2, ddp_backend="gloo",
)
trainer.train()
trainer.save_model()
Path(output, f"loss-{trainer.args.process_index}").write_text(str(trainer.evaluate()["eval_loss"]))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.long
def test_two_processes_of_half_the_batch_are_one_of_the_whole(task, tmp_path):
    whole = make_trainer(
        task,
        tmp_path / "one",
        make_model(task, **NO_DROPOUT),
        max_steps=4,
        optim="sgd",
        learning_rate=0.05,
        max_grad_norm=0.0,
        per_device_train_batch_size=8,
    )
    whole.train()
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    command = [*launcher, str(script), task, str(tmp_path / "two")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    losses = [float((tmp_path / "two" / f"loss-{rank}").read_text()) for rank in range(2)]
    assert losses[0] == pytest.approx(losses[1])
    found = load_file(tmp_path / "two" / "model.safetensors")
    for name, value in whole.model.state_dict().items():
        assert_close(found[name], value, EQUAL, name)
