"""Models of NLPL, RusVectores and CLARIN: the zip as it is, with its vocabulary and what it says of itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from hf_elmo.conversion import convert_checkpoint

from .checkpoints import write_checkpoint
from .shared_files import fixture_path
from .test_cli import assert_succeeds
from .test_conversion import assert_converts, assert_fails


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder as NLPL has them."""
    folder = write_checkpoint(tmp_path / "source")
    (folder / "weights.hdf5").rename(folder / "model.hdf5")
    (folder / "meta.json").write_text("{}")
    return folder


def card_of(source: Path, output: Path, metadata: Any) -> str:
    """The README of a model with given metadata."""
    (source / "meta.json").write_text(json.dumps(metadata))
    convert_checkpoint(source, output)
    return (output / "README.md").read_text()


def test_the_plain_command(tmp_path: Path) -> None:
    archive = fixture_path("nlpl_zip", "900.zip")
    text = assert_succeeds("convert", archive, tmp_path / "elmo")
    assert "in the archive 900.zip; format nlpl" in text
    card = (tmp_path / "elmo" / "README.md").read_text()
    for row in (
        "| Corpus | Synthetic test data |",
        "| Language | nob |",
        "| Tokens in the corpus | 988,000,000 |",
        "| Lemmatized | no |",
        "| Address of the tool | https://github.com/ltgoslo/simple_elmo_training |",
    ):
        assert row in card
    assert "stop words" not in card.lower()
    words = (tmp_path / "elmo" / "training_vocab.txt").read_text().split()
    assert words[:2] == ["<S>", "</S>"]
    assert len(words) == 17


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.txt.gz"])
def test_the_vocabulary_is_kept_whatever_is_in_it(name: str, source: Path, tmp_path: Path) -> None:
    (source / name).write_bytes(b"\xff\x00 no words")
    report = assert_converts(source, tmp_path / "elmo")
    assert (tmp_path / "elmo" / f"training_{name}").read_bytes() == b"\xff\x00 no words"
    assert name in report.files


def test_metadata_cannot_shape_the_card(source: Path, tmp_path: Path) -> None:
    hostile = "a | b\n\n# Title <script>[x](y) `c`"
    metadata = {"corpus": [{"description": hostile}, {"description": 3}, None], "id": "x" * 10_000, "creators": "me"}
    card = card_of(source, tmp_path / "elmo", metadata)
    assert "| Corpus | a \\| b # Title \\<script\\>\\[x\\](y) \\`c\\`; 3 |" in card
    assert "x" * 500 + " |" in card
    assert "x" * 501 not in card


@pytest.mark.parametrize("metadata", [{}, {"corpus": 3, "algorithm": [[]], "iterations": None, "id": {}}])
def test_metadata_that_say_nothing(metadata: Any, source: Path, tmp_path: Path) -> None:
    assert "Language, training data and authors: not stated" in card_of(source, tmp_path / "elmo", metadata)


def test_damaged_metadata(source: Path, tmp_path: Path) -> None:
    (source / "meta.json").write_text("{")
    assert_fails(r"meta\.json is not valid JSON", source, tmp_path / "elmo")
    convert_checkpoint(source, tmp_path / "elmo", format="allennlp")
