"""The tokenizer: rows as AllenNLP's, everything else as with any tokenizer of transformers."""

import copy
import json
import logging
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    BatchEncoding,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)

import hf_elmo  # noqa: F401 (makes AutoTokenizer know ELMo)
from hf_elmo import character_ids_elmo
from hf_elmo.tokenization_elmo import ElmoTokenizer
from tests.character_ids import batch_to_ids, character_ids
from tests.shared_files import fixture_path

SENTENCES = ["The cat sat .", "It slept", ""]
LINES = [sentence.split() for sentence in SENTENCES]


@pytest.fixture
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer()


def assert_words_are(ids: Any, words: Sequence[str]) -> None:
    """The rows are those of the words; None stands for padding."""
    expected = [[0] * 50 if word is None else character_ids(word) for word in words]
    assert np.asarray(ids).dtype == np.int64
    np.testing.assert_array_equal(np.asarray(ids), np.array(expected).reshape(-1, 50))


def assert_splits(splitter: str, text: str, expected: str) -> None:
    encoded = ElmoTokenizer(splitter)(text, add_special_tokens=False, return_offsets_mapping=True)
    assert encoded.tokens() == expected.split()
    assert [text[start:end] for start, end in encoded["offset_mapping"]] == expected.split()


def assert_same(one: BatchEncoding, other: BatchEncoding) -> None:
    assert one.keys() == other.keys()
    for key in one:
        for left, right in zip(one[key], other[key], strict=True):
            np.testing.assert_array_equal(left, right)


def assert_says(tokenizer: ElmoTokenizer, text: str, words: str) -> None:
    assert tokenizer(text).tokens() == words.split()


class TestIds:
    def test_the_oracle_agrees_with_allennlp(self):
        sentences, expected = allennlp_example()
        np.testing.assert_array_equal(batch_to_ids(sentences), expected)

    def test_lists_of_words_get_the_ids_of_allennlp(self, tokenizer):
        sentences, expected = allennlp_example()
        options = {"is_split_into_words": True, "add_special_tokens": False, "padding": True, "return_tensors": "np"}
        np.testing.assert_array_equal(tokenizer(sentences, **options)["input_ids"], expected)
        np.testing.assert_array_equal(
            tokenizer(sentences, return_offsets_mapping=True, **options)["input_ids"], expected
        )

    def test_boundaries_frame_a_sentence(self, tokenizer):
        assert_words_are(tokenizer("The cat")["input_ids"], ["<S>", "The", "cat", "</S>"])
        assert tokenizer("The")["input_ids"][[0, -1], :4].tolist() == [[259, 257, 260, 261], [259, 258, 260, 261]]

    def test_a_pair_is_framed_twice(self, tokenizer):
        words = ["<S>", "a", "b", "</S>", "<S>", "c", "</S>"]
        pair = tokenizer("a b", "c", return_token_type_ids=True)
        assert_words_are(pair["input_ids"], words)
        assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
        assert pair.sequence_ids() == [None, 0, 0, None, None, 1, None]
        assert "token_type_ids" not in tokenizer("a b", "c")
        for pairs in (tokenizer(["a b"], ["c"]), tokenizer([("a b", "c")])):
            assert_words_are(pairs["input_ids"][0], words)
        for pairs in (
            tokenizer([["a", "b"]], [["c"]], is_split_into_words=True),
            tokenizer([(["a", "b"], ["c"])], is_split_into_words=True),
        ):
            assert_words_are(pairs["input_ids"][0], words)

    def test_no_boundaries_where_none_are_wanted(self, tokenizer):
        for words in ("a b", ["a", "b"]):
            split = isinstance(words, list)
            assert_words_are(tokenizer(words, is_split_into_words=split, add_special_tokens=False)["input_ids"], "ab")
            assert_words_are(
                ElmoTokenizer(bos_token=None)(words, is_split_into_words=split)["input_ids"], ["a", "b", "</S>"]
            )
            assert_words_are(
                ElmoTokenizer(eos_token=None)(words, is_split_into_words=split)["input_ids"], ["<S>", "a", "b"]
            )
            bare = ElmoTokenizer(bos_token=None, eos_token=None)
            assert_words_are(bare(words, is_split_into_words=split)["input_ids"], "ab")
            assert_words_are(bare([words, words], is_split_into_words=split)["input_ids"][1], "ab")

    def test_boundaries_may_have_other_names(self):
        tokenizer = ElmoTokenizer(bos_token="<s>", eos_token="</s>")
        encoded = tokenizer("<s> <S>")
        assert encoded.tokens() == ["<s>", "<s>", "<S>", "</s>"]
        assert encoded["input_ids"][:, 1].tolist() == [257, 257, ord("<") + 1, 258]

    def test_special_words_in_a_text_are_words(self, tokenizer):
        words = ["[PAD]", "[UNK]", "x[PAD]y", "(<S>)", "<S>", "a</S>"]
        encoded = tokenizer(" ".join(words), return_special_tokens_mask=True)
        assert_words_are(encoded["input_ids"], ["<S>", *words, "</S>"])
        assert encoded["special_tokens_mask"] == [1, 0, 0, 0, 0, 0, 0, 1]
        assert encoded["attention_mask"] == [1] * 8
        assert_words_are(tokenizer(words, is_split_into_words=True)["input_ids"], ["<S>", *words, "</S>"])

    def test_given_words_stay_whole_and_empty_ones_keep_their_place(self, tokenizer):
        words = ["New York", "", " ", "a\tb", "don't."]
        for splitter in ("whitespace", "treebank", "punctuation"):
            for options in ({}, {"return_offsets_mapping": True}):
                encoded = ElmoTokenizer(splitter)(words, is_split_into_words=True, **options)
                assert_words_are(encoded["input_ids"], ["<S>", *words, "</S>"])
                assert encoded.word_ids() == [None, 0, 1, 2, 3, 4, None]
        assert encoded["offset_mapping"] == [(0, 0), (0, 8), (0, 0), (0, 1), (0, 3), (0, 6), (0, 0)]

    def test_lone_surrogates_are_left_out_of_ids_but_not_of_offsets(self, tokenizer):
        text = "a\ud800b \udfff c\udc80"
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        assert_words_are(encoded["input_ids"], ["ab", "", "c"])
        assert encoded["offset_mapping"] == [(0, 3), (4, 5), (6, 8)]
        assert_words_are(
            tokenizer(text.split(), is_split_into_words=True)["input_ids"], ["<S>", "ab", "", "c", "</S>"]
        )

    def test_a_word_with_a_lone_surrogate_is_no_boundary(self, tokenizer):
        ids = tokenizer(["<S>\ud800", "<S>", "a\ud800", "\udc80</S>", "</S>"], is_split_into_words=True)["input_ids"]
        assert ids[1:-1].tolist() == [
            [259, *(byte + 1 for byte in b"<S>"), 260, *[261] * 45],
            character_ids("<S>"),
            character_ids("a"),
            [259, *(byte + 1 for byte in b"</S>"), 260, *[261] * 44],
            character_ids("</S>"),
        ]

    def test_rows_have_the_width_that_is_asked_for(self, tmp_path):
        tokenizer = ElmoTokenizer(max_characters_per_token=7)
        tokenizer.save_pretrained(tmp_path)
        ids = ElmoTokenizer.from_pretrained(tmp_path)("abcdefgh")["input_ids"]
        assert ids[1].tolist() == character_ids("abcdefgh", 7) == [259, 98, 99, 100, 101, 102, 260]

    def test_a_cut_word_is_warned_of_once(self, tokenizer, warnings):
        tokenizer("д" * 24)
        assert warnings == []
        tokenizer("д" * 25)
        tokenizer("a" * 49)
        assert len(warnings) == 1
        assert "48 bytes" in warnings[0]


class TestBatches:
    @pytest.mark.parametrize("side", ["right", "left"])
    @pytest.mark.parametrize("options", [{}, {"return_offsets_mapping": True}], ids=["directly", "through Rust"])
    @pytest.mark.parametrize(
        ("padding", "length"),
        [
            ({"padding": True}, 6),
            ({"padding": True, "pad_to_multiple_of": 4}, 8),
            ({"padding": "max_length", "max_length": 9}, 9),
            ({"padding": "max_length", "max_length": 9, "pad_to_multiple_of": 5}, 10),
        ],
    )
    def test_padding_is_rows_of_zeros(self, tokenizer, side, options, padding, length):
        wanted = {"return_special_tokens_mask": True, "return_length": True, "return_token_type_ids": True}
        encoded = tokenizer(
            LINES, is_split_into_words=True, padding_side=side, return_tensors="np", **padding, **options, **wanted
        )
        for index, line in enumerate(LINES):
            filling = length - len(line) - 2
            framed, mask, special = ["<S>", *line, "</S>"], [1] * (len(line) + 2), [1, *([0] * len(line)), 1]
            if side == "right":
                framed, mask, special = framed + [None] * filling, mask + [0] * filling, special + [1] * filling
            else:
                framed, mask, special = [None] * filling + framed, [0] * filling + mask, [1] * filling + special
            assert_words_are(encoded["input_ids"][index], framed)
            assert encoded["attention_mask"][index].tolist() == mask
            assert encoded["special_tokens_mask"][index].tolist() == special
            assert encoded[index].attention_mask == mask
            assert encoded.tokens(index) == [word or "[PAD]" for word in framed]
        assert encoded["length"].tolist() == [length] * 3
        assert not encoded["token_type_ids"].any()

    @pytest.mark.parametrize("options", [{}, {"return_offsets_mapping": True}], ids=["directly", "through Rust"])
    def test_long_sentences_are_cut(self, tokenizer, options):
        words = list("abcdef")
        cut = {"is_split_into_words": True, "truncation": True, "max_length": 5, **options}
        assert_words_are(tokenizer(words, **cut)["input_ids"], ["<S>", "a", "b", "c", "</S>"])
        assert_words_are(tokenizer(words[:3], **cut)["input_ids"], ["<S>", "a", "b", "c", "</S>"])
        tokenizer.truncation_side = "left"
        assert_words_are(tokenizer(words, **cut)["input_ids"], ["<S>", "d", "e", "f", "</S>"])

    def test_what_is_cut_overflows_with_a_stride(self, tokenizer):
        words = ["a", "", "c", "d e", "f"]
        encoded = tokenizer(
            [words, ["x"]],
            is_split_into_words=True,
            max_length=5,
            stride=1,
            truncation=True,
            return_overflowing_tokens=True,
            return_tensors="np",
            padding=True,
        )
        assert encoded["overflow_to_sample_mapping"].tolist() == [0, 0, 1]
        assert_words_are(encoded["input_ids"][0], ["<S>", "a", "", "c", "</S>"])
        assert_words_are(encoded["input_ids"][1], ["<S>", "c", "d e", "f", "</S>"])
        assert_words_are(encoded["input_ids"][2], ["<S>", "x", "</S>", None, None])
        assert encoded.word_ids(1) == [None, 2, 3, 4, None]

    def test_a_pair_is_cut_where_it_is_longest(self, tokenizer):
        encoded = tokenizer("a b c d", "x y", truncation="longest_first", max_length=8)
        assert_words_are(encoded["input_ids"], ["<S>", "a", "b", "</S>", "<S>", "x", "y", "</S>"])
        encoded = tokenizer("a b c d", "x y", truncation="only_second", max_length=9)
        assert_words_are(encoded["input_ids"], ["<S>", "a", "b", "c", "d", "</S>", "<S>", "x", "</S>"])

    @pytest.mark.parametrize("words", [SENTENCES, LINES], ids=["texts", "lists of words"])
    def test_types_are_those_of_return_tensors(self, tokenizer, words):
        def encode(batch: Any, **options: Any) -> Any:
            return tokenizer(batch, is_split_into_words=words is LINES, **options)

        arrays = encode(words)["input_ids"]
        assert [rows.shape for rows in arrays] == [(6, 50), (4, 50), (2, 50)]
        assert all(rows.dtype == np.int64 for rows in arrays)
        assert encode(words[0])["input_ids"].shape == (6, 50)
        tensors = encode(words, padding=True, return_tensors="pt")
        assert tensors["input_ids"].shape == (3, 6, 50)
        assert tensors["input_ids"].dtype == tensors["attention_mask"].dtype == torch.int64
        assert encode(words[0], return_tensors="pt")["input_ids"].shape == (1, 6, 50)
        assert encode(words[2], return_tensors="np")["input_ids"].shape == (1, 2, 50)
        with pytest.raises(ValueError, match="padding=True"):
            encode(words, return_tensors="pt")

    def test_an_empty_batch_is_empty(self, tokenizer):
        assert tokenizer([])["input_ids"] == []

    def test_the_encodings_of_lists_of_words_can_be_kept(self, tokenizer):
        encoded = tokenizer(LINES, is_split_into_words=True, padding=True)
        kept = pickle.loads(pickle.dumps(encoded))
        assert [encoding.tokens for encoding in kept.encodings] == [encoding.tokens for encoding in encoded.encodings]
        assert [encoding.ids for encoding in encoded.encodings[1:]] == [[2, 1, 1, 3, 0, 0], [2, 3, 0, 0, 0, 0]]
        assert encoded.word_to_tokens(0, 2).start == 3
        assert encoded.token_to_chars(0, 1).end == 3


class TestPad:
    def features(self, tokenizer: ElmoTokenizer) -> list[dict[str, Any]]:
        return [dict(tokenizer(sentence)) for sentence in SENTENCES]

    def test_examples_are_padded_like_a_batch(self, tokenizer):
        expected = tokenizer(SENTENCES, padding=True, return_tensors="np")
        features = self.features(tokenizer)
        assert_same(tokenizer.pad(features), expected)
        assert_same(tokenizer.pad(features, return_tensors="pt"), expected)
        lists = [{"input_ids": one["input_ids"].tolist(), "attention_mask": one["attention_mask"]} for one in features]
        assert isinstance(tokenizer.pad(lists)["input_ids"], list)
        assert_same(tokenizer.pad(lists), expected)
        tensors = [{key: torch.tensor(value) for key, value in one.items()} for one in features]
        assert isinstance(tokenizer.pad(tensors)["input_ids"], torch.Tensor)
        assert_same(tokenizer.pad(tensors), expected)
        assert_same(tokenizer.pad(tokenizer(SENTENCES)), expected)

    def test_one_example_is_padded_as_one(self, tokenizer):
        padded = tokenizer.pad(tokenizer("a b"), padding="max_length", max_length=6)
        assert_words_are(padded["input_ids"], ["<S>", "a", "b", "</S>", None, None])
        assert padded["attention_mask"].tolist() == [1, 1, 1, 1, 0, 0]

    def test_sides_multiples_and_missing_masks(self, tokenizer):
        features = [{"input_ids": one["input_ids"]} for one in self.features(tokenizer)]
        padded = tokenizer.pad(features, padding_side="left", pad_to_multiple_of=4)
        assert_words_are(padded["input_ids"][1], [None] * 4 + ["<S>", "It", "slept", "</S>"])
        assert padded["attention_mask"][1].tolist() == [0] * 4 + [1] * 4

    def test_rows_of_another_width_are_refused(self, tokenizer):
        with pytest.raises(ValueError, match="rows of 50 characters"):
            tokenizer.pad([{"input_ids": np.ones((3, 20), dtype=int)}])

    def test_collators_and_datasets_take_them_as_they_are(self, tokenizer):
        dataset = Dataset.from_dict({"words": LINES, "labels": [[1] * (len(line) + 2) for line in LINES]})
        encoded = dataset.map(lambda batch: tokenizer(batch["words"], is_split_into_words=True), batched=True)
        encoded = encoded.remove_columns("words")
        expected = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        for rows in (encoded, encoded.with_format("torch"), encoded.with_format("numpy")):
            batch = DataCollatorForTokenClassification(tokenizer)([rows[index] for index in range(3)])
            assert batch.pop("labels").tolist() == [[1] * 6, [1] * 4 + [-100] * 2, [1] * 2 + [-100] * 4]
            assert_same(BatchEncoding(batch), expected)
        features = [{"label": 1, **tokenizer(sentence)} for sentence in SENTENCES]
        assert DataCollatorWithPadding(tokenizer)(features)["input_ids"].shape == (3, 6, 50)


class TestDecode:
    def test_words_come_back(self, tokenizer):
        encoded = tokenizer(LINES, is_split_into_words=True, padding=True, return_tensors="pt")
        ids = encoded["input_ids"]
        assert tokenizer.decode(ids[1]) == "<S> It slept </S> [PAD] [PAD]"
        assert tokenizer.decode(ids[1], skip_special_tokens=True) == "It slept"
        assert tokenizer.batch_decode(ids, skip_special_tokens=True) == ["The cat sat .", "It slept", ""]
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=True)[1] == "It slept"
        assert tokenizer.decode(tokenizer("a b")["input_ids"], skip_special_tokens=True) == "a b"
        assert tokenizer.batch_decode(tokenizer(SENTENCES)["input_ids"])[2] == "<S> </S>"
        assert tokenizer.convert_ids_to_tokens(ids[1]) == ["<S>", "It", "slept", "</S>", "[PAD]", "[PAD]"]
        assert tokenizer.convert_ids_to_tokens(ids[1], skip_special_tokens=True) == ["It", "slept"]
        assert tokenizer.convert_ids_to_tokens(ids[1][1]) == "It"
        assert tokenizer.decode(ids[1][1]) == "It"

    def test_a_word_called_padding_is_no_padding(self, tokenizer):
        assert tokenizer.decode(tokenizer("[PAD] x")["input_ids"], skip_special_tokens=True) == "[PAD] x"

    def test_a_letter_that_was_cut_in_two_is_left_out(self, tokenizer):
        (row,) = tokenizer("a" + "д" * 24, add_special_tokens=False)["input_ids"]
        assert tokenizer.convert_ids_to_tokens(row) == "a" + "д" * 23

    def test_ids_of_special_tokens_are_names(self, tokenizer):
        assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["[PAD]", "[UNK]", "<S>", "</S>"]
        assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (0, 1)
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (2, 3)

    def test_the_mask_of_special_tokens_is_read_from_the_rows(self, tokenizer):
        ids = tokenizer("a <S>", padding="max_length", max_length=6)["input_ids"]
        assert tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True) == [1, 0, 1, 1, 1, 1]
        assert tokenizer.get_special_tokens_mask(ids[1:2]) == [1, 0, 1]
        assert tokenizer.get_special_tokens_mask(ids[1:3], ids[1:2]) == [1, 0, 0, 1, 1, 0, 1]

    def test_what_is_no_row_is_refused(self, tokenizer):
        with pytest.raises(ValueError, match="no end of word"):
            tokenizer.decode(np.full((2, 50), 5))


TREEBANK = [
    # These are split as NLTK's and Moses' English tokenizers or both split them.
    ("They'll save and invest more.", "They 'll save and invest more ."),
    ("I don't think so, but it's John's, isn't it?", "I do n't think so , but it 's John 's , is n't it ?"),
    ("We've got you're, I'm, he'd \"fine\".", "We 've got you 're , I 'm , he 'd \" fine \" ."),
    ("I CAN'T, can’t cannot; gonna wanna gotta go", "I CA N'T , ca n’t can not ; gon na wan na got ta go"),
    ("Gimme that! Lemme see. More'n d'ye", "Gim me that ! Lem me see . More 'n d 'ye"),
    ("He arrived at 3:30 p.m. on Jan. 5, 1999.", "He arrived at 3:30 p.m. on Jan. 5 , 1999 ."),
    ("It cost $1,234.56 (or 15%) -- not bad...", "It cost $ 1,234.56 ( or 15 % ) -- not bad ..."),
    ("Well-known U.S.-based companies, e.g. AT&T, made", "Well-known U.S.-based companies , e.g. AT & T , made"),
    ("Mr. Smith works for Acme Inc. in St. Louis.", "Mr. Smith works for Acme Inc. in St. Louis ."),
    ("He said 'hello there' and left.", "He said ' hello there ' and left ."),
    ("The dogs' bowls, James's book", "The dogs ' bowls , James 's book"),
    ("What?! No way!!! Really...?", "What ? ! No way ! ! ! Really ... ?"),
    ("O'Neill's o'clock l'amour", "O'Neill 's o'clock l'amour"),
    (
        "and/or 50/50 +5 a=b 10-20 [see] {x} <y> #3 me@home",
        "and/or 50/50 +5 a=b 10-20 [ see ] { x } < y > # 3 me @ home",
    ),
    ("the men's' ''double''", "the men 's ' '' double ''"),
    ("She's 5'10\" tall", "She 's 5'10 \" tall"),
    # Text of more than one sentence, and signs that those do not know.
    ("It cost. Thanks. It was J. R. R. Tolkien. Yes.", "It cost . Thanks . It was J. R. R. Tolkien . Yes ."),
    ("The end of the U.S.", "The end of the U.S."),
    ("'Tis the '90s; rock 'n' roll.", "'T is the '90s ; rock 'n' roll ."),
    ("“I’m here—don’t go.”", "“ I ’m here — do n’t go . ”"),
    ("Wow…£800 ½ x² 100°", "Wow … £ 800 ½ x² 100 °"),
    # What is tokenized already stays as it is.
    (
        "I do n't know what `` this '' is , it 's -LRB- odd -RRB- .",
        "I do n't know what `` this '' is , it 's -LRB- odd -RRB- .",
    ),
    ("  \t\n ", ""),
]

PUNCTUATION = [
    ("Он не пришёл; кто-то сказал: «Привет — мир»...", "Он не пришёл ; кто-то сказал : « Привет — мир » ..."),
    ("L’amour d'été, c'est-à-dire 3,5 % (10.000 €)!", "L’amour d'été , c'est-à-dire 3,5 % ( 10.000 € ) !"),
    ("„Straße“ um 24:00 Uhr, z.B.", "„ Straße “ um 24:00 Uhr , z.B ."),
    ("¿Qué? ¡Sí! paral·lel", "¿ Qué ? ¡ Sí ! paral·lel"),
    ("צה״ל ג׳ירפה: שלום.", "צה״ל ג׳ירפה : שלום ."),
    ("नमस्ते दुनिया। क्या?", "नमस्ते दुनिया । क्या ?"),
    ("'quoted' foo_bar a--b", "' quoted ' foo_bar a -- b"),
    ("👨‍👩‍👧 👍🏽🇩🇪❤️ok", "👨‍👩‍👧 👍🏽 🇩🇪 ❤️ ok"),
    ("一二三，四五。", "一二三 ， 四五 。"),
    ("e\u0301te\u0301!\u0301", "e\u0301te\u0301 !\u0301"),
]


class TestSplitters:
    @pytest.mark.parametrize(("text", "expected"), TREEBANK)
    def test_treebank(self, text, expected):
        assert_splits("treebank", text, expected)

    @pytest.mark.parametrize(("text", "expected"), PUNCTUATION)
    def test_punctuation(self, text, expected):
        assert_splits("punctuation", text, expected)

    def test_whitespace(self):
        assert_splits("whitespace", "a  b\tc\x1cd\xa0e\u3000f.,'", "a b c d e f.,'")

    @pytest.mark.parametrize("splitter", ["whitespace", "treebank", "punctuation"])
    def test_splitters_do_not_choke_on_long_texts(self, splitter):
        for piece in ("a", "'", "a.", "-", "'a", "Inc.", '" ', "1,", "n't", "\u0301"):
            assert ElmoTokenizer(splitter).tokenize(piece * 20_000)

    def test_an_unknown_name_is_answered_with_the_names(self):
        with pytest.raises(ValueError, match="'spacy' is unknown: choose one of 'whitespace', 'treebank', 'punctuat"):
            ElmoTokenizer("spacy")

    @pytest.mark.parametrize("load", [ElmoTokenizer.from_pretrained, AutoTokenizer.from_pretrained])
    def test_the_splitter_survives_saving(self, tmp_path, load):
        ElmoTokenizer("treebank").save_pretrained(tmp_path)
        loaded = load(tmp_path)
        assert loaded.word_splitter == "treebank"
        assert_says(loaded, "I don't", "<S> I do n't </S>")
        loaded.save_pretrained(tmp_path / "again")
        assert (tmp_path / "again" / "tokenizer.json").read_text() == (tmp_path / "tokenizer.json").read_text()

    def test_tokenizer_json_alone_knows_the_splitter(self, tmp_path):
        ElmoTokenizer("treebank").save_pretrained(tmp_path)
        assert "(?#treebank)" in (tmp_path / "tokenizer.json").read_text()
        alone = ElmoTokenizer(tokenizer_file=str(tmp_path / "tokenizer.json"))
        assert alone.word_splitter == "treebank"
        assert_says(alone, "I don't", "<S> I do n't </S>")

    def test_a_name_given_while_loading_wins(self, tmp_path):
        ElmoTokenizer("treebank").save_pretrained(tmp_path)
        assert_says(ElmoTokenizer.from_pretrained(tmp_path, word_splitter="whitespace"), "I don't", "<S> I don't </S>")

    def test_a_pre_tokenizer_of_ones_own_survives_saving(self, tmp_path):
        from tokenizers.pre_tokenizers import CharDelimiterSplit

        tokenizer = ElmoTokenizer()
        tokenizer.backend_tokenizer.pre_tokenizer = CharDelimiterSplit("|")
        tokenizer.save_pretrained(tmp_path)
        assert ElmoTokenizer.from_pretrained(tmp_path).tokenize("New York|now") == ["New York", "now"]


class TestLifeOfATokenizer:
    @pytest.mark.parametrize(
        "options", [{}, {"bos_token": None}, {"eos_token": None}, {"bos_token": None, "eos_token": None}]
    )
    def test_boundaries_survive_saving(self, tmp_path, options):
        tokenizer = ElmoTokenizer(**options)
        tokenizer.save_pretrained(tmp_path)
        loaded = AutoTokenizer.from_pretrained(tmp_path)
        assert loaded("a b").tokens() == tokenizer("a b").tokens()
        assert (loaded.bos_token, loaded.eos_token) == (tokenizer.bos_token, tokenizer.eos_token)

    def test_boundaries_can_be_left_out_while_loading(self, tmp_path):
        ElmoTokenizer().save_pretrained(tmp_path)
        assert_says(ElmoTokenizer.from_pretrained(tmp_path, bos_token=None), "a", "a </S>")
        assert_says(ElmoTokenizer.from_pretrained(tmp_path, add_eos_token=False), "a", "<S> a")

    def test_saving_keeps_nothing_of_earlier_calls(self, tmp_path, tokenizer):
        before = tokenizer.backend_tokenizer.to_str()
        tokenizer(SENTENCES, padding=True, truncation=True, max_length=4)
        tokenizer(LINES, padding="max_length", max_length=9, is_split_into_words=True, return_offsets_mapping=True)
        assert tokenizer.backend_tokenizer.to_str() == before

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
    def test_copies_do_the_same(self, copied):
        tokenizer = ElmoTokenizer("treebank", max_characters_per_token=20, bos_token=None)
        assert_same(copied(tokenizer)("I don't", "know"), tokenizer("I don't", "know"))

    def test_threads_do_not_disturb_each_other(self):
        tokenizer = ElmoTokenizer("treebank")
        jobs: list[tuple[Any, dict[str, Any]]] = []
        for length in range(3, 30):
            words = ["New York", "don't", "", *"abcdefghijklmnop"]
            jobs.append(([words], {"is_split_into_words": True, "truncation": True, "max_length": length}))
            jobs.append((["I don't " * 8, "know."], {"padding": "max_length", "max_length": length}))
            jobs.append((["I don't " * 8, "know."], {"padding": True, "padding_side": "left"}))
        expected = [tokenizer(text, **options) for text, options in jobs]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda job: tokenizer(job[0], **job[1]), jobs * 10))
        for one, other in zip(found, expected * 10, strict=True):
            assert_same(one, other)

    def test_tokens_that_a_user_adds_hold_words_together(self, tokenizer):
        tokenizer.add_tokens(["New York"])
        assert tokenizer.tokenize("in New York now") == ["in", "New York", "now"]
        encoded = tokenizer(["in New York"], is_split_into_words=True, return_offsets_mapping=True)
        assert_words_are(encoded["input_ids"], ["<S>", "in New York", "</S>"])

    def test_the_saved_folder_holds_its_code(self, tmp_path):
        ElmoTokenizer().save_pretrained(tmp_path)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert config["auto_map"]["AutoTokenizer"][0] == "tokenization_elmo.ElmoTokenizer"
        for name in ("tokenization_elmo.py", "character_ids_elmo.py", "lexicon_elmo.py", "word_splitters_elmo.py"):
            assert (tmp_path / name).is_file()


class TestBadInput:
    @pytest.mark.parametrize(("words", "wrong"), [(["a", 1], "1"), (["a", None], "None"), ([["a"], [2]], "2")])
    def test_words_that_are_no_strings(self, tokenizer, words, wrong):
        with pytest.raises(TypeError, match=f"Words must be strings, but {wrong} is among them"):
            tokenizer(words, is_split_into_words=True)

    def test_a_text_that_is_said_to_be_words(self, tokenizer):
        with pytest.raises(ValueError, match="takes lists of words"):
            tokenizer("a b", is_split_into_words=True)

    def test_no_room_for_a_byte(self):
        with pytest.raises(ValueError, match="must be 3 or more"):
            ElmoTokenizer(max_characters_per_token=2)

    def test_special_tokens_of_one_name(self):
        with pytest.raises(ValueError, match="must differ"):
            ElmoTokenizer(bos_token="[SEP]", eos_token="[SEP]")

    def test_training(self, tokenizer):
        with pytest.raises(ValueError, match="no vocabulary"):
            tokenizer.train_new_from_iterator(["a"], 10)


def allennlp_example() -> tuple[list[list[str]], np.ndarray]:
    """Sentences and the ids that AllenNLP's `batch_to_ids` gave them."""
    folder: Path = fixture_path("allennlp_random")
    sentences = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))["sentences"]
    return sentences, np.load(folder / "expected.npz")["character_ids"]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The warnings of `words_to_rows`, which it gives once a process."""
    character_ids_elmo.logger.warning_once.cache_clear()
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    character_ids_elmo.logger.addHandler(handler)
    yield messages
    character_ids_elmo.logger.removeHandler(handler)
