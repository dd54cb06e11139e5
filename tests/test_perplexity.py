"""Perplexity: that of the originals by both protocols, and what it is defined to be."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.language_model_elmo import ElmoForPreTraining
from hf_elmo.pretraining.corpus import Corpus
from hf_elmo.pretraining.loading import load_language_model
from hf_elmo.pretraining.perplexity import PerplexityReport, merged, perplexity
from hf_elmo.pretraining.streams import StreamBatches
from tests.assertions import assert_close, assert_far, assert_relative
from tests.language_models import (
    SENTENCES,
    save_language_model,
    tiny_language_model,
    tiny_tokenizer,
    tiny_vocabulary,
    write_lines,
)
from tests.original_checkpoints import TENSORFLOW
from tests.shared_files import fixture_path
from tests.test_cli import assert_one_message, assert_succeeds

ORIGINALS = ["bilm_tf_lm", "deeppavlov_lm_ru"]


class Original:
    """The language model of a fixture, converted from its training checkpoint, its text and its stored figures."""

    def __init__(self, name: str, folder: Path) -> None:
        from hf_elmo.conversion import convert_checkpoint

        fixture = fixture_path(name)
        self.folder = folder / "converted"
        convert_checkpoint(fixture / TENSORFLOW[name], self.folder)
        self.model, self.tokenizer = load_language_model(self.folder)
        self.sentences = json.loads((fixture / "sentences.json").read_text())["sentences"]
        self.text = write_lines(folder / "text", [" ".join(words) for words in self.sentences])
        with np.load(fixture / "expected.npz") as file:
            self.expected = dict(file)

    def losses(self, direction: str) -> np.ndarray:
        """The stored losses of all sentences by themselves."""
        parts = [self.expected[f"sent{place}.{direction}.losses"] for place in range(len(self.sentences))]
        return np.concatenate(parts).astype(np.float64)


@pytest.fixture(scope="module", params=ORIGINALS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(request.param, tmp_path_factory.mktemp(request.param))


def stored_streams(expected: dict[str, Any]) -> dict[int, tuple[str, str, float]]:
    """Rows of the stored streams -> the keys of their losses (`{}` is the direction), and their perplexity."""
    if "stream.perplexity" in expected:
        rows = expected["stream.losses_forward"].shape[1]
        return {rows: ("stream.losses_{}", "stream.target_ids_{}", float(expected["stream.perplexity"]))}
    return {
        rows: (
            f"test.batch_size{rows}.{{}}_losses_per_row",
            f"test.batch_size{rows}.{{}}_targets",
            float(expected[f"test.batch_size{rows}.perplexity"]),
        )
        for rows in (1, 3)
    }


def test_sentences_have_the_perplexity_of_the_original(original: Original) -> None:
    forward, backward = original.losses("forward"), original.losses("backward")
    for batch_size in (None, 1, 3):
        report = perplexity(original.model, original.tokenizer, Corpus(original.text), batch_size=batch_size)
        assert_relative(report.forward, math.exp(forward.mean()), 1e-4, 1)
        assert_relative(report.backward, math.exp(backward.mean()), 1e-4, 1)
        assert_relative(report.average, math.exp((forward.mean() + backward.mean()) / 2), 1e-4, 1)
        assert report.tokens == len(forward) == len(backward)
        unknown = sum(
            int((original.expected[f"sent{place}.forward.target_ids"] == 2).sum())
            for place in range(len(original.sentences))
        )
        assert report.unknown == unknown > 0
        assert report.protocol == "sentence"


def test_streams_have_the_perplexity_of_the_original(original: Original) -> None:
    for rows, (losses, targets, expected) in stored_streams(original.expected).items():
        report = perplexity(original.model, original.tokenizer, Corpus(original.text), "stream", rows)
        assert_relative(report.average, expected, 1e-4, 1)
        for direction in ("forward", "backward"):
            own = math.exp(original.expected[losses.format(direction)].astype(np.float64).mean())
            assert_relative(getattr(report, direction), own, 1e-4, 1)
        assert report.tokens == original.expected[targets.format("forward")].size
        assert report.unknown == int((original.expected[targets.format("forward")] == 2).sum())
        assert (report.protocol, report.batch_size) == ("stream", rows)


def test_streams_have_the_losses_and_states_of_the_original_word_for_word(original: Original) -> None:
    for rows, (losses, targets, _) in stored_streams(original.expected).items():
        (batch,) = merged(StreamBatches(Corpus(original.text), original.tokenizer, rows, 1))
        with torch.inference_mode():
            output = original.model(**batch, reduction="none")
        for direction in ("forward", "backward"):
            labels = batch[f"{direction}_labels"].T
            assert np.array_equal(labels, original.expected[targets.format(direction)])
            ours = getattr(output, f"{direction}_loss").T
            assert_close(ours, original.expected[losses.format(direction)], what=f"{direction} losses")
            if "stream.final_state.forward.layer0.h" in original.expected:
                half = 0 if direction == "forward" else 1
                for name, states in zip("hc", output.states, strict=True):
                    for layer, values in enumerate(states):
                        key = f"stream.final_state.{direction}.layer{layer}.{name}"
                        assert_close(values.chunk(2, dim=-1)[half], original.expected[key], what=key)


def test_a_sentence_has_the_losses_of_the_original_word_for_word(original: Original) -> None:
    for place, words in enumerate(original.sentences):
        encoded = original.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        inputs = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
        with torch.inference_mode():
            output = original.model(**inputs, labels=encoded["word_input_ids"] - 1, reduction="none")
        expected = {d: original.expected[f"sent{place}.{d}.losses"] for d in ("forward", "backward")}
        assert_close(output.forward_loss[0, :-1], expected["forward"])
        assert_close(output.backward_loss[0, 1:].flip(0), expected["backward"])


def test_words_are_read_at_once_as_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer, corpus = tiny_language_model(), tiny_tokenizer(), Corpus(write_lines(tmp_path / "text"))
    at_once = perplexity(model, tokenizer, corpus, "stream", 2)
    monkeypatch.setattr("hf_elmo.pretraining.perplexity.WORDS_AT_A_TIME", 1)
    one_by_one = perplexity(model, tokenizer, corpus, "stream", 2)
    assert_relative(one_by_one.average, at_once.average, 1e-5, 1)
    assert one_by_one.tokens == at_once.tokens


def test_a_uniform_model_is_as_perplexed_as_it_has_words(tmp_path: Path) -> None:
    model = tiny_language_model()
    model.softmax.weight.data.zero_()
    model.softmax.bias.data.zero_()
    for protocol in ("sentence", "stream"):
        report = perplexity(model, tiny_tokenizer(), Corpus(write_lines(tmp_path / "text")), protocol, 2)
        for value in (report.forward, report.backward, report.average):
            assert_relative(value, len(tiny_vocabulary()), 1e-5, 1)


def test_streams_to_the_end_count_every_word_and_otherwise_not(tmp_path: Path) -> None:
    model, tokenizer, corpus = tiny_language_model(), tiny_tokenizer(), Corpus(write_lines(tmp_path / "text"))
    every = sum(len(sentence) + 1 for sentence in SENTENCES)
    kept = perplexity(model, tokenizer, corpus, "stream", 4, keep_incomplete=True)
    assert kept.tokens == every
    assert kept.unknown == 2
    assert perplexity(model, tokenizer, corpus, "stream", 4).tokens < every
    assert perplexity(model, tokenizer, corpus, "stream", 1).tokens == every


def test_one_stream_to_the_end_carries_its_states(tmp_path: Path) -> None:
    model, tokenizer, corpus = tiny_language_model(), tiny_tokenizer(), Corpus(write_lines(tmp_path / "text"))
    carried = perplexity(model, tokenizer, corpus, "stream", 1)
    alone = perplexity(model, tokenizer, corpus)
    assert carried.tokens == alone.tokens
    assert_far(math.log(carried.average), math.log(alone.average), 1e-3)


@pytest.mark.parametrize("protocol", ["sentence", "stream"])
def test_the_full_softmax_counts_and_training_goes_on_as_before(tmp_path: Path, protocol: str) -> None:
    corpus = Corpus(write_lines(tmp_path / "text"))
    expected = perplexity(tiny_language_model(), tiny_tokenizer(), corpus, protocol, 2)
    model = tiny_language_model(num_sampled_words=3, bilm_dropout=0.5).train()
    assert perplexity(model, tiny_tokenizer(), corpus, protocol, 2) == expected
    assert model.training


def test_measuring_again_gives_the_same(tmp_path: Path) -> None:
    corpus = Corpus(write_lines(tmp_path / "text"))
    reports = [perplexity(tiny_language_model(), tiny_tokenizer(), corpus, "stream", 2) for _ in range(2)]
    assert reports[0] == reports[1]


def test_a_perplexity_too_large_to_write_is_infinite(tmp_path: Path) -> None:
    model = tiny_language_model()
    model.softmax.bias.data[3] = 1e5
    report = perplexity(model, tiny_tokenizer(), Corpus(write_lines(tmp_path / "text")))
    assert report.average == math.inf


def test_what_cannot_be_measured_is_told(tmp_path: Path) -> None:
    model, tokenizer, corpus = tiny_language_model(), tiny_tokenizer(), Corpus(write_lines(tmp_path / "text"))
    with pytest.raises(ValueError, match="protocol must be one of sentence, stream, but is 'words'"):
        perplexity(model, tokenizer, corpus, "words")
    with pytest.raises(ValueError, match="no word vocabulary"):
        perplexity(model, ElmoTokenizer(), corpus)
    with pytest.raises(ValueError, match="fewer sentences than the 50 parallel streams"):
        perplexity(model, tokenizer, corpus, "stream", 50)
    other = ElmoTokenizer(word_vocabulary=write_lines(tmp_path / "vocab.txt", ["<S>", "</S>", "<UNK>", "a"]))
    with pytest.raises(ValueError, match=r"has 4 words, but the model's softmax has \d+ \(word_vocab_size\)"):
        perplexity(model, other, corpus)


def test_the_command_prints_json(original: Original) -> None:
    arguments = ("perplexity", original.folder, original.text, "--json")
    printed = json.loads(assert_succeeds(*arguments))
    assert {"forward", "backward", "average", "tokens", "unknown", "protocol"} <= printed.keys()
    assert printed["protocol"] == "sentence"
    assert PerplexityReport(**printed) == perplexity(original.model, original.tokenizer, Corpus(original.text))
    rows, (_, _, expected) = list(stored_streams(original.expected).items())[-1]
    printed = json.loads(assert_succeeds(*arguments, "--protocol", "stream", "--batch-size", rows))
    assert_relative(printed["average"], expected, 1e-4, 1)
    assert (printed["protocol"], printed["batch_size"]) == ("stream", rows)


def test_the_command_prints_for_people(tmp_path: Path) -> None:
    folder, text = save_language_model(tmp_path / "model"), write_lines(tmp_path / "text")
    printed = assert_succeeds("perplexity", folder, text, text, "--protocol", "stream", "--batch-size", 3)
    assert "protocol stream, 3 streams, full softmax" in printed
    for word in ("forward", "backward", "average", "unknown"):
        assert word in printed
    every = 2 * sum(len(sentence) + 1 for sentence in SENTENCES)
    printed = assert_succeeds("perplexity", folder, text, text, "--protocol", "stream", "--to-the-end")
    assert f"{every} words and ends of sentences, 4 of them unknown" in printed


def test_the_command_splits_words_as_the_model_or_as_asked(tmp_path: Path) -> None:
    folder, text = save_language_model(tmp_path / "model"), write_lines(tmp_path / "text", ["the cat, the dog."])
    tokens = {
        option: json.loads(assert_succeeds("perplexity", folder, text, "--json", *option))["tokens"]
        for option in ((), ("--word-splitter", "treebank"))
    }
    assert tokens == {(): 5, ("--word-splitter", "treebank"): 7}


def test_the_command_tells_what_is_wrong(tmp_path: Path) -> None:
    folder, text = save_language_model(tmp_path / "model"), write_lines(tmp_path / "text")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
    for message, arguments in (
        ("There is no file", (folder, tmp_path / "missing")),
        ("empty holds no sentence", (folder, tmp_path / "empty")),
        ("binary, line 1, is no text in UTF-8", (folder, tmp_path / "binary")),
        ("--protocol must be one of sentence, stream", (folder, text, "--protocol", "both")),
        ("--to-the-end is for --protocol stream", (folder, text, "--to-the-end")),
        ("fewer sentences than the 256 parallel streams", (folder, text, "--protocol", "stream")),
        ("batch_size is 0", (folder, text, "--batch-size", 0)),
        ("There is no device abacus", (folder, text, "--device", "abacus")),
        ("word_splitter 'klingon' is unknown", (folder, text, "--word-splitter", "klingon")),
    ):
        assert_one_message(message, "perplexity", *arguments)


@pytest.mark.parametrize("command", ["perplexity", "predict"])
def test_a_folder_that_holds_no_language_model_is_told(tmp_path: Path, command: str) -> None:
    text = write_lines(tmp_path / "text")

    def refused(folder: Path, message: str) -> None:
        assert_one_message(message, command, folder, text if command == "perplexity" else "the cat")

    whole = save_language_model(tmp_path / "whole")
    without_vocabulary = save_language_model(tmp_path / "without-vocabulary")
    (without_vocabulary / "vocab.txt").unlink()
    refused(without_vocabulary, "no word vocabulary (vocab.txt)")
    other_vocabulary = save_language_model(tmp_path / "other-vocabulary")
    write_lines(other_vocabulary / "vocab.txt", [*tiny_vocabulary(), "more"])
    refused(other_vocabulary, f"has {len(tiny_vocabulary()) + 1} words, but the model's softmax has")
    no_vocabulary = save_language_model(tmp_path / "no-vocabulary")
    (no_vocabulary / "vocab.txt").write_bytes(b"\xff\xfe\x00")
    refused(no_vocabulary, "vocab.txt cannot be used")
    without_softmax = tmp_path / "without-softmax"
    ElmoModel(ElmoConfig.from_pretrained(whole)).save_pretrained(without_softmax)
    tiny_tokenizer().save_pretrained(without_softmax)
    refused(without_softmax, "holds no softmax over words")
    config = ElmoConfig.from_pretrained(whole)
    config.word_vocab_size = None
    never_one = tmp_path / "never-one"
    ElmoModel(config).save_pretrained(never_one)
    tiny_tokenizer().save_pretrained(never_one)
    refused(never_one, "holds no softmax over words")
    another = tmp_path / "another"
    another.mkdir()
    (another / "config.json").write_text('{"model_type": "bert"}')
    refused(another, "holds a model of type bert, not elmo")
    refused(tmp_path / "nowhere", "nowhere")


def test_a_loaded_model_is_the_saved_one(tmp_path: Path) -> None:
    saved = tiny_language_model()
    model, tokenizer = load_language_model(save_language_model(tmp_path / "model"))
    assert isinstance(model, ElmoForPreTraining)
    assert not model.training
    assert tokenizer.word_vocabulary == tiny_tokenizer().word_vocabulary
    for name, values in saved.state_dict().items():
        assert torch.equal(values, model.state_dict()[name]), name
