"""The sentence protocol: whole sentences of like length, none lost, positions that are exact."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_elmo import ElmoTokenizer
from hf_elmo.modeling_elmo import NO_LABEL
from hf_elmo.pretraining import sentences as module
from hf_elmo.pretraining.corpus import Corpus
from hf_elmo.pretraining.sentences import SentenceBatches
from tests.assertions import assert_identical
from tests.language_models import SENTENCES, tiny_tokenizer, write_lines

KEYS = ("input_ids", "attention_mask", "labels")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(write_lines(tmp_path / "text"))


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of four sentences."""
    monkeypatch.setattr(module, "WINDOW", 4)


def assert_same_batches(actual: Any, expected: Any) -> None:
    """Checks that two runs of batches are identical."""
    ours, theirs = list(actual), list(expected)
    assert len(ours) == len(theirs)
    for place, (batch, other) in enumerate(zip(ours, theirs, strict=True)):
        for key in KEYS:
            assert_identical(batch[key], other[key], f"{key} of batch {place}")


def counted(batches: Any) -> Counter[bytes]:
    """How often each sentence is among batches, by its rows of characters."""
    found: Counter[bytes] = Counter()
    for batch in batches:
        for ids, mask, labels in zip(*(batch[key] for key in KEYS), strict=True):
            if bool((labels != NO_LABEL).any()):
                found[ids[mask == 1].numpy().tobytes()] += 1
    return found


def test_a_batch_is_what_the_tokenizer_gives(corpus: Corpus) -> None:
    (batch,) = SentenceBatches(corpus, tiny_tokenizer(), len(SENTENCES))
    ordered = sorted(SENTENCES, key=len)
    expected = tiny_tokenizer()(ordered, is_split_into_words=True, padding=True, return_tensors="pt")
    assert_identical(batch["input_ids"], expected["input_ids"])
    assert_identical(batch["attention_mask"], expected["attention_mask"])
    labels = (expected["word_input_ids"] - 1).masked_fill(expected["attention_mask"] == 0, NO_LABEL)
    assert_identical(batch["labels"], labels)


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("limit", [{"batch_size": 3}, {"max_words": 30}, {"batch_size": 2, "max_words": 20}])
@pytest.mark.usefixtures("small_windows")
def test_every_sentence_comes_once(corpus: Corpus, limit: dict[str, int], seed: int | None) -> None:
    batches = SentenceBatches(corpus, tiny_tokenizer(), **limit, seed=seed)
    count = batches.count()
    given = list(batches)
    assert len(given) == count
    whole = counted(SentenceBatches(corpus, tiny_tokenizer(), 1))
    assert sum(whole.values()) == len(SENTENCES)
    assert counted(given) == whole
    assert all(len(batch["labels"]) <= limit.get("batch_size", 99) for batch in given)
    assert all(batch["labels"].numel() <= limit.get("max_words", 999) or len(batch["labels"]) == 1 for batch in given)


def test_sentences_of_like_length_are_together(corpus: Corpus) -> None:
    padded = sum(batch["labels"].numel() for batch in SentenceBatches(corpus, tiny_tokenizer(), 3))
    words = sum(len(sentence) + 2 for sentence in SENTENCES)
    assert padded < 1.2 * words


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.usefixtures("small_windows")
def test_a_position_is_exact(corpus: Corpus, seed: int | None) -> None:
    options: dict[str, Any] = {"batch_size": 2, "epochs": 2, "seed": seed}
    whole = list(SentenceBatches(corpus, tiny_tokenizer(), **options))
    assert len(whole) == 12
    for taken in range(len(whole) + 1):
        first = SentenceBatches(corpus, tiny_tokenizer(), **options)
        assert_same_batches(islice(first, taken), whole[:taken])
        position = json.loads(json.dumps(first.state_dict()))
        second = SentenceBatches(corpus, tiny_tokenizer(), **options)
        second.load_state_dict(position)
        assert_same_batches(second, whole[taken:])


@pytest.mark.usefixtures("small_windows")
def test_each_epoch_has_its_own_order(corpus: Corpus) -> None:
    batches = SentenceBatches(corpus, tiny_tokenizer(), 2, seed=1)
    first, second = list(batches), list(batches)
    assert counted(first) == counted(second)
    assert [batch["labels"].tolist() for batch in first] != [batch["labels"].tolist() for batch in second]
    endless = SentenceBatches(corpus, tiny_tokenizer(), 2, seed=1, epochs=None)
    assert_same_batches(islice(endless, len(first) + len(second)), [*first, *second])


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.usefixtures("small_windows")
def test_processes_together_have_the_batches_of_one(corpus: Corpus, processes: int) -> None:
    whole = list(SentenceBatches(corpus, tiny_tokenizer(), 6, seed=2))
    shares = [
        list(
            SentenceBatches(
                corpus, tiny_tokenizer(), 6 // processes, seed=2, process_index=index, process_count=processes
            )
        )
        for index in range(processes)
    ]
    assert {len(share) for share in shares} == {len(whole)}
    for parts in zip(whole, *shares, strict=True):
        assert counted(parts[1:]) == counted(parts[:1])


def test_a_process_without_a_sentence_takes_part_with_one_that_does_not_count(tmp_path: Path) -> None:
    corpus = Corpus(write_lines(tmp_path / "text", ["the cat sat"]))
    shares = [
        list(SentenceBatches(corpus, tiny_tokenizer(), 2, process_index=index, process_count=2)) for index in range(2)
    ]
    assert [len(share) for share in shares] == [1, 1]
    assert bool((shares[0][0]["labels"] != NO_LABEL).all())
    assert bool((shares[1][0]["labels"] == NO_LABEL).all())
    assert shares[1][0]["input_ids"].shape == shares[0][0]["input_ids"].shape


def test_ids_are_whole_numbers_for_the_model(corpus: Corpus) -> None:
    for batch in SentenceBatches(corpus, tiny_tokenizer(), 2):
        assert {batch[key].dtype for key in KEYS} == {torch.int64}


def test_batches_that_cannot_be_made_are_told(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="Give batch_size or max_words"):
        SentenceBatches(corpus, tiny_tokenizer())
    with pytest.raises(ValueError, match="max_words is 0"):
        SentenceBatches(corpus, tiny_tokenizer(), max_words=0)
    with pytest.raises(ValueError, match=r"The tokenizer has no word vocabulary \(vocab.txt\)"):
        SentenceBatches(corpus, ElmoTokenizer(), 2)
    with pytest.raises(ValueError, match="no process -1 of 1"):
        SentenceBatches(corpus, tiny_tokenizer(), 2, process_index=-1)


@pytest.mark.usefixtures("small_windows")
def test_progress_goes_up_with_every_batch_to_the_size(corpus: Corpus) -> None:
    batches = SentenceBatches(corpus, tiny_tokenizer(), 1)
    seen = [batches.progress() for _ in islice(batches, len(SENTENCES))]
    assert seen == sorted(set(seen))
    assert seen[-1] == corpus.size
