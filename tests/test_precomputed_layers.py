"""`precompute_layers`: the same numbers, losses and trainings as with the biLM, whatever stops the work in between."""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Array2D, Dataset, DatasetDict, IterableDataset, load_from_disk
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_elmo import (
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
    precompute_layers,
)
from hf_elmo.embedding.errors import ChangedError, OutputError
from hf_elmo.lexicon_elmo import WordVocabulary
from tests.assertions import assert_close, assert_identical
from tests.embedding_jobs import contents, kill_after, killed_at, run_in_child, seconds_of
from tests.saved_folders import save_folder, varied_model
from tests.tiny_models import SENTENCES, tiny_model

ROUNDING = 1e-5
SENTENCES_AND_NONE = [*SENTENCES, [], ["a" * 60, "a" * 70], ["Yes"]]
TOKENIZER = ElmoTokenizer()
WITH_WORDS = ElmoTokenizer(word_vocabulary=WordVocabulary(["<S>", "</S>", "<UNK>", "the", "fox", "мыла", "."]))
BIO = {0: "O", 1: "B-X", 2: "I-X"}


def tokenized(sentences: list[list[str]] = SENTENCES_AND_NONE, tokenizer=TOKENIZER, **columns: Any) -> Dataset:
    """Lists of words as a data set, through `map` as everybody does it."""
    dataset = Dataset.from_dict({"words": sentences, **columns})
    return dataset.map(
        lambda batch: tokenizer(batch["words"], is_split_into_words=True), batched=True, remove_columns="words"
    )


def pairs(**options: Any) -> Dataset:
    """Pairs of texts, some of them of nothing."""
    texts = [" ".join(words) for words in SENTENCES_AND_NONE]
    dataset = Dataset.from_dict({"a": texts, "b": texts[3:] + texts[:3], "label": [0, 1, 2, 0, 1, 2, 0]})
    return dataset.map(
        lambda batch: TOKENIZER(batch["a"], batch["b"], **options), batched=True, remove_columns=["a", "b"]
    )


def tags(sentences: list[list[str]] = SENTENCES_AND_NONE) -> list[list[int]]:
    """A label for each word and none for the boundaries; a sequence that BIO allows."""
    return [[-100, *(min(place, 2) for place in range(len(words))), -100] for words in sentences]


def compute(dataset: Any, model: Any, folder: Path, dtype: str = "float32", **options: Any) -> Any:
    return precompute_layers(dataset, model, output_dir=folder / "layers", dtype=dtype, **options)


def full_layers(model: ElmoModel, tokenizer: ElmoTokenizer, words: list[str]) -> torch.Tensor:
    """The layers of one sentence that is read by itself."""
    encoded = tokenizer([words], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        hidden_states = model(**encoded, output_hidden_states=True).hidden_states
    first, *others = hidden_states
    return torch.cat([first[0, :, : model.config.projection_size], *(layer[0] for layer in others)], dim=-1)


@pytest.fixture(scope="module")
def model() -> ElmoModel:
    return varied_model()


class TestPadding:
    LAYERS = [np.arange(6.0).reshape(3, 2), np.ones((1, 2)), np.zeros((0, 2))]

    def examples(self, dtype: Any = np.float16, **columns: list) -> list[dict[str, Any]]:
        return [
            {"layers": layers.astype(dtype), **{name: column[row] for name, column in columns.items()}}
            for row, layers in enumerate(self.LAYERS)
        ]

    @pytest.mark.parametrize("side", ["right", "left"])
    @pytest.mark.parametrize("dtype", [np.float16, np.float32])
    def test_zeros_go_where_there_is_no_word(self, side, dtype):
        padded = TOKENIZER.pad(self.examples(dtype), padding_side=side, return_tensors="pt")
        where = slice(0, 1) if side == "right" else slice(2, 3)
        assert padded["layers"].dtype == torch.from_numpy(np.zeros(1, dtype)).dtype
        assert_identical(padded["layers"][0], self.LAYERS[0])
        assert_identical(padded["layers"][1, where], self.LAYERS[1])
        assert padded["layers"].count_nonzero() == 7
        assert padded["attention_mask"][1].tolist() == ([1, 0, 0] if side == "right" else [0, 0, 1])
        assert padded["attention_mask"].sum() == 4

    def test_tokens_stand_for_the_characters_that_are_not_there(self):
        padded = TOKENIZER.pad(self.examples(), return_tensors="pt")
        ids = padded["input_ids"]
        assert ids.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
        assert [TOKENIZER.unk_token_id, TOKENIZER.pad_token_id] == [1, 0]

    def test_columns_of_words_are_padded_beside(self):
        columns = {"token_type_ids": [[0, 1, 1], [0], []], "word_input_ids": [[1, 7, 2], [1], []]}
        padded = TOKENIZER.pad(self.examples(**columns), return_tensors="pt", pad_to_multiple_of=4)
        assert padded["token_type_ids"].tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
        assert padded["word_input_ids"].tolist() == [[1, 7, 2, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
        assert padded["layers"].shape == (3, 4, 2)

    def test_characters_stay_where_they_are_given(self):
        encoded = TOKENIZER([["a", "b"], ["c"]], is_split_into_words=True)
        layers = [np.ones((len(ids), 2), np.float32) for ids in encoded["input_ids"]]
        padded = TOKENIZER.pad({**encoded, "layers": layers}, return_tensors="pt")
        without = TOKENIZER.pad(dict(encoded), return_tensors="pt")
        assert_identical(padded["input_ids"], without["input_ids"])
        assert_identical(padded["layers"][..., 0], without["attention_mask"])

    @pytest.mark.parametrize("kind", ["np", "pt", "lists"])
    def test_one_example_is_no_batch_and_keeps_its_kind(self, kind):
        layers: Any = self.LAYERS[0].astype(np.float32)
        layers = {"np": layers, "pt": torch.from_numpy(layers), "lists": layers.tolist()}[kind]
        padded = TOKENIZER.pad({"layers": layers}, padding="max_length", max_length=4)
        assert type(padded["layers"]) is type(layers)
        assert np.asarray(padded["layers"]).shape == (4, 2)
        assert list(padded["attention_mask"]) == [1, 1, 1, 0]
        batch = TOKENIZER.pad({"layers": [layers, layers]}, return_tensors="np")
        assert batch["layers"].shape == (2, 3, 2)

    def test_bfloat16_stays(self):
        padded = TOKENIZER.pad([{"layers": torch.ones(2, 3, dtype=torch.bfloat16)}], return_tensors="pt")
        assert padded["layers"].dtype == torch.bfloat16

    @pytest.mark.parametrize("wrong", [np.ones((1, 3)), np.ones(2), np.ones((1, 2, 2))])
    def test_sizes_that_differ_are_refused(self, wrong):
        with pytest.raises(ValueError, match=r"`layers` must have the shape \(words, size\)"):
            TOKENIZER.pad({"layers": [np.ones((2, 2)), wrong]}, return_tensors="pt")

    def test_lengths_must_be_those_of_the_characters(self):
        encoded = TOKENIZER([["a", "b"]], is_split_into_words=True)
        with pytest.raises(ValueError, match="as many words as `input_ids`"):
            TOKENIZER.pad({**encoded, "layers": [np.ones((2, 2))]}, return_tensors="pt")


class TestWhatIsStored:
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_every_row_has_the_layers_that_it_has_alone(self, dtype, model, tmp_path):
        rows = compute(tokenized(), model, tmp_path, dtype, batch_words=20, shard_words=12)
        assert len(list((tmp_path / "layers").glob("*.arrow"))) > 2
        assert rows["length"] == [len(words) + 2 for words in SENTENCES_AND_NONE]
        for row, words in zip(rows, SENTENCES_AND_NONE, strict=True):
            assert row["layers"].dtype == np.dtype(dtype)
            expected = full_layers(model, TOKENIZER, words)
            assert_close(
                row["layers"], expected, ROUNDING if dtype == "float32" else 2e-3 * float(expected.abs().max())
            )

    def test_columns_are_kept_but_for_the_characters(self, model, tmp_path):
        dataset = tokenized(label=list(range(7)), text=[None, "é", "", "a", "b", "c", "d"], more=[[1], [], *[[2]] * 5])
        rows = compute(dataset, model, tmp_path)
        assert set(rows.column_names) == {*dataset.column_names, "layers", "length", "token_type_ids"} - {"input_ids"}
        for name in ("label", "text", "more", "attention_mask"):
            assert rows[name] == dataset[name]
            assert rows.features[name] == dataset.features[name]
        assert rows.features["layers"] == Array2D((None, model.config.layers_size), "float32")
        assert isinstance(rows[0]["label"], int)

    def test_splits_keep_their_names(self, model, tmp_path):
        splits = DatasetDict(train=tokenized(), dev=tokenized([["a"]]), empty=tokenized().select([]))
        found = compute(splits, model, tmp_path)
        assert {name: len(split) for name, split in found.items()} == {"train": 7, "dev": 1, "empty": 0}
        again = load_from_disk(str(tmp_path / "layers"))
        for name, split in again.items():
            assert split.format == found[name].format
            assert len(split) == len(found[name])
        assert_identical(again["dev"][0]["layers"], found["dev"][0]["layers"])

    def test_the_order_is_that_of_the_data_set(self, model, tmp_path):
        order = [5, 0, 3, 3]
        rows = compute(tokenized().select(order), model, tmp_path)
        for row, place in zip(rows, order, strict=True):
            assert_close(row["layers"], full_layers(model, TOKENIZER, SENTENCES_AND_NONE[place]), ROUNDING)

    @pytest.mark.parametrize("side", ["right", "left"])
    @pytest.mark.parametrize("has_mask", [True, False])
    def test_padding_in_the_data_set_is_zeros(self, side, has_mask, model, tmp_path):
        options = {"padding": "max_length", "max_length": 14, "padding_side": side, "is_split_into_words": True}
        dataset = Dataset.from_dict({"words": SENTENCES})
        dataset = dataset.map(lambda batch: TOKENIZER(batch["words"], **options), batched=True)
        mask = dataset["attention_mask"][:]
        rows = compute(dataset if has_mask else dataset.remove_columns("attention_mask"), model, tmp_path)
        assert rows["attention_mask"] == mask
        for row, words, kept in zip(rows, SENTENCES, mask, strict=True):
            kept = np.array(kept, dtype=bool)
            assert_close(row["layers"][kept], full_layers(model, TOKENIZER, words), ROUNDING)
            assert not row["layers"][~kept].any()

    def test_texts_without_any_row_have_none(self, tmp_path):
        tokenizer = ElmoTokenizer(bos_token=None, eos_token=None)
        model = varied_model(bos_token_id=None, eos_token_id=None)
        rows = compute(tokenized([["a", "b"], [], ["c"]], tokenizer), model, tmp_path)
        assert [row["layers"].shape[0] for row in rows] == [2, 0, 1]
        batch = DataCollatorWithPadding(tokenizer)(rows.__getitems__([0, 1, 2]))
        assert batch["attention_mask"].tolist() == [[1, 1], [0, 0], [1, 0]]

    def test_a_model_with_word_vectors_is_given_the_words(self, tmp_path):
        model = varied_model(word_embedding_size=3, word_vocab_size=7)
        rows = compute(tokenized(tokenizer=WITH_WORDS), model, tmp_path)
        for row, words in zip(rows, SENTENCES_AND_NONE, strict=True):
            assert_close(row["layers"], full_layers(model, WITH_WORDS, words), ROUNDING)
        assert "word_input_ids" in rows.column_names

    @pytest.mark.parametrize("options", [{}, {"return_token_type_ids": True}])
    def test_each_text_of_a_pair_is_read_alone(self, options, model, tmp_path):
        rows = compute(pairs(**options), model, tmp_path, batch_words=30)
        seconds = SENTENCES_AND_NONE[3:] + SENTENCES_AND_NONE[:3]
        for row, words in zip(rows, zip(SENTENCES_AND_NONE, seconds, strict=True), strict=True):
            for number, text in enumerate(words):
                part = row["layers"][np.array(row["token_type_ids"]) == number]
                assert_close(part, full_layers(model, TOKENIZER, text), ROUNDING)

    def test_a_folder_or_a_head_is_the_same_as_its_bilm(self, tmp_path):
        folder = save_folder(tmp_path / "elmo", ElmoForSequenceClassification)
        head = ElmoForSequenceClassification.from_pretrained(folder)
        found = [
            precompute_layers(tokenized(), source, TOKENIZER, output_dir=tmp_path / str(number))[2]["layers"]
            for number, source in enumerate([folder, head, head.elmo])
        ]
        for layers in found[1:]:
            assert_identical(layers, found[0])

    def test_the_model_is_left_as_it_was(self, tmp_path):
        head = tiny_model(ElmoForSequenceClassification, representation_dropout=0.5).train()
        compute(tokenized(), head, tmp_path)
        assert head.training
        head(**TOKENIZER(["a b"], return_tensors="pt"), labels=torch.tensor([1])).loss.backward()
        assert head.classifier.weight.grad.abs().sum() > 0

    def test_the_stock_collators_read_arrays(self, model, tmp_path):
        rows = compute(tokenized(labels=tags(), tokenizer=WITH_WORDS), model, tmp_path, "float16")
        batch = DataCollatorForTokenClassification(WITH_WORDS)(rows.__getitems__([0, 4, 2]))
        assert batch["layers"].dtype == torch.float16
        assert batch["labels"][1].tolist() == [-100] * 11
        assert batch["word_input_ids"][1].tolist() == [1, 2, *[0] * 9]
        assert_identical(batch["layers"][0, :6], rows[0]["layers"])
        assert batch["attention_mask"].sum(dim=1).tolist() == [6, 2, 11]
        batch = DataCollatorWithPadding(WITH_WORDS)(rows.remove_columns("labels").__getitems__([0, 4]))
        assert batch["length"].tolist() == [6, 2]


# Each kind of head: class, settings, data set, and the collator.
HEADS: dict[str, tuple[Any, dict[str, Any], Callable[[], Dataset]]] = {
    "texts": (ElmoForSequenceClassification, {}, lambda: tokenized(label=[0, 1, 2, 0, 1, 2, 0])),
    "pairs": (ElmoForSequenceClassification, {}, pairs),
    "pairs, biattentive, both ends": (
        ElmoForSequenceClassification,
        {"classifier_pooling": "biattentive", "elmo_at_output": True},
        lambda: pairs(return_token_type_ids=True),
    ),
    "words": (ElmoForTokenClassification, {"mix_layer_norm": True}, lambda: tokenized(labels=tags())),
    "words, linear": (
        ElmoForTokenClassification,
        {"task_num_layers": 0, "mix_layers": [-1]},
        lambda: tokenized(labels=tags()),
    ),
    "words, CRF": (
        ElmoForTokenClassification,
        {"use_crf": True, "label_scheme": "BIO", "id2label": BIO},
        lambda: tokenized(labels=tags()),
    ),
    "words, with vectors": (
        ElmoForTokenClassification,
        {"task_embedding_size": 4, "word_vocab_size": 7},
        lambda: tokenized(labels=tags(), tokenizer=WITH_WORDS),
    ),
    "predicates": (
        ElmoForTokenClassification,
        {"use_predicate_indicator": True},
        lambda: tokenized(labels=tags(), token_type_ids=[[0, 1, *[0] * len(words)] for words in SENTENCES_AND_NONE]),
    ),
}


def make_head(kind: str, seed: int = 0, **overrides: Any) -> tuple[Any, Dataset, Any]:
    """A head, its data set and the stock collator."""
    head_class, settings, dataset = HEADS[kind]
    head = tiny_model(head_class, **{"num_labels": 3, "task_hidden_size": 5, **settings, **overrides})
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.mul_(50.0 if "classifier" in name else 3.0 if "lstm" in name else 1.0)
    collator_class = (
        DataCollatorForTokenClassification if "labels" in dataset().column_names else DataCollatorWithPadding
    )
    return head, dataset(), collator_class(WITH_WORDS if "word_vocab_size" in settings else TOKENIZER)


def run_head(head: Any, dataset: Dataset, collator: Any) -> Any:
    unused = [name for name in ("length",) if name in dataset.column_names]
    with torch.no_grad():
        return head(**collator(dataset.remove_columns(unused).__getitems__(range(len(dataset)))))


class TestHeads:
    @pytest.mark.parametrize("kind", HEADS)
    def test_loss_and_logits_are_those_of_the_full_forward(self, kind, tmp_path):
        head, dataset, collator = make_head(kind)
        expected = run_head(head, dataset, collator)
        for dtype, tolerance in (("float32", ROUNDING), ("float16", 2e-2)):
            found = run_head(head, compute(dataset, head, tmp_path / dtype, dtype), collator)
            scale = float(expected.logits.abs().max())
            assert_close(found.logits, expected.logits, tolerance * max(scale, 1), dtype)
            assert_close(found.loss, expected.loss, tolerance * max(scale, 1), dtype)

    @pytest.mark.parametrize("kind", HEADS)
    def test_an_epoch_of_training_has_the_same_losses_and_metrics(self, kind, tmp_path):
        histories = []
        for is_stored in (False, True):
            head, dataset, collator = make_head(kind, mix_l2=0.1)
            if is_stored:
                dataset = compute(dataset, head, tmp_path)
            trainer = make_trainer(head, dataset, collator, tmp_path)
            trainer.train()
            losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
            histories.append(([*losses, trainer.evaluate()["eval_loss"]], trainer.predict(dataset).predictions))
        assert len(histories[0][0]) == 5
        assert histories[1][0] == pytest.approx(histories[0][0], rel=1e-4, abs=1e-4)
        assert_close(histories[1][1], histories[0][1], 1e-3 * max(1.0, float(np.abs(histories[0][1]).max())))

    def test_groups_by_length_as_the_stock_trainer_does(self, tmp_path):
        head, dataset, collator = make_head("words")
        trainer = make_trainer(
            head, compute(dataset, head, tmp_path), collator, tmp_path, train_sampling_strategy="group_by_length"
        )
        assert_groups_lengths(trainer)
        trainer.train()

    def test_gradients_do_not_reach_the_bilm(self, tmp_path):
        head, dataset, collator = make_head("texts")
        rows = compute(dataset, head, tmp_path)
        head.train()(**collator(rows.remove_columns("length").__getitems__([0, 1]))).loss.backward()
        assert head.elmo.representations[0].scalar_parameters.grad.abs().sum() > 0
        assert all(parameter.grad is None for parameter in head.elmo.encoder.parameters())


def make_trainer(head: Any, dataset: Dataset, collator: Any, folder: Path, **options: Any) -> Trainer:
    set_seed(3)
    arguments = TrainingArguments(
        output_dir=str(folder / "run"),
        per_device_train_batch_size=2,
        num_train_epochs=1,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    return Trainer(head, arguments, train_dataset=dataset, eval_dataset=dataset, data_collator=collator)


def assert_groups_lengths(trainer: Trainer) -> None:
    """Asserts that batches hold rows of like lengths: the longest first, then as `LengthGroupedSampler` sorts them."""
    lengths = [batch["attention_mask"].sum(dim=1).tolist() for batch in trainer.get_train_dataloader()]
    assert max(map(max, lengths)) == max(lengths[0])
    assert sum(max(batch) - min(batch) for batch in lengths) < 20


def job(folder: Path, model: Path, count: int = 40, **options: Any) -> Callable[[], Any]:
    """A task over some random sentences, in a folder of its own."""
    numbers = random.Random(0)
    sentences = [numbers.choices(["fox", "naïve", "Мама", "."], k=numbers.randint(0, 30)) for _ in range(count)]
    splits = DatasetDict(train=tokenized(sentences), test=tokenized(sentences[:3]))

    def task() -> None:
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        torch.set_num_threads(1)
        precompute_layers(
            splits, ElmoModel.from_pretrained(model), output_dir="layers", batch_words=64, shard_words=100, **options
        )

    return task


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    return save_folder(tmp_path_factory.mktemp("models") / "elmo")


class TestStops:
    def test_a_kill_at_every_step_that_changes_the_disk_loses_nothing(self, model_folder, tmp_path):
        seconds_of(job(tmp_path / "whole", model_folder, 8))
        expected = contents(tmp_path / "whole")
        steps = 0
        while True:
            task = job(tmp_path / f"killed-{steps}", model_folder, 8)
            child = run_in_child(killed_at(steps, task))
            child.join()
            if child.exitcode == 0:
                break
            seconds_of(task)
            assert contents(tmp_path / f"killed-{steps}") == expected, f"killed at step {steps}"
            steps += 1
        assert steps >= 8

    def test_kills_at_random_moments(self, model_folder, tmp_path):
        whole = seconds_of(job(tmp_path / "whole", model_folder))
        expected = contents(tmp_path / "whole")
        assert len(expected) > 8
        for number in range(3):
            task = job(tmp_path / f"killed-{number}", model_folder)
            child = run_in_child(task)
            kill_after(child, random.Random(number).uniform(0.2, 0.9) * whole)
            seconds_of(task)
            assert contents(tmp_path / f"killed-{number}") == expected

    def test_only_what_is_missing_is_computed(self, model, tmp_path):
        unfinished = begin(tokenized(), model, tmp_path)
        untouched = sorted(unfinished.glob("part-*"))[0]
        os.utime(untouched, (1, 1))
        (unfinished / "part-00000001.arrow").write_bytes(b"damaged")
        (unfinished / "part-00000002.arrow.tmp").write_bytes(b"half")
        compute(tokenized(), model, tmp_path, shard_words=12)
        assert not unfinished.exists()
        assert (tmp_path / "layers" / untouched.name).stat().st_mtime == 1
        assert list(tmp_path.rglob("*.tmp")) == []
        row = load_from_disk(str(tmp_path / "layers"))[2]
        assert_close(row["layers"], full_layers(model, TOKENIZER, SENTENCES[2]), ROUNDING)

    def test_a_full_disk_is_told_and_the_same_call_goes_on(self, model, tmp_path):
        resource = pytest.importorskip("resource")
        dataset = tokenized([["a"], ["b"] * 500, ["c"]])

        def full() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            with pytest.raises(
                OutputError, match=r"part-00000001\..* could not be written.* 3 words are done and kept"
            ):
                compute(dataset, model, tmp_path, shard_words=5)

        child = run_in_child(full)
        child.join()
        assert child.exitcode == 0
        assert not (tmp_path / "layers").exists()
        assert list(tmp_path.rglob("*.tmp")) == []
        assert len(compute(dataset, model, tmp_path, shard_words=5)) == 3

    def test_a_run_that_fails_at_once_leaves_nothing(self, model, tmp_path):
        dataset = Dataset.from_dict({"input_ids": [np.ones((2, 50), int).tolist()], "attention_mask": [[1]]})
        with pytest.raises(
            ValueError, match="Row 0 of the data set has 2 words in `input_ids`, but 1 in `attention_mask`"
        ):
            compute(dataset, model, tmp_path)
        assert list(tmp_path.iterdir()) == []


def begin(data: Dataset, model: ElmoModel, folder: Path) -> Path:
    """A job as a kill leaves it: all shards, nothing more."""
    compute(data, model, folder, shard_words=12)
    unfinished = folder / "layers.unfinished"
    (folder / "layers").rename(unfinished)
    manifest = json.loads((unfinished / "manifest.json").read_text())
    (unfinished / "manifest.json").write_text(json.dumps({**manifest, "complete": False}))
    return unfinished


class TestChanges:
    @pytest.mark.parametrize("is_finished", [True, False])
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("weights", "was begun with another model"),
            ("clip", "was begun with another model"),
            ("words", "given data"),
            ("labels", "given data"),
            ("fewer rows", "given data"),
            ("dtype", "dtype was 'float32' and is now 'float16'"),
            ("batches", "batch_words was None and is now 7"),
            ("precision", "precision was 'float32' and is now 'bfloat16'"),
        ],
    )
    def test_what_was_begun_otherwise_is_refused(self, is_finished, change, message, tmp_path):
        model = varied_model()
        labels = list(range(7))
        data, options = tokenized(label=labels), {"shard_words": 12}
        if is_finished:
            compute(data, model, tmp_path, **options)
        else:
            begin(data, model, tmp_path)
        before = contents(tmp_path)
        if change == "weights":
            with torch.no_grad():
                model.encoder.layers[1].forward_lstm.projection.weight[0, 0] += 1e-3
        elif change == "clip":
            model.config.cell_clip = 1.0
        elif change == "precision":
            model.config.frozen_bilm_dtype = "bfloat16"
        elif change == "words":
            data = tokenized([*SENTENCES_AND_NONE[:6], ["No"]], label=labels)
        elif change == "labels":
            data = tokenized(label=[*labels[:6], 0])
        elif change == "fewer rows":
            data = data.select(range(6))
        elif change == "batches":
            options["batch_words"] = 7
        match = "give the same data" if message == "given data" else message
        with pytest.raises(ChangedError, match=match) as error:
            compute(data, model, tmp_path, "float16" if change == "dtype" else "float32", **options)
        assert "overwrite=True" in str(error.value)
        assert contents(tmp_path) == before
        changed = compute(
            data, model, tmp_path, "float16" if change == "dtype" else "float32", overwrite=True, **options
        )
        assert len(changed) == len(data)

    def test_the_mixes_may_change(self, tmp_path):
        head = tiny_model(ElmoForSequenceClassification)
        compute(tokenized(), head, tmp_path)
        before = contents(tmp_path)
        with torch.no_grad():
            head.elmo.representations[0].scalar_parameters[0] = 3.0
            head.classifier.weight.add_(1.0)
        compute(tokenized(), head, tmp_path)
        assert contents(tmp_path) == before

    def test_what_is_not_ours_is_left_alone(self, model, tmp_path):
        (tmp_path / "layers").mkdir()
        (tmp_path / "layers" / "thesis.txt").write_text("mine")
        for overwrite in (False, True):
            with pytest.raises(ChangedError, match=r"exists and was not written by precompute_layers"):
                compute(tokenized(), model, tmp_path, overwrite=overwrite)
        assert (tmp_path / "layers" / "thesis.txt").read_text() == "mine"

    def test_an_empty_folder_is_taken(self, model, tmp_path):
        (tmp_path / "layers").mkdir()
        assert len(compute(tokenized(), model, tmp_path)) == 7


class TestMistakes:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (Dataset.from_dict({"text": ["a"]}), "The data set has no column input_ids: tokenize it first"),
            (DatasetDict(dev=Dataset.from_dict({"text": ["a"]})), "The split 'dev' has no column input_ids"),
            (
                Dataset.from_dict({"input_ids": [[[1, 2]]]}),
                "Row 0 of the data set holds `input_ids` that are no rows of 50",
            ),
            (
                Dataset.from_dict({"input_ids": [[1, 2]]}),
                "Row 0 of the data set holds `input_ids` that are no rows of 50",
            ),
            (
                Dataset.from_dict({"input_ids": [1, 2]}),
                "input_ids of the data set, behind row 0, has rows without a list",
            ),
            (Dataset.from_dict({"input_ids": [[[1] * 50]], "layers": [1]}), "has a column `layers` already"),
            (
                IterableDataset.from_generator(lambda: iter([])),
                "takes a Dataset or a DatasetDict, not IterableDataset",
            ),
            ([1], "takes a Dataset or a DatasetDict, not list"),
        ],
    )
    def test_data_that_do_not_fit_are_told(self, data, message, model, tmp_path):
        with pytest.raises(ValueError, match=message):
            compute(data, model, tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_words_are_missing_for_a_model_that_has_vectors_of_them(self, tmp_path):
        with pytest.raises(ValueError, match="no column word_input_ids"):
            compute(tokenized(), tiny_model(word_embedding_size=3, word_vocab_size=7), tmp_path)

    def test_a_predicate_is_no_second_text(self, model, tmp_path):
        data = tokenized([["a", "b"]], token_type_ids=[[0, 0, 1, 0]])
        with pytest.raises(ValueError, match=r"In row 0 of the data set `token_type_ids` do not tell a second text"):
            compute(data, model, tmp_path)
        assert len(compute(data, tiny_model(ElmoForTokenClassification), tmp_path)) == 1

    @pytest.mark.parametrize(
        ("sentence", "tokenizer"), [(["a", "<S>", "b"], TOKENIZER), (["a"], ElmoTokenizer(bos_token=None))]
    )
    def test_boundaries_that_a_head_would_not_find_are_told(self, sentence, tokenizer, tmp_path):
        with pytest.raises(ValueError, match=r"In row 1 of the data set the boundaries <S> and </S> are not just at"):
            compute(tokenized([[], sentence], tokenizer), tiny_model(ElmoForTokenClassification), tmp_path)

    def test_a_bilm_that_is_trained_has_no_layers_to_keep(self, tmp_path):
        with pytest.raises(ValueError, match="freeze_bilm=False"):
            compute(tokenized(), tiny_model(freeze_bilm=False), tmp_path)

    def test_a_number_beyond_float16_is_told(self, tmp_path):
        model = tiny_model(projection_clip=None)
        with torch.no_grad():
            model.encoder.layers[0].forward_lstm.projection.weight.fill_(1e6)
        with pytest.raises(ValueError, match="too large for float16"):
            compute(tokenized(), model, tmp_path, "float16")
        assert list(tmp_path.iterdir()) == []
        assert np.isfinite(compute(tokenized(), model, tmp_path)[0]["layers"]).all()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "int8"}, "dtype must be 'float16' or 'float32'"),
            ({"shard_words": 0}, "shard_words must be 1 or more"),
            ({"batch_words": -1}, "batch_words must be 1 or more"),
            ({"tokenizer": ElmoTokenizer(max_characters_per_token=9)}, "rows of 9 characters, but the model reads 50"),
        ],
    )
    def test_settings_are_checked(self, options, message, model, tmp_path):
        with pytest.raises(ValueError, match=message):
            precompute_layers(tokenized(), model, output_dir=tmp_path / "layers", **options)

    def test_a_model_of_another_kind_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="takes a model of ELMo or its folder, not Linear"):
            compute(tokenized(), torch.nn.Linear(1, 1), tmp_path)
        with pytest.raises(ValueError, match="There is no model nowhere"):
            compute(tokenized(), "nowhere/at-all", tmp_path)

    def test_an_output_that_cannot_be_is_refused(self, model, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="is no folder to write in"):
            precompute_layers(tokenized(), model, output_dir=tmp_path / "file" / "layers")
