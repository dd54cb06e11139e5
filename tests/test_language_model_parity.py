"""Converted training checkpoints as language models, against the stored outputs of bilm-tf and DeepPavlov.

Both fixtures, both ways to read (whole sentences; streams, one step a call or several), every array: what the model
computes through `ElmoForPreTraining` and through the tokenizer alone. Losses and states agree to 5e-5, perplexities to
1e-4 of their value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForPreTraining, AutoTokenizer

from hf_elmo.conversion import convert_checkpoint
from tests.assertions import PARITY_TOLERANCE, assert_close, assert_identical, assert_relative
from tests.original_checkpoints import TENSORFLOW
from tests.reference import Array
from tests.shared_files import fixture_path

NAMES = ("bilm_tf_lm", "deeppavlov_lm_ru")
DIRECTIONS = ("forward", "backward")
PERPLEXITY_TOLERANCE = 1e-4
NONE = -100


@dataclass
class LanguageModel:
    """A converted training checkpoint, and what the original computed."""

    model: Any
    tokenizer: Any
    sentences: list[list[str]]
    settings: dict[str, Any]
    expected: dict[str, Array]

    def read(self, sentences: list[list[str]]) -> dict[str, torch.Tensor]:
        """A batch of whole sentences with the numbers of their words as labels."""
        batch = dict(self.tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt"))
        batch["labels"] = batch.pop("word_input_ids") - 1
        return batch


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LanguageModel]:
    """Converts a fixture and loads it as a user would, once."""

    @cache
    def convert(name: str) -> LanguageModel:
        folder = tmp_path_factory.mktemp(name) / "converted"
        convert_checkpoint(fixture_path(name) / TENSORFLOW[name], folder)
        settings = json.loads(fixture_path(name, "sentences.json").read_text())
        with np.load(fixture_path(name, "expected.npz")) as file:
            expected = dict(file)
        model = AutoModelForPreTraining.from_pretrained(folder).eval()
        return LanguageModel(model, AutoTokenizer.from_pretrained(folder), settings["sentences"], settings, expected)

    return convert


@pytest.fixture(params=NAMES)
def lm(request: pytest.FixtureRequest, load: Callable[[str], LanguageModel]) -> LanguageModel:
    return load(request.param)


def run(model: Any, batch: dict[str, torch.Tensor], **arguments: Any) -> Any:
    with torch.inference_mode():
        return model(**batch, reduction="none", **arguments)


@pytest.mark.parametrize("together", [False, True], ids=["one at a time", "in one batch"])
def test_sentences(lm: LanguageModel, together: bool) -> None:
    """Character ids, targets, log-probabilities and losses of every sentence, read from a zero state."""
    compared = set()
    batches = [lm.sentences] if together else [[sentence] for sentence in lm.sentences]
    number = 0
    for sentences in batches:
        batch = lm.read(sentences)
        output = run(lm.model, batch, output_logits=True)
        for row, sentence in enumerate(sentences):
            length = len(sentence) + 2
            for direction in DIRECTIONS:
                key = f"sent{number}.{direction}"
                # Where a direction predicts, in the order of its walk, and how far off its target is.
                step = 1 if direction == "forward" else -1
                places = torch.arange(length)[:-1] if step == 1 else torch.arange(length).flip(0)[:-1]
                logits = output[f"{direction}_logits"][row, places]
                ours = {
                    "char_ids": batch["input_ids"][row, places] - 1,
                    "log_probs": logits.log_softmax(dim=-1),
                    "losses": output[f"{direction}_loss"][row, places],
                    "target_ids": batch["labels"][row, places + step],
                    "input_token_ids": batch["labels"][row, places],
                }
                for name, values in ours.items():
                    if f"{key}.{name}" in lm.expected:
                        compare(f"{key}.{name}", values, lm.expected)
                        compared.add(f"{key}.{name}")
            number += 1
    assert compared == {key for key in lm.expected if key.startswith("sent")}


def compare(key: str, ours: Any, expected: dict[str, Array]) -> None:
    """Asserts that an array is the stored one: numbers exactly, floats to the tolerance."""
    if expected[key].dtype.kind == "f":
        assert_close(ours, expected[key], PARITY_TOLERANCE, key)
    else:
        assert_identical(ours, expected[key], key)


def stream_of(lm: LanguageModel, rows: int) -> dict[str, torch.Tensor]:
    """The sentences in parallel streams, shapes (rows, steps, ...), filled as bilm-tf fills them.

    A row takes the next unread sentence when its own is used up; the run stops at the step for which none is left.
    """
    read = []
    for sentence in lm.sentences:
        batch = {name: value[0] for name, value in lm.read([sentence]).items()}
        ids, words = batch["input_ids"], batch["labels"]
        read.append((ids[:-1], ids.flip(0)[:-1], words[1:], words.flip(0)[1:]))
    names = ("input_ids", "backward_input_ids", "forward_labels", "backward_labels")
    streams: list[list[tuple[torch.Tensor, ...]]] = [[] for _ in range(rows)]
    waiting = iter(read)
    left: list[list[tuple[torch.Tensor, ...]]] = [[] for _ in range(rows)]
    while True:
        for row in range(rows):
            if not left[row]:
                sentence = next(waiting, None)
                if sentence is None:
                    steps = min(len(stream) for stream in streams)
                    stacked = [[torch.stack(part) for part in zip(*stream[:steps], strict=True)] for stream in streams]
                    return {
                        name: torch.stack(parts) for name, parts in zip(names, zip(*stacked, strict=True), strict=True)
                    }
                left[row] = list(zip(*sentence, strict=True))
            streams[row].append(left[row].pop(0))


def run_stream(lm: LanguageModel, stream: dict[str, torch.Tensor], unroll: int) -> tuple[dict[str, Array], Any]:
    """Losses (steps, rows) of both directions and the states at the end, `unroll` steps a call."""
    states = None
    losses: dict[str, list[torch.Tensor]] = {direction: [] for direction in DIRECTIONS}
    for start in range(0, stream["input_ids"].shape[1], unroll):
        part = {name: value[:, start : start + unroll] for name, value in stream.items()}
        output = run(lm.model, part, states=states)
        states = output.states
        for direction in DIRECTIONS:
            losses[direction].append(output[f"{direction}_loss"])
    return {direction: torch.cat(parts, dim=1).T.numpy() for direction, parts in losses.items()}, states


@pytest.mark.parametrize("unroll", [1, 5, 1000])
def test_streams_of_deeppavlov(load: Callable[[str], LanguageModel], unroll: int) -> None:
    lm = load("deeppavlov_lm_ru")
    stream = stream_of(lm, lm.settings["stream_batch_size"])
    losses, (hidden, cell) = run_stream(lm, stream, unroll)
    ours: dict[str, Any] = {}
    for index, direction in enumerate(DIRECTIONS):
        ids = stream["input_ids" if direction == "forward" else "backward_input_ids"]
        ours[f"stream.char_ids_{direction}"] = ids.transpose(0, 1) - 1
        ours[f"stream.target_ids_{direction}"] = stream[f"{direction}_labels"].T
        ours[f"stream.losses_{direction}"] = losses[direction]
        for layer in range(len(hidden)):
            key = f"stream.final_state.{direction}.layer{layer}"
            ours[f"{key}.h"] = hidden[layer].chunk(2, dim=-1)[index]
            ours[f"{key}.c"] = cell[layer].chunk(2, dim=-1)[index]
    for key, values in ours.items():
        compare(key, values, lm.expected)
    perplexity = float(np.exp((losses["forward"].mean() + losses["backward"].mean()) / 2))
    assert_relative(perplexity, float(lm.expected["stream.perplexity"]), PERPLEXITY_TOLERANCE, 1.0)
    assert {*ours, "stream.perplexity"} == {key for key in lm.expected if key.startswith("stream")}


@pytest.mark.parametrize("unroll", [1, 5, 1000])
@pytest.mark.parametrize("rows", [1, 3])
def test_streams_of_bilm_tf(load: Callable[[str], LanguageModel], rows: int, unroll: int) -> None:
    lm = load("bilm_tf_lm")
    stream = stream_of(lm, rows)
    losses, _ = run_stream(lm, stream, unroll)
    key = f"test.batch_size{rows}"
    ours = {f"{key}.{direction}_losses_per_row": losses[direction] for direction in DIRECTIONS}
    ours |= {f"{key}.{direction}_targets": stream[f"{direction}_labels"].T for direction in DIRECTIONS}
    means = {direction: losses[direction].mean(axis=1) for direction in DIRECTIONS}
    ours |= {f"{key}.{direction}_losses": means[direction] for direction in DIRECTIONS}
    ours[f"{key}.total_losses"] = (means["forward"] + means["backward"]) / 2
    for name, values in ours.items():
        compare(name, values, lm.expected)
    perplexity = float(np.exp(ours[f"{key}.total_losses"].mean()))
    assert_relative(perplexity, float(lm.expected[f"{key}.perplexity"]), PERPLEXITY_TOLERANCE, 1.0)
    assert {*ours, f"{key}.perplexity"} == {name for name in lm.expected if name.startswith(key)}


def test_every_array_of_the_fixtures_is_in_one_of_these_tests(lm: LanguageModel) -> None:
    rows = lm.settings.get("test_batch_sizes", [])
    assert set(rows) <= {1, 3}
    prefixes = ("sent", "stream.", *(f"test.batch_size{count}." for count in rows))
    assert [key for key in lm.expected if not key.startswith(prefixes)] == []


def test_a_loss_is_the_mean_of_the_stored_ones(lm: LanguageModel) -> None:
    with torch.inference_mode():
        output = lm.model(**lm.read(lm.sentences))
    for direction in DIRECTIONS:
        stored = [lm.expected[f"sent{index}.{direction}.losses"] for index in range(len(lm.sentences))]
        assert_close(output[f"{direction}_loss"], np.concatenate(stored).mean(), PARITY_TOLERANCE)


def test_words_outside_the_vocabulary_have_the_number_2(lm: LanguageModel) -> None:
    """As DeepPavlov takes it from its own list of special words, and bilm-tf from the place of `<UNK>`."""
    known = set(lm.tokenizer.word_vocabulary.words)
    unknown = [word for sentence in lm.sentences for word in sentence if word not in known]
    assert unknown
    labels = lm.read([unknown])["labels"][0, 1:-1]
    assert labels.tolist() == [2] * len(unknown)
    stored = np.concatenate([lm.expected[f"sent{index}.forward.target_ids"] for index in range(len(lm.sentences))])
    assert (stored == 2).sum() == len(unknown)


def test_the_settings_of_training_are_taken_over(lm: LanguageModel) -> None:
    assert lm.model.config.bilm_dropout == 0.1
    assert lm.model.config.word_vocab_size == len(lm.tokenizer.word_vocabulary) == len(lm.model.softmax.weight)
