"""The stream protocol: the same words in the same places as in the originals, and positions that are exact."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_elmo import ElmoTokenizer
from hf_elmo.modeling_elmo import NO_LABEL
from hf_elmo.pretraining.corpus import Corpus
from hf_elmo.pretraining.streams import StreamBatches
from hf_elmo.pretraining.word_rows import WordRows
from tests.assertions import assert_identical
from tests.language_models import SENTENCES, flow, tiny_tokenizer, write_lines

KEYS = ("input_ids", "forward_labels", "backward_input_ids", "backward_labels")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(write_lines(tmp_path / "text"))


def assert_same_batches(actual: Any, expected: Any) -> None:
    """Checks that two runs of batches are identical."""
    ours, theirs = list(actual), list(expected)
    assert len(ours) == len(theirs)
    for place, (batch, other) in enumerate(zip(ours, theirs, strict=True)):
        for key in KEYS:
            assert_identical(batch[key], other[key], f"{key} of batch {place}")


def expected_batch(batch: list[list[tuple[str, ...]]], tokenizer: ElmoTokenizer) -> dict[str, torch.Tensor]:
    """A batch of `flow` with the ids that the tokenizer gives."""
    found = {}
    for part, key in enumerate(KEYS):
        rows = [[step[part] for step in row] for row in batch]
        ids = tokenizer(rows, is_split_into_words=True, add_special_tokens=False, return_tensors="pt")
        found[key] = ids["word_input_ids"] - 1 if "labels" in key else ids["input_ids"]
    return found


@pytest.mark.parametrize(("rows", "steps"), [(1, 1), (3, 1), (1, 7), (4, 5), (2, 20), (5, 3)])
def test_words_flow_as_in_the_originals(corpus: Corpus, rows: int, steps: int) -> None:
    tokenizer = tiny_tokenizer()
    expected = [expected_batch(batch, tokenizer) for batch in flow(SENTENCES, rows, steps)]
    assert expected
    batches = StreamBatches(corpus, tokenizer, rows, steps)
    assert batches.count() == len(expected)
    assert_same_batches(batches, expected)


def test_fewer_sentences_than_rows_give_nothing(corpus: Corpus) -> None:
    batches = StreamBatches(corpus, tiny_tokenizer(), len(SENTENCES) + 1, 2)
    assert batches.count() == 0
    assert list(batches) == []


@pytest.mark.parametrize(("rows", "steps"), [(3, 4), (len(SENTENCES) + 2, 5)])
def test_kept_to_the_end_no_word_is_lost_or_counted_twice(corpus: Corpus, rows: int, steps: int) -> None:
    tokenizer = tiny_tokenizer()
    batches = StreamBatches(corpus, tokenizer, rows, steps, keep_incomplete=True)
    count = batches.count()
    given = list(batches)
    assert len(given) == count
    assert_same_batches(
        given[: len(list(flow(SENTENCES, rows, steps)))], StreamBatches(corpus, tokenizer, rows, steps)
    )
    for key in ("forward_labels", "backward_labels"):
        labels = torch.cat([batch[key] for batch in given], dim=1)
        assert int((labels != NO_LABEL).sum()) == sum(len(sentence) + 1 for sentence in SENTENCES)
        padding = torch.cat([batch[key.replace("labels", "input_ids").removeprefix("forward_")] for batch in given], 1)
        assert_identical(padding.any(dim=-1), labels != NO_LABEL)
        ends = (labels == NO_LABEL).long()
        assert bool((ends.diff(dim=1) >= 0).all()), "a row goes on after its padding"


@pytest.mark.parametrize("seed", [None, 3])
def test_a_position_is_exact(corpus: Corpus, seed: int | None) -> None:
    options: dict[str, Any] = {"batch_size": 3, "unroll_steps": 4, "epochs": 3, "seed": seed}
    whole = list(StreamBatches(corpus, tiny_tokenizer(), **options))
    for taken in range(len(whole) + 1):
        first = StreamBatches(corpus, tiny_tokenizer(), **options)
        assert_same_batches(islice(first, taken), whole[:taken])
        position = json.loads(json.dumps(first.state_dict()))
        second = StreamBatches(corpus, tiny_tokenizer(), **options)
        second.load_state_dict(position)
        assert_same_batches(second, whole[taken:])


def test_an_iteration_goes_on_where_the_last_one_stopped(corpus: Corpus) -> None:
    batches = StreamBatches(corpus, tiny_tokenizer(), 2, 3)
    parts = [*islice(batches, 4), *islice(batches, 2), *batches]
    assert_same_batches(parts, StreamBatches(corpus, tiny_tokenizer(), 2, 3))


def test_each_epoch_has_its_own_order(corpus: Corpus) -> None:
    batches = StreamBatches(corpus, tiny_tokenizer(), 2, 3, seed=1)
    first, second = list(batches), list(batches)
    assert any(
        not torch.equal(one["input_ids"], other["input_ids"]) for one, other in zip(first, second, strict=False)
    )
    again = StreamBatches(corpus, tiny_tokenizer(), 2, 3, seed=1)
    again.set_epoch(1)
    assert_same_batches(again, second)


def test_epochs_follow_without_a_break(corpus: Corpus, tmp_path: Path) -> None:
    doubled = Corpus([write_lines(tmp_path / "a"), write_lines(tmp_path / "b")])
    expected = list(StreamBatches(doubled, tiny_tokenizer(), 3, 4))
    batches = StreamBatches(corpus, tiny_tokenizer(), 3, 4, epochs=2)
    assert batches.count() == len(expected)
    assert_same_batches(batches, expected)
    endless = StreamBatches(corpus, tiny_tokenizer(), 3, 4, epochs=None)
    assert endless.count(2) == len(expected)
    assert_same_batches(islice(endless, len(expected)), expected)
    assert len(list(islice(endless, 100))) == 100


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_together_have_the_rows_of_one(corpus: Corpus, processes: int) -> None:
    whole = list(StreamBatches(corpus, tiny_tokenizer(), 6, 3, seed=2))
    shares = [
        StreamBatches(
            corpus, tiny_tokenizer(), 6 // processes, 3, seed=2, process_index=index, process_count=processes
        )
        for index in range(processes)
    ]
    joined = [
        {key: torch.cat([part[key] for part in parts]) for key in KEYS}
        for parts in zip(*map(list, shares), strict=True)
    ]
    assert_same_batches(joined, whole)


def test_a_position_is_the_same_in_every_process_and_serves_another_number_of_them(corpus: Corpus) -> None:
    shares = [
        StreamBatches(corpus, tiny_tokenizer(), 2, 3, process_index=index, process_count=2) for index in range(2)
    ]
    for share in shares:
        list(islice(share, 3))
    assert shares[0].state_dict() == shares[1].state_dict()
    alone = StreamBatches(corpus, tiny_tokenizer(), 4, 3)
    list(islice(alone, 3))
    assert alone.state_dict() == shares[0].state_dict()
    with pytest.raises(ValueError, match=r"4 rows, but the batch has 3 \(3 in each of 1 processes\)"):
        StreamBatches(corpus, tiny_tokenizer(), 3, 3).load_state_dict(alone.state_dict())


def test_a_small_memory_of_words_changes_nothing(corpus: Corpus) -> None:
    expected = list(StreamBatches(corpus, tiny_tokenizer(), 2, 6))
    assert_same_batches(StreamBatches(corpus, tiny_tokenizer(), 2, 6, max_cached_words=4), expected)
    lookup = WordRows(tiny_tokenizer(), max_words=20)
    for sentence in SENTENCES * 2:
        lookup.slots([word + "x" * place for place, word in enumerate(sentence)])
        assert len(lookup._rows) <= 20


def test_words_get_the_rows_and_numbers_of_the_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    words = ["the", "unheard-of", "", "<S>", "x" * 60, "<UNK>", "the"]
    expected = tokenizer([words], is_split_into_words=True, add_special_tokens=False, return_tensors="np")
    lookup = WordRows(tokenizer)
    slots = lookup.slots([*words, None])
    assert_identical(lookup.rows(slots)[:-1], expected["input_ids"][0])
    assert_identical(lookup.numbers(slots)[:-1], expected["word_input_ids"][0] - 1)
    assert not lookup.rows(slots)[-1].any()
    assert lookup.numbers(slots)[-1] == NO_LABEL
    assert lookup.rows(slots).dtype == lookup.numbers(slots).dtype == np.int64


def test_streams_that_cannot_flow_are_told(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match=r"The tokenizer has no word vocabulary \(vocab.txt\)"):
        StreamBatches(corpus, ElmoTokenizer(), 2)
    with pytest.raises(ValueError, match="bos_token and eos_token are None"):
        StreamBatches(corpus, tiny_tokenizer(bos_token=None), 2)
    with pytest.raises(ValueError, match="batch_size is 0"):
        StreamBatches(corpus, tiny_tokenizer(), 0)
    with pytest.raises(ValueError, match="unroll_steps is -1"):
        StreamBatches(corpus, tiny_tokenizer(), 2, -1)
    with pytest.raises(ValueError, match="no process 2 of 2"):
        StreamBatches(corpus, tiny_tokenizer(), 2, process_index=2, process_count=2)
    with pytest.raises(ValueError, match="without end cannot be counted"):
        StreamBatches(corpus, tiny_tokenizer(), 2, epochs=None).count()
