"""Vectors of text files reach the word vectors of a head."""

import gzip
import lzma
from pathlib import Path

import pytest
import torch

from hf_elmo import ElmoForTokenClassification, ElmoTokenizer, load_word_vectors
from hf_elmo.lexicon_elmo import WordVocabulary
from hf_elmo.pretraining.vocabulary import build_vocabulary
from tests.assertions import assert_close, assert_far, assert_identical
from tests.tiny_models import tiny_model

WORDS = ["<S>", "</S>", "<UNK>", "the", "The", "Мама", "МЫЛА", "naïve", "missing"]
GLOVE = """the 0.5 -1 2e-1
The 1 1 1
мама 0.25 0 0
мыла 3 2 1
МЫЛА 1 2 3
naïve 0 0 -0.125
<unk> 9 9 9
other 7 7 7
"""
EXPECTED = {
    "<UNK>": [9, 9, 9],
    "the": [0.5, -1, 0.2],
    "The": [1, 1, 1],
    "Мама": [0.25, 0, 0],
    "МЫЛА": [1, 2, 3],
    "naïve": [0, 0, -0.125],
}


def write(path: Path, text: str = GLOVE) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def assert_expected(found, words: list[str] = WORDS) -> None:
    assert found.vectors.shape == (len(words) + 1, 3)
    assert found.vectors.dtype == torch.float32
    for row, word in enumerate(words, start=1):
        assert bool(found.found[row]) == (word in EXPECTED), word
        assert_close(found.vectors[row], EXPECTED.get(word, [0, 0, 0]), 1e-7, word)
    assert not found.found[0]
    assert found.coverage == pytest.approx(sum(word in EXPECTED for word in words) / len(words))


@pytest.mark.parametrize("words", [WORDS, WORDS[::-1]])
def test_a_word_has_its_vector_or_that_of_its_lower_case_form(words: list[str], tmp_path: Path) -> None:
    assert_expected(load_word_vectors(write(tmp_path / "glove.txt"), words), words)


@pytest.mark.parametrize(
    "text",
    [
        f"8 3\n{GLOVE}",  # word2vec
        GLOVE.replace("\n", " \n"),  # fastText
        GLOVE.replace(" ", "\t"),
        GLOVE.replace("\n", "\r\n"),
        "\ufeff" + GLOVE,
        GLOVE.rstrip("\n"),
        GLOVE.replace(" 1", "  1"),
        f"{GLOVE}the 4 4 4\nThe 5 5 5\n",  # the first one counts
        f"other 1 2 3\n. . . 1 2 3\nthe end 4 4 4\n{GLOVE}",  # entries with blanks are no words
    ],
)
def test_files_are_written_in_many_ways(text: str, tmp_path: Path) -> None:
    assert_expected(load_word_vectors(write(tmp_path / "vectors.txt", text), WORDS))


def test_files_may_be_packed(tmp_path: Path) -> None:
    for name, packed in (("a.gz", gzip.compress(GLOVE.encode())), ("a.xz", lzma.compress(GLOVE.encode()))):
        (tmp_path / name).write_bytes(packed)
        assert_expected(load_word_vectors(tmp_path / name, WORDS))


def test_a_head_reads_them_by_the_words_of_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = ElmoTokenizer(word_vocabulary=WordVocabulary(WORDS))
    settings = {"task_embedding_size": 3, "word_vocab_size": len(WORDS), "elmo_at_input": False}
    model = tiny_model(ElmoForTokenClassification, **settings)
    table = model.task_network.embeddings.weight
    before = table.detach().clone()
    found = load_word_vectors(write(tmp_path / "glove.txt"), tokenizer, model)
    assert_expected(found)
    assert_identical(table[found.found], found.vectors[found.found])
    assert_identical(table[~found.found], before[~found.found])
    assert table.requires_grad
    read: list[torch.Tensor] = []
    model.task_network.encoder.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    model(**tokenizer("Мама МЫЛА неизвестно", return_tensors="pt"))
    assert_close(read[0][0, 1:4], [EXPECTED["Мама"], EXPECTED["МЫЛА"], EXPECTED["<UNK>"]], 1e-7)
    model.save_pretrained(tmp_path / "saved")
    again = ElmoForTokenClassification.from_pretrained(tmp_path / "saved")
    assert_identical(again.task_network.embeddings.weight, table)


def test_the_words_of_a_data_set_make_a_vocabulary(tmp_path: Path) -> None:
    words = build_vocabulary([["the", "Мама"], ["the", "naïve"]])
    found = load_word_vectors(write(tmp_path / "glove.txt"), WordVocabulary(words))
    assert_expected(found, words)


def test_vectors_take_the_type_of_the_model(tmp_path: Path) -> None:
    settings = {"task_embedding_size": 3, "word_vocab_size": len(WORDS)}
    model = tiny_model(ElmoForTokenClassification, **settings).to(torch.bfloat16)
    load_word_vectors(write(tmp_path / "glove.txt"), WORDS, model)
    assert_close(model.task_network.embeddings.weight[5], EXPECTED["The"], 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "vectors.txt is empty: it holds no word vectors"),
        ("the 1 2 3\n\nThe 1 2 3\n", "vectors.txt, line 2, is empty"),
        ("the 1 2 3\nThe 1 2\n", "vectors.txt, line 2, has 2 numbers behind 'The', but the vectors .* have 3"),
        ("the 1 2 3\nThe 1 2 3 4\n", "vectors.txt, line 2, has 4 numbers behind 'The'"),
        ("the 1 2 3\nThe\n", "vectors.txt, line 2, has 0 numbers behind 'The'"),
        ("2 3\nthe 1 2\n", "vectors.txt, line 2, has 2 numbers behind 'the', but the vectors .* have 3"),
        ("the 1 2 3\nThe a b c\n", "vectors.txt, line 2, has no 3 numbers behind 'The': a b c"),
        ("the 1 nan 3\n", "vectors.txt, line 1, has no 3 numbers behind 'the': 1 nan 3"),
        ("the 1 2 3\nThe 1 \0 3\n", "vectors.txt, line 2, is no text with word vectors; write binary"),
        ("x 1 2 3\ny 1 2 3\n", "vectors.txt has a vector for none of the 9 words"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_word_vectors(write(tmp_path / "vectors.txt", text), WORDS)


def test_a_damaged_file_and_one_that_is_not_there(tmp_path: Path) -> None:
    packed = gzip.compress((GLOVE * 100).encode())
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"cut\.gz is damaged or incomplete after line \d+"):
        load_word_vectors(tmp_path / "cut.gz", WORDS)
    with pytest.raises(FileNotFoundError):
        load_word_vectors(tmp_path / "none.txt", WORDS)


@pytest.mark.parametrize("text", [GLOVE, f"8 3\n{GLOVE}"])
def test_what_does_not_fit_the_model_changes_nothing(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "glove.txt", text)
    with pytest.raises(ValueError, match="The tokenizer has no word vocabulary"):
        load_word_vectors(path, ElmoTokenizer())
    with pytest.raises(ValueError, match="This ElmoForTokenClassification has no word vectors"):
        load_word_vectors(path, WORDS, tiny_model(ElmoForTokenClassification))
    settings = {"task_embedding_size": 4, "word_vocab_size": len(WORDS)}
    model = tiny_model(ElmoForTokenClassification, **settings)
    before = model.task_network.embeddings.weight.detach().clone()
    with pytest.raises(ValueError, match=r"glove.txt has vectors of 3 numbers, but the model has room for 4"):
        load_word_vectors(path, WORDS, model)
    with pytest.raises(ValueError, match="The tokenizer has 10 words, but the model has vectors of 9"):
        load_word_vectors(path, [*WORDS, "more"], model)
    assert_identical(model.task_network.embeddings.weight, before)
    assert_far(before[1:], torch.zeros_like(before[1:]), 0.1)


def test_progress_is_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    load_word_vectors(write(tmp_path / "glove.txt"), WORDS, show_progress=True)
    assert "Reading glove.txt: 100%" in capsys.readouterr().err
    load_word_vectors(tmp_path / "glove.txt", WORDS)
    assert "glove" not in capsys.readouterr().err
