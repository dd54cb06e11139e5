"""What holds for any text: ids as AllenNLP's, words that come back, offsets that point at the word."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_elmo.tokenization_elmo import ElmoTokenizer
from tests.character_ids import batch_to_ids, character_ids

SPLITTERS = ["whitespace", "treebank", "punctuation"]
TOKENIZERS = {name: ElmoTokenizer(name) for name in SPLITTERS}
TOKENIZER = TOKENIZERS["whitespace"]

# Zero bytes, control characters that Python takes for blanks, combining marks, right-to-left letters and marks,
# letters of 1 to 4 bytes, lone surrogates, noncharacters, emoji sequences, what the splitters look at.
SPECIAL = "\0\t\n\x1c\x1d\x1e\x1f\x85\xa0\u200b\u200d\u2028\u3000\u0301\u05d0\u0627\u202e\ufeff\ufffe\ue000\U0010ffff"
SPECIAL += "\ud800\udfff\udc80nNtT'’s.,:;-–—`\"$%()[]<>/_0🇩🇪👍🏽❤️éжद語"
letters = st.one_of(st.characters(exclude_categories=()), st.sampled_from(SPECIAL))
scalars = st.one_of(
    st.characters(codec="utf-8"), st.sampled_from([letter for letter in SPECIAL if not "\ud800" <= letter <= "\udfff"])
)
near_the_limit = st.builds(
    lambda head, tail: "a" * head + tail, st.integers(43, 52), st.text(st.sampled_from("éж語👍\u0301b"), max_size=4)
)
named = st.sampled_from(["<S>", "</S>", "[PAD]", "[UNK]", "x[PAD]y", "(<S>)", "<S><S>", "", " ", "New York"])
like_boundaries = st.sampled_from(["<S>\ud800", "\udfff</S>"])
words = st.one_of(st.text(letters, max_size=12), near_the_limit, named, like_boundaries)
batches = st.lists(st.lists(words, max_size=6), min_size=1, max_size=4)
texts = st.one_of(st.text(letters, max_size=60), st.lists(words, max_size=8).map(" ".join))

examples = settings(max_examples=300, deadline=None)


def assert_rows_are(rows: np.ndarray, expected: list[list[int]]) -> None:
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(rows, np.array(expected, dtype=np.int64).reshape(-1, rows.shape[-1]))


@given(batches)
@examples
def test_ids_of_words_are_those_of_batch_to_ids(batch):
    ids = TOKENIZER(batch, is_split_into_words=True, add_special_tokens=False, padding=True, return_tensors="np")
    longest = max(map(len, batch))
    assert ids["input_ids"].shape == (len(batch), longest, 50)
    for rows, expected in zip(ids["input_ids"], batch_to_ids(batch), strict=True):
        assert_rows_are(rows, expected)
    assert ids["attention_mask"].tolist() == [[1] * len(line) + [0] * (longest - len(line)) for line in batch]


@given(batches, st.integers(3, 70))
@examples
def test_ids_have_the_width_that_is_asked_for(batch, width):
    encoded = ElmoTokenizer(max_characters_per_token=width)(batch, is_split_into_words=True)
    for rows, line in zip(encoded["input_ids"], batch, strict=True):
        assert_rows_are(rows, [character_ids(word, width) for word in ["<S>", *line, "</S>"]])


@given(batches)
@examples
def test_words_that_go_through_rust_get_the_same_ids(batch):
    direct = TOKENIZER(batch, is_split_into_words=True, return_special_tokens_mask=True)
    through_rust = TOKENIZER(
        batch, is_split_into_words=True, return_special_tokens_mask=True, return_offsets_mapping=True
    )
    for key in direct:
        for one, other in zip(direct[key], through_rust[key], strict=True):
            np.testing.assert_array_equal(one, other)
    for index, line in enumerate(batch):
        assert direct.word_ids(index) == through_rust.word_ids(index) == [None, *range(len(line)), None]
        assert direct.tokens(index) == through_rust.tokens(index)
        assert through_rust["offset_mapping"][index] == [(0, 0), *((0, len(word)) for word in line), (0, 0)]


@given(batches, st.integers(2, 6))
@examples
def test_cut_lists_of_words_keep_the_first_words(batch, max_length):
    cut = {"is_split_into_words": True, "truncation": True, "max_length": max_length}
    encoded = TOKENIZER(batch, **cut)
    through_rust = TOKENIZER(batch, return_offsets_mapping=True, **cut)
    for index in range(len(batch)):
        np.testing.assert_array_equal(encoded["input_ids"][index], through_rust["input_ids"][index])
        assert encoded["attention_mask"][index] == through_rust["attention_mask"][index]
        assert encoded.word_ids(index) == through_rust.word_ids(index)
    for rows, line in zip(encoded["input_ids"], batch, strict=True):
        assert_rows_are(rows, [character_ids(word) for word in ["<S>", *line[: max_length - 2], "</S>"]])


@given(st.text(letters, max_size=80))
@examples
def test_whitespace_splits_as_python_does(text):
    encoded = TOKENIZER(text, add_special_tokens=False, return_offsets_mapping=True)
    assert [text[start:end] for start, end in encoded["offset_mapping"]] == text.split()


@pytest.mark.parametrize("splitter", SPLITTERS)
@given(text=texts)
@examples
def test_offsets_point_at_the_words(splitter, text):
    encoded = TOKENIZERS[splitter](text, return_offsets_mapping=True)
    spans = encoded["offset_mapping"][1:-1]
    words = [text[start:end] for start, end in spans]
    assert_rows_are(encoded["input_ids"], [character_ids(word) for word in ["<S>", *words, "</S>"]])
    assert encoded.word_ids() == [None, *range(len(words)), None]
    # Nothing but blanks lies between the words, and they come in order.
    assert "".join("".join(words).split()) == "".join(text.split())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(word and word == "".join(word.split()) for word in words)


@given(st.lists(st.one_of(st.text(scalars, max_size=12), named), max_size=8))
@examples
def test_words_below_the_limit_come_back(line):
    rows = TOKENIZER(line, is_split_into_words=True, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.convert_ids_to_tokens(rows) == line
    assert TOKENIZER.decode(rows) == " ".join(line)
    assert TOKENIZER.batch_decode([rows, rows]) == [" ".join(line)] * 2


@given(words)
@examples
def test_a_cut_word_comes_back_up_to_its_last_whole_letter(word):
    (row,) = TOKENIZER([word], is_split_into_words=True, add_special_tokens=False)["input_ids"]
    encodable = word.encode("utf-8", "ignore")
    assert TOKENIZER.convert_ids_to_tokens(row) == encodable[:48].decode("utf-8", "ignore")


@pytest.mark.parametrize("splitter", SPLITTERS)
@given(text=st.text(scalars, max_size=40))
@examples
def test_text_that_was_split_is_split_the_same_way(splitter, text):
    words = TOKENIZERS[splitter].tokenize(text)
    assert TOKENIZERS[splitter].tokenize(" ".join(words)) == words
