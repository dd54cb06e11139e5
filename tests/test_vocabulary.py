"""Word vocabularies: counted, ordered, checked, and the same in the tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_elmo import ElmoTokenizer
from hf_elmo.lexicon_elmo import WordVocabulary
from hf_elmo.pretraining.corpus import Corpus
from hf_elmo.pretraining.vocabulary import build_vocabulary, check_vocabulary, count_words, read_vocabulary
from tests.language_models import SENTENCES, write_lines

SPECIAL = ["<S>", "</S>", "<UNK>"]
LINES = [["b", "a", "b"], ["c", "a", "b"], ["<UNK>", "<S>", "d"]]


def test_frequent_words_come_first_and_equal_ones_by_the_alphabet() -> None:
    assert build_vocabulary(LINES) == [*SPECIAL, "b", "a", "c", "d"]
    assert build_vocabulary(LINES, min_count=2) == [*SPECIAL, "b", "a"]
    assert build_vocabulary(LINES, size=5) == [*SPECIAL, "b", "a"]
    assert build_vocabulary(count_words(LINES), size=4) == [*SPECIAL, "b"]


def test_a_vocabulary_is_built_from_files(tmp_path: Path) -> None:
    corpus = Corpus(write_lines(tmp_path / "text"))
    words = build_vocabulary(corpus)
    counts = count_words(SENTENCES)
    assert set(words[3:]) == set(counts)
    assert words[3] == "the"
    check_vocabulary(words, counts)


def test_what_is_built_is_what_the_tokenizer_numbers(tmp_path: Path) -> None:
    words = build_vocabulary(SENTENCES)
    WordVocabulary(words).save(tmp_path / "vocab.txt")
    assert read_vocabulary(tmp_path / "vocab.txt") == words
    tokenizer = ElmoTokenizer(word_vocabulary=tmp_path / "vocab.txt")
    ids = tokenizer([["the", "unheard-of", "cat"]], is_split_into_words=True)["word_input_ids"][0]
    assert [words[number - 1] for number in ids] == ["<S>", "the", "<UNK>", "cat", "</S>"]


def test_nothing_left_is_told() -> None:
    with pytest.raises(ValueError, match="No word of the text occurs 9 times or more"):
        build_vocabulary(LINES, min_count=9)
    with pytest.raises(ValueError, match="A vocabulary of 3 words has room only for <S>, </S>, <UNK>"):
        build_vocabulary(LINES, size=3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*SPECIAL, "a", "b", "a"], "'a' more than once"),
        ([*SPECIAL, "", "b"], "line 4, is empty"),
        ([*SPECIAL, "New York"], "line 4, holds a blank"),
        (["<S>", "</S>", "a", "b"], "lacks <UNK>"),
        (["a", "b"], "lacks <S>, </S>, <UNK>"),
        (["a", *SPECIAL], "must begin with <S>, </S>, <UNK>, and the most frequent words after them"),
    ],
)
def test_a_vocabulary_that_cannot_be_trained_with_is_told(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_vocabulary(words)


def test_the_order_is_checked_where_counts_are_known(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "vocab.txt", ["<S>\t1", "</S>\t1", "<UNK>\t0", "a\t3", "b\t7"])
    with pytest.raises(
        ValueError, match=r"vocab.txt is not in the order of frequency: 'b' \(7 times\) comes after 'a'"
    ):
        read_vocabulary(path)
    write_lines(path, ["<S>\t1", "</S>\t1", "<UNK>\t0", "b\t7", "a\t3"])
    assert read_vocabulary(path) == [*SPECIAL, "b", "a"]


def test_a_file_that_is_no_vocabulary_is_told(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"vocab.txt cannot be used"):
        read_vocabulary(tmp_path / "vocab.txt")
    write_lines(tmp_path / "vocab.txt", [])
    with pytest.raises(ValueError, match=r"vocab.txt"):
        read_vocabulary(tmp_path / "vocab.txt")
