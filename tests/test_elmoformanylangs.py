"""Models of ELMoForManyLangs: parity with the original, their tokenizer, their folders, and bad input."""

import copy
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    pipeline,
)

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.conversion import ConversionError, convert_checkpoint, export_checkpoint
from hf_elmo.conversion.check_folder import verify_folder
from hf_elmo.lexicon_elmo import CharacterLexicon, WordVocabulary
from tests.assertions import assert_close, assert_far, assert_identical, assert_zero_at_padding
from tests.elmoformanylangs import CHARACTERS, WORDS, architecture, ids_of, state_dicts, write_model
from tests.saved_folders import TEXTS as REMOTE_TEXTS
from tests.shared_files import fixture_path
from tests.test_remote_code import run_without_the_package

SENTENCES = [["the", "fox", ".", "水", "\u3000"], ["Yes"], ["МылМ", "☃☃", "x" * 30, "", "<bos>", "the"], []]
TEXTS = ["the fox .", "水", "Мыл the quick brown fox ☃ ."]
ROUNDING = 2e-6
WIDTH = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny checkpoint, converted."""
    root = tmp_path_factory.mktemp("tiny")
    convert_checkpoint(write_model(root / "source"), root / "converted")
    return root / "converted"


@pytest.fixture(scope="module")
def model(folder) -> ElmoModel:
    return AutoModel.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tokenizer(folder) -> ElmoTokenizer:
    return AutoTokenizer.from_pretrained(folder)


def encode(tokenizer: ElmoTokenizer, sentences: list[list[str]], **options: Any) -> Any:
    return tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt", **options)


class TestParity:
    """Every array that the original wrote for the fixture."""

    @pytest.fixture(scope="class")
    @staticmethod
    def original(tmp_path_factory) -> dict[str, Any]:
        fixture = fixture_path("elmoformanylangs")
        output = tmp_path_factory.mktemp("fixture") / "converted"
        report = convert_checkpoint(fixture / "model", output)
        contents = json.loads((fixture / "sentences.json").read_text())
        with np.load(fixture / "expected.npz") as file:
            arrays = dict(file)
        return {
            "model": AutoModel.from_pretrained(output).eval(),
            "tokenizer": AutoTokenizer.from_pretrained(output),
            "sentences": contents["sentences"],
            "batches": contents["multi_batch"]["batches_in_running_order"],
            "arrays": arrays,
            "report": report,
            "folder": output,
        }

    def run(self, original: dict[str, Any], order: list[int], states: Any = None) -> tuple[dict[int, Any], Any, Any]:
        """The layers (3, n, 2P) and the mix (n, 2P) of sentences in some order, without boundaries, and the states."""
        batch = encode(original["tokenizer"], [original["sentences"][index] for index in order])
        with torch.inference_mode():
            output = original["model"](**batch, states=states, output_hidden_states=True)
        assert_zero_at_padding(output.last_hidden_state, batch["attention_mask"])
        layers = torch.stack(output.hidden_states)
        lengths = [len(original["sentences"][index]) for index in order]
        found = {index: layers[:, row, 1 : 1 + n] for row, (index, n) in enumerate(zip(order, lengths, strict=True))}
        mixed = {
            index: output.last_hidden_state[row, 1 : 1 + n]
            for row, (index, n) in enumerate(zip(order, lengths, strict=True))
        }
        return found, mixed, output.states

    def test_every_array(self, original, record_property):
        sentences = original["sentences"]
        ours: dict[str, Any] = {}

        def keep(case: str, layers: dict[int, Any]) -> None:
            ours.update({f"{case}.layer-2.sent{index}": values for index, values in layers.items()})

        layers, mixed, _ = self.run(original, list(range(len(sentences))))
        keep("fresh", layers)
        for index, values in layers.items():
            ours.update({f"fresh.layer{layer}.sent{index}": values[layer] for layer in range(3)})
            ours[f"fresh.layer-1.sent{index}"] = mixed[index]

        by_length = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
        _, _, states = self.run(original, by_length)
        keep("second_call", self.run(original, by_length, states)[0])

        states = None
        for batch in original["batches"]:
            layers, _, states = self.run(original, batch, states)
            keep("multi_batch", layers)
        for index in range(len(sentences)):
            keep("single", self.run(original, [index])[0])
        encoded = original["tokenizer"](sentences, is_split_into_words=True)
        for index in range(len(sentences)):
            ours[f"ids.sent{index}.char_ids"] = encoded["input_ids"][index] - 1
            ours[f"ids.sent{index}.word_ids"] = encoded["word_input_ids"][index] - 1

        assert set(ours) == set(original["arrays"])
        largest = 0.0
        for name, values in ours.items():
            if name.startswith("ids."):
                assert_identical(values, original["arrays"][name], name)
            else:
                largest = max(largest, assert_close(values, original["arrays"][name], what=name))
        record_property("parity", ("elmoformanylangs", largest))

    def test_the_report(self, original):
        report = original["report"]
        assert report.format == "elmoformanylangs"
        assert report.num_tensors == 32
        assert report.max_difference < 1e-5
        assert {"char.dic", "word.dic", "encoder.pkl", "token_embedder.pkl"} <= set(report.files)
        assert report.architecture["Word vectors"] == "65 words of size 10"

    def test_it_cannot_be_exported_to_hdf5(self, original, tmp_path):
        with pytest.raises(ConversionError, match=r"a lexicon \(character_lexicon\.json\).* bytes alone"):
            export_checkpoint(original["folder"], tmp_path / "exported")
        assert not (tmp_path / "exported").exists()


class TestConversion:
    @pytest.mark.parametrize(
        "changes",
        [
            {"word_dim": 0},
            {"activation": "tanh", "n_highway": 0, "n_layers": 1},
            {"cell_clip": None, "proj_clip": None, "n_layers": 3},
            # As many filters as the projection has: the projection is there all the same.
            {"filters": [[1, 2], [3, 4]], "word_dim": 0},
            {"zipped": True},
            {"characters": [*CHARACTERS, *map(chr, range(0x4E00, 0x4E00 + 262 - len(CHARACTERS)))]},
            {"characters": [*CHARACTERS, *map(chr, range(0x4E00, 0x4E00 + 1000))]},
            {"characters": CHARACTERS[::-1]},
            {"max_characters_per_token": 5},
        ],
    )
    def test_architectures(self, changes, tmp_path):
        report = convert_checkpoint(write_model(tmp_path / "source", **changes), tmp_path / "out")
        assert report.max_difference < 3e-5
        loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
        assert ("word_input_ids" in loaded(["fox"])) == (changes.get("word_dim") != 0)

    def test_the_layers_are_mixed_in_equal_parts(self, model):
        assert_close(model.layer_weights().weights, [[1 / 3] * 3], 1e-7)

    def test_the_folder_may_lie_in_another_and_be_named_by_a_file_of_it(self, tmp_path):
        source = write_model(tmp_path / "zip" / "179")
        assert convert_checkpoint(tmp_path / "zip", tmp_path / "a").format == "elmoformanylangs"
        assert convert_checkpoint(source / "encoder.pkl", tmp_path / "b").format == "elmoformanylangs"

    def test_the_only_other_json_is_the_architecture(self, tmp_path):
        source = write_model(tmp_path / "source")
        (source / "tiny.json").rename(source / "other.json")
        report = convert_checkpoint(source, tmp_path / "out")
        assert report.notes == ("config.json names tiny.json; other.json was taken in its place.",)

    def test_the_architecture_may_lie_in_the_folder_of_the_package_or_be_given(self, tmp_path):
        source = write_model(tmp_path / "source")
        (source / "config.json").write_text(json.dumps({"config_path": "C:\\configs\\tiny.json"}))
        (source / "configs").mkdir()
        (source / "tiny.json").rename(source / "configs" / "tiny.json")
        convert_checkpoint(source, tmp_path / "a")
        shutil.move(source / "configs" / "tiny.json", tmp_path / "given.json")
        (source / "config.json").unlink()
        convert_checkpoint(source, tmp_path / "b", options=tmp_path / "given.json")

    def test_the_published_architecture_stands_in_for_a_file_that_is_not_there(self, tmp_path):
        source = write_model(tmp_path / "source")
        (source / "tiny.json").unlink()
        (source / "config.json").write_text('{"config_path": "/x/configs/cnn_50_100_512_4096_sample.json"}')
        with pytest.raises(ConversionError, match=r"projection\.weight has shape \(6, 19\), but the options say"):
            convert_checkpoint(source, tmp_path / "out")

    def test_a_folder_is_verified_again_lexicons_included(self, tmp_path):
        source = write_model(tmp_path / "source")
        convert_checkpoint(source, tmp_path / "out")
        assert max(verify_folder(tmp_path / "out", source).differences.values()) < 3e-5
        for name, first, second, message in (
            ("vocab.txt", "the\nfox", "fox\nthe", "word_vocabulary differs"),
            ("character_lexicon.json", '"a",\n"b"', '"b",\n"a"', "character_lexicon differs"),
            ("character_lexicon.json", '"begin_word": "<eow>"', '"begin_word": "<oov>"', "cannot be loaded"),
        ):
            path = tmp_path / "out" / name
            text = path.read_text(encoding="utf-8")
            assert first in text
            path.write_text(text.replace(first, second), encoding="utf-8")
            with pytest.raises(ConversionError, match=message):
                verify_folder(tmp_path / "out", source)
            path.write_text(text, encoding="utf-8")

    def test_a_softmax_is_left_aside_and_said_so(self, tmp_path):
        source = write_model(tmp_path / "source")
        torch.save({}, source / "classifier.pkl")
        assert any("classifier.pkl" in note for note in convert_checkpoint(source, tmp_path / "out").notes)


class TestTokenizer:
    def test_ids_and_padding(self, tokenizer):
        batch = encode(tokenizer, SENTENCES)
        for row, sentence in enumerate(SENTENCES):
            rows, places = ids_of(sentence, CHARACTERS, WORDS, WIDTH)
            length = len(places)
            assert_identical(batch["input_ids"][row, :length], rows + 1)
            assert batch["word_input_ids"][row, :length].tolist() == [place + 1 for place in places]
            assert not batch["input_ids"][row, length:].any()
            assert not batch["word_input_ids"][row, length:].any()

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_pad_and_collators_give_what_padding_gives(self, tokenizer, side):
        expected = encode(tokenizer, SENTENCES, padding_side=side)
        examples = tokenizer(SENTENCES, is_split_into_words=True)
        lists = {name: [np.asarray(part).tolist() for part in parts] for name, parts in examples.items()}
        separate = [{name: lists[name][row] for name in lists} for row in range(len(SENTENCES))]
        for given_examples in (examples, lists, separate):
            padded = tokenizer.pad(given_examples, padding_side=side, return_tensors="pt")
            assert set(padded) == set(expected)
            for name, values in expected.items():
                assert padded[name].dtype == torch.int64
                assert_identical(padded[name], values, name)
        single = tokenizer.pad({name: parts[0] for name, parts in lists.items()}, padding="max_length", max_length=9)
        assert single["word_input_ids"][-2:] == [0, 0]
        if side == "right":
            features = [{**example, "labels": [0] * len(example["attention_mask"])} for example in separate]
            collated = DataCollatorForTokenClassification(tokenizer)(features)
            for name, values in expected.items():
                assert_identical(collated[name], values, name)

    def test_both_ways_through_the_tokenizer_agree(self, tokenizer):
        fast = encode(tokenizer, SENTENCES)
        rust = encode(tokenizer, SENTENCES, return_offsets_mapping=True)
        for name in ("input_ids", "word_input_ids", "attention_mask"):
            assert_identical(rust[name], fast[name], name)

    def test_truncation_overflow_and_pairs(self, tokenizer):
        cut = tokenizer("the fox . 水", truncation=True, max_length=4)
        assert cut["word_input_ids"].tolist() == [2, 5, 6, 3]
        overflow = tokenizer("the fox . 水", truncation=True, max_length=4, return_overflowing_tokens=True)
        assert [ids.tolist() for ids in overflow["word_input_ids"]] == [[2, 5, 6, 3], [2, 1, 7, 3]]
        pair = tokenizer("the", "fox 水", return_token_type_ids=True)
        assert pair["word_input_ids"].tolist() == [2, 5, 3, 2, 6, 7, 3]
        assert pair["token_type_ids"] == [0, 0, 0, 1, 1, 1, 1]

    def test_decode_gives_words_back_and_shows_unknown_characters(self, tokenizer):
        ids = tokenizer("the ☃ fox 水a")["input_ids"]
        assert tokenizer.decode(ids) == "<bos> the <oov> fox 水a <eos>"
        assert tokenizer.decode(ids, skip_special_tokens=True) == "the <oov> fox 水a"
        assert tokenizer.convert_ids_to_tokens(ids[1]) == "the"
        assert tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True) == [1, 0, 0, 0, 0, 1]

    def test_without_a_word_vocabulary_there_are_no_word_ids(self):
        plain = ElmoTokenizer(character_lexicon=CharacterLexicon(CHARACTERS), bos_token="<bos>", eos_token="<eos>")
        assert plain.model_input_names == ["input_ids", "attention_mask"]
        assert "word_input_ids" not in plain(["fox"])

    def test_bytes_with_a_word_vocabulary(self, tmp_path):
        words = ["<S>", "</S>", "<UNK>", "the", "x" * 60, "Мама"]
        (tmp_path / "vocab.txt").write_text("".join(f"{word}\r\n" for word in words), encoding="utf-8")
        tokenizer = ElmoTokenizer(word_vocabulary=tmp_path / "vocab.txt")
        encoded = tokenizer("the fox Мама " + "x" * 60)
        assert encoded["word_input_ids"].tolist() == [1, 4, 3, 6, 5, 2]
        assert_identical(encoded["input_ids"], ElmoTokenizer()("the fox Мама " + "x" * 60)["input_ids"])

    def test_save_load_and_pickle(self, tokenizer, tmp_path):
        expected = encode(tokenizer, SENTENCES)
        saved = {Path(path).name for path in tokenizer.save_pretrained(tmp_path)}
        assert {"character_lexicon.json", "vocab.txt", "tokenizer.json"} <= saved
        for other in (
            AutoTokenizer.from_pretrained(tmp_path),
            ElmoTokenizer.from_pretrained(tmp_path),
            pickle.loads(pickle.dumps(tokenizer)),
            copy.deepcopy(tokenizer),
        ):
            for name, values in encode(other, SENTENCES).items():
                assert_identical(values, expected[name], name)
        assert tokenizer.save_vocabulary(str(tmp_path), "other")[0].endswith("other-character_lexicon.json")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"word_vocabulary": WordVocabulary(WORDS)}, "has no <S> and no </S>"),
            ({"word_vocabulary": "/none/vocab.txt"}, "vocab.txt"),
        ],
    )
    def test_vocabularies_that_do_not_fit(self, arguments, message):
        with pytest.raises((ValueError, OSError), match=message):
            ElmoTokenizer(**arguments)

    def test_lexicons_and_vocabularies_that_are_none(self, tmp_path):
        with pytest.raises(ValueError, match="'a' more than once"):
            CharacterLexicon(["a", *CHARACTERS])
        with pytest.raises(ValueError, match="<eow> is missing"):
            CharacterLexicon(CHARACTERS[:-1])
        with pytest.raises(ValueError, match="<UNK> or <oov>"):
            WordVocabulary(["a", "b"])
        with pytest.raises(ValueError, match="line break"):
            WordVocabulary([*WORDS, "a\nb"]).save(tmp_path / "vocab.txt")
        for content in ("[1, 2]", "{}", "no JSON", '{"characters": [1, 2]}', '{"characters": [], "more": 1}'):
            (tmp_path / "character_lexicon.json").write_text(content)
            with pytest.raises(ValueError, match=r"character_lexicon\.json cannot be used"):
                CharacterLexicon.from_file(tmp_path / "character_lexicon.json")

    def test_ids_that_are_not_in_the_lexicon(self, tokenizer):
        ids = tokenizer("fox")["input_ids"]
        ids[1, 2] = 1000
        with pytest.raises(ValueError, match=f"between 0 and {len(CHARACTERS)}"):
            tokenizer.decode(ids)


letters = st.one_of(
    st.sampled_from([entry for entry in CHARACTERS if len(entry) == 1]),
    st.characters(exclude_categories=()),
    st.sampled_from("\0\ud800\U0010ffff\u200d👍"),
)
words = st.one_of(
    st.text(letters, max_size=WIDTH + 5),
    st.sampled_from([*WORDS, "", "<S>", "[PAD]", "<bow>", "x<bos>", "x" * 18, "x" * 19]),
)

PROPERTY_TOKENIZER = ElmoTokenizer(
    max_characters_per_token=WIDTH,
    bos_token="<bos>",
    eos_token="<eos>",
    character_lexicon=CharacterLexicon(CHARACTERS, begin_word="<eow>", end_word="<bow>"),
    word_vocabulary=WordVocabulary(WORDS),
)


@given(st.lists(st.lists(words, max_size=5), min_size=1, max_size=4), st.booleans())
@settings(max_examples=300, deadline=None)
def test_ids_of_any_words_are_those_of_the_original(sentences, with_offsets):
    encoded = PROPERTY_TOKENIZER(sentences, is_split_into_words=True, return_offsets_mapping=with_offsets)
    for sentence, rows, places in zip(sentences, encoded["input_ids"], encoded["word_input_ids"], strict=True):
        expected, expected_places = ids_of(sentence, CHARACTERS, WORDS, WIDTH)
        assert rows.dtype == np.int64
        assert_identical(rows, expected + 1)
        assert places.tolist() == [place + 1 for place in expected_places]


class TestModel:
    def test_word_ids_are_needed_and_have_the_shape_of_the_words(self, model, tokenizer):
        batch = encode(tokenizer, SENTENCES)
        with pytest.raises(ValueError, match=r"`word_input_ids` must have the shape .* but is missing"):
            model(batch["input_ids"])
        with pytest.raises(ValueError, match=r"but is of the shape \(4, 1\)"):
            model(batch["input_ids"], word_input_ids=batch["word_input_ids"][:, :1])

    def test_other_models_leave_word_ids_aside(self):
        config = ElmoConfig.from_size("small", cell_size=4, projection_size=3, filters=[[1, 2]])
        model = ElmoModel(config).eval()
        batch = ElmoTokenizer()("fox", return_tensors="pt")
        word_ids = torch.ones_like(batch["attention_mask"])
        assert_identical(model(**batch, word_input_ids=word_ids)[0], model(**batch)[0])

    def test_padding_changes_nothing_though_its_character_has_a_vector(self, model, tokenizer):
        assert model.embeddings.character_embeddings.weight[tokenizer.character_lexicon.padding].abs().min() > 0
        batch = encode(tokenizer, SENTENCES)
        for side in ("left", "right"):
            longer = encode(tokenizer, [*SENTENCES, ["fox"] * 30], padding_side=side)
            output = model(**longer).last_hidden_state
            assert_zero_at_padding(output, longer["attention_mask"])
            assert_close(
                output[longer["attention_mask"] == 1][: int(batch["attention_mask"].sum())],
                model(**batch).last_hidden_state[batch["attention_mask"] == 1],
                ROUNDING,
            )

    def test_each_distinct_word_once_and_a_narrow_window_are_exact_for_gradients_too(self, model, tokenizer):
        embeddings = copy.deepcopy(model.embeddings).double().requires_grad_(True)
        ids = encode(tokenizer, [["☃", "†", "a", "a", "", "x" * 18, "the"]])["input_ids"][0]
        word_ids = torch.tensor([2, 1, 1, 1, 4, 1, 9, 5, 3])  # "a" twice, as two words
        for rows in (slice(None), slice(1, 4), slice(6, 7)):
            results = []
            for function in (embeddings, embeddings.encode_words):
                embeddings.zero_grad()
                vectors = function(ids[rows], word_ids[rows])
                if vectors.requires_grad:
                    vectors.sin().sum().backward()
                results.append([vectors, *(parameter.grad for parameter in embeddings.parameters())])
            for plain, fast in zip(*results, strict=True):
                if plain is not None:
                    assert_close(fast, plain, 1e-12)

    def test_the_word_of_the_vocabulary_counts(self, model, tokenizer):
        batch = encode(tokenizer, [["fox"]])
        other = batch["word_input_ids"].clone()
        other[0, 1] = 1
        assert_far(model(**batch)[0][0, 1], model(**{**batch, "word_input_ids": other})[0][0, 1], 0.01)

    def test_export(self, model, tokenizer):
        dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
        batch = dict(encode(tokenizer, SENTENCES))
        exported = torch.export.export(model, (), batch, dynamic_shapes=dict.fromkeys(batch, dynamic)).module()
        for sentences in (SENTENCES, [["fox"] * 9], [["水"], ["a", "the"], ["."]] * 3):
            batch = encode(tokenizer, sentences)
            assert_close(exported(**batch)[0], model(**batch)[0], ROUNDING)

    def test_a_new_model_has_zeros_for_padding(self, model):
        new = ElmoModel(ElmoConfig(**{**model.config.to_diff_dict(), "initializer_range": 0.02}))
        table = new.embeddings.word_embeddings.weight
        assert table.shape == (len(WORDS) + 1, 7)
        assert not table[0].any()
        assert 0 < table.abs().max() <= 0.25
        assert new(**new.dummy_inputs).last_hidden_state.shape == (1, 2, 12)

    @pytest.mark.parametrize(
        "fields",
        [
            {"word_embedding_size": 3},
            {"word_embedding_size": 3, "word_vocab_size": 5, "use_token_projection": False},
            {"word_embedding_size": 0, "word_vocab_size": 5},
        ],
    )
    def test_configurations_that_contradict_themselves(self, fields):
        with pytest.raises(StrictDataclassError, match="word_embedding_size"):
            ElmoConfig(**fields)


class TestFolder:
    @pytest.fixture(scope="class")
    @staticmethod
    def head(folder, tokenizer, tmp_path_factory) -> Path:
        torch.manual_seed(0)
        labels = {"id2label": {0: "O", 1: "B-X", 2: "I-X"}, "label2id": {"O": 0, "B-X": 1, "I-X": 2}}
        head = AutoModelForTokenClassification.from_pretrained(folder, **labels)
        path = tmp_path_factory.mktemp("head")
        head.save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    @pytest.mark.parametrize("auto", [AutoModelForSequenceClassification, AutoModelForTokenClassification])
    def test_heads_learn(self, auto, folder, tokenizer):
        head = auto.from_pretrained(folder, num_labels=2, freeze_bilm=False).train()
        batch = encode(tokenizer, SENTENCES)
        is_sequence = auto is AutoModelForSequenceClassification
        labels = torch.ones(len(SENTENCES), dtype=torch.long) if is_sequence else batch["attention_mask"]
        head(**batch, labels=labels).loss.backward()
        gradient = head.elmo.embeddings.word_embeddings.weight.grad
        assert gradient[5].any()
        assert not gradient[0].any()

    def test_pipelines(self, folder, head, tokenizer, model):
        features = pipeline("feature-extraction", model=str(folder), batch_size=2)(TEXTS)
        for text, values in zip(TEXTS, features, strict=True):
            expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
            assert_close(np.array(values)[:, : expected.shape[1]], expected, ROUNDING)
        tags = pipeline("token-classification", model=str(head), ignore_labels=[])(TEXTS)
        assert [[word["word"] for word in words] for words in tags] == [text.split() for text in TEXTS]

    def test_without_the_package(self, folder, head, model, tokenizer, tmp_path):
        found = run_without_the_package(folder, head, tmp_path / "elsewhere")
        assert found["modules"] == []
        batch = tokenizer(REMOTE_TEXTS, padding=True, return_tensors="pt")
        for vectors in found["vectors"]:
            assert_close(vectors, model(**batch).last_hidden_state, ROUNDING)
        saved = tmp_path / "elsewhere" / "saved" / "base"
        assert (saved / "character_lexicon.json").read_bytes() == (folder / "character_lexicon.json").read_bytes()
        assert (saved / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
        assert (saved / "lexicon_elmo.py").is_file()


class Hostile:
    """Asks for a command to be run when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def rewrite(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    """Changes the text of a file."""

    def apply(source: Path) -> None:
        path = source / name
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")

    return apply


def option(**changes: Any) -> Callable[[Path], None]:
    """Changes options of the architecture alone."""
    return lambda source: (source / "tiny.json").write_text(json.dumps(architecture(**changes))) and None


def without_option(section: str, name: str) -> Callable[[Path], None]:
    def apply(source: Path) -> None:
        options = architecture()
        del options[section][name]
        (source / "tiny.json").write_text(json.dumps(options))

    return apply


def weights(change: Callable[[dict[str, Any]], None], name: str = "token_embedder.pkl") -> Callable[[Path], None]:
    """Changes the weights in a file."""

    def apply(source: Path) -> None:
        state: dict[str, Any] = dict(state_dicts(architecture(), len(CHARACTERS), len(WORDS))[name])
        change(state)
        torch.save(state, source / name)

    return apply


def swap_files(source: Path) -> None:
    (source / "encoder.pkl").rename(source / "other")
    (source / "token_embedder.pkl").rename(source / "encoder.pkl")
    (source / "other").rename(source / "token_embedder.pkl")


CHARACTER_TABLE = "char_emb_layer.embedding.weight"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no encoder": (lambda source: (source / "encoder.pkl").unlink(), r"encoder\.pkl does not exist"),
    "no characters": (lambda source: (source / "char.dic").unlink(), r"char\.dic cannot be read: No such file"),
    "no words": (lambda source: (source / "word.dic").unlink(), r"word\.dic cannot be read: No such file"),
    "no settings": (lambda source: (source / "config.json").unlink(), r"no config\.json.*--options"),
    "no architecture": (lambda source: (source / "tiny.json").unlink(), r"\(tiny\.json\) is not beside it.*--options"),
    "several architectures": (
        lambda source: (
            [(source / f"{name}.json").write_text("{}") for name in "ab"] and (source / "tiny.json").unlink()
        ),
        r"Several files .* \(a\.json, b\.json\)",
    ),
    "settings no JSON": (rewrite("config.json", lambda text: text[:-1]), r"config\.json is not valid JSON"),
    "architecture no JSON": (rewrite("tiny.json", lambda text: "[]"), r"tiny\.json must hold a JSON object"),
    "another encoder": (rewrite("tiny.json", lambda text: text.replace('"elmo"', '"lstm"')), "'lstm'"),
    "no sections": (rewrite("tiny.json", lambda text: "{}"), r"encoder\.name in tiny\.json must be 'elmo'.*missing"),
    "words alone": (option(char_dim=0), "whole words, and ElmoModel reads characters"),
    "an option missing": (without_option("encoder", "dim"), r"encoder\.dim is missing"),
    "an option wrong": (option(activation="gelu"), r"token_embedder\.activation must be"),
    "filters too wide": (option(filters=[[21, 3]]), r"token_embedder\.filters holds \[21, 3\], wider"),
    "other sizes": (
        option(projection_dim=7),
        r"projection\.weight has shape \(6, 19\), but the options say \(7, 19\)",
    ),
    "more layers": (option(n_layers=3), r"forward_layer_2.* is missing"),
    "fewer layers": (option(n_layers=1), r"forward_layer_1.* is not known"),
    "no word vectors": (option(word_dim=0), r"word_emb_layer\.embedding\.weight \(9, 7\) is not known"),
    "a number twice": (
        rewrite("char.dic", lambda text: text.replace("b\t1", "b\t0")),
        r"line 2 gives 'b' the number 0",
    ),
    "an entry twice": (rewrite("char.dic", lambda text: text.replace("b\t1", "a\t1")), r"line 2 holds 'a' again"),
    "no tab": (rewrite("char.dic", lambda text: text.replace("b\t1", "b 1")), "line 2 must be an entry, a tab"),
    "no number": (rewrite("word.dic", lambda text: text.replace("\t4", "\tfour")), "line 5 must be an entry"),
    "a gap": (rewrite("word.dic", lambda text: text.replace("the\t4", "the\t400")), "but 4 is missing"),
    "an empty line": (rewrite("word.dic", lambda text: text + "\n"), "line 10 must be an entry"),
    "no padding": (rewrite("char.dic", lambda text: text.replace("<pad>", "<mad>")), "<pad> is missing"),
    "no unknown word": (rewrite("word.dic", lambda text: text.replace("<oov>", "oov")), "has no <oov>"),
    "no text": (lambda source: (source / "char.dic").write_bytes(b"\xff\t0\n"), "is not in UTF-8"),
    "fewer characters": (rewrite("char.dic", lambda text: text.replace(".\t29\n", "", 1)), "but .* is missing"),
    "swapped files": (swap_files, "is not known"),
    "not finite": (weights(lambda state: state[CHARACTER_TABLE].fill_(float("nan")).sum()), "NaN or infinity"),
    "integers": (
        weights(lambda state: state.update({CHARACTER_TABLE: state[CHARACTER_TABLE].long()})),
        "weights are float",
    ),
    "no tensors": (weights(lambda state: state.update(more=[1, 2])), "is a list and no tensor"),
    "another tensor": (weights(lambda state: state.update(more=torch.ones(2))), r"more \(2,\) is not known"),
    "a tensor beyond its storage": (
        weights(lambda state: state.update({CHARACTER_TABLE: torch.ones(1, 1).expand(len(CHARACTERS), 5)})),
        "more numbers than are stored",
    ),
    "a list": (lambda source: torch.save([torch.ones(2)], source / "encoder.pkl"), "must hold named tensors"),
}


class TestBadInput:
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_damage(self, damage, tmp_path):
        source = write_model(tmp_path / "source")
        change, message = DAMAGE[damage]
        change(source)
        self.assert_refused(source, tmp_path / "out", message)

    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize("name", ["token_embedder.pkl", "encoder.pkl"])
    @pytest.mark.parametrize("part", [0, 0.01, 0.1, 0.5, 0.9, 0.999])
    def test_truncated_weights(self, zipped, name, part, tmp_path):
        source = write_model(tmp_path / "source", zipped=zipped)
        content = (source / name).read_bytes()
        (source / name).write_bytes(content[: int(part * len(content))])
        self.assert_refused(source, tmp_path / "out", f"The weights file .*{name}")

    @pytest.mark.parametrize("zipped", [False, True])
    def test_a_pickle_that_runs_a_command(self, zipped, tmp_path):
        source, marker = write_model(tmp_path / "source"), tmp_path / "marker"
        torch.save({"projection.bias": Hostile(marker)}, source / "encoder.pkl", _use_new_zipfile_serialization=zipped)
        error = self.assert_refused(source, tmp_path / "out", r"encoder\.pkl .*nothing in it was executed")
        assert "weights_only" not in str(error)
        assert not marker.exists()

    def assert_refused(self, source: Path, output: Path, message: str) -> ConversionError:
        with pytest.raises(ConversionError, match=message) as caught:
            convert_checkpoint(source, output)
        assert not output.exists()
        return caught.value
