"""Text becomes sentences: from every kind of file, from any place on, and never all of it at once."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict, IterableDataset

from hf_elmo import ElmoTokenizer
from hf_elmo.pretraining import corpus as module
from hf_elmo.pretraining.corpus import Corpus
from tests.language_models import SENTENCES, TEXT, write_lines

CONTENT = "".join(f"{line}\n" for line in TEXT).encode()


def numbered(path: Path, count: int) -> Path:
    """A file of sentences that are numbers."""
    return write_lines(path, [f"sentence number {place} ." for place in range(count)])


def assert_refused(message: str, corpus: Any) -> None:
    """Checks that reading a corpus ends with a message that names the file and the line."""
    with pytest.raises(ValueError, match=message):
        list(corpus)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that tests cross many of them."""
    monkeypatch.setattr(module, "PLAIN_BLOCK", 3)
    monkeypatch.setattr(module, "SHUFFLED_BLOCK", 7)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.txt", CONTENT),
        ("packed.gz", gzip.compress(CONTENT, mtime=0)),
        ("packed.xz", lzma.compress(CONTENT)),
        ("gzip-without-a-suffix", gzip.compress(CONTENT, mtime=0)),
        ("two-members.gz", gzip.compress(CONTENT[:40], mtime=0) + gzip.compress(CONTENT[40:], mtime=0)),
        ("windows.txt", CONTENT.replace(b"\n", b"\r\n")),
        ("with-a-mark.txt", b"\xef\xbb\xbf" + CONTENT),
        ("no-last-line-break.txt", CONTENT.rstrip(b"\n")),
        ("blank-lines.txt", b"\n  \n" + CONTENT.replace(b"\n", b"\n\n\t\n")),
    ],
)
def test_a_file_gives_its_sentences(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert list(Corpus([tmp_path / name])) == SENTENCES
    assert list(Corpus(tmp_path / name)) == SENTENCES


def test_files_of_folders_and_patterns_come_sorted(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md", ".hidden"):
        (tmp_path / name).write_text(f"{name}\n")
    assert list(Corpus([tmp_path])) == [["a.txt"], ["b.txt"], ["c.md"]]
    assert list(Corpus([str(tmp_path / "*.txt")])) == [["a.txt"], ["b.txt"]]
    assert list(Corpus([tmp_path / "c.md", tmp_path / "a.txt"])) == [["c.md"], ["a.txt"]]


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_hold_text_or_words(streaming: bool) -> None:
    texts = Dataset.from_dict({"sentence": [f"{TEXT[0]}\n\n{TEXT[1]}\n", "", *TEXT[2:]]})
    words = Dataset.from_dict({"text": [*SENTENCES, []]})
    for dataset, column in ((texts, "sentence"), (words, "text")):
        rows = dataset.to_iterable_dataset() if streaming else dataset
        assert list(Corpus(rows, text_column=column)) == SENTENCES


def test_a_generator_behind_a_dataset_is_streamed() -> None:
    rows = IterableDataset.from_generator(lambda: ({"text": line} for line in TEXT))
    assert list(Corpus(rows)) == SENTENCES


def test_words_are_split_as_asked(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text", ["Don't panic, Ann."])
    assert list(Corpus(path)) == [["Don't", "panic,", "Ann."]]
    treebank = [["Do", "n't", "panic", ",", "Ann", "."]]
    assert list(Corpus(path, "treebank")) == treebank
    assert list(Corpus(path, ElmoTokenizer(word_splitter="treebank"))) == treebank
    with pytest.raises(ValueError, match="word_splitter 'klingon' is unknown"):
        Corpus(path, "klingon")


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("kind", ["plain", "gz", "xz", "dataset", "streaming dataset"])
@pytest.mark.usefixtures("small_blocks")
def test_a_position_goes_on_where_it_was(tmp_path: Path, kind: str, seed: int | None) -> None:
    sources: Any = [numbered(tmp_path / "a", 25), write_lines(tmp_path / "b", ["", *TEXT, ""])]
    for path in sources:
        if kind in ("gz", "xz"):
            path.write_bytes((gzip if kind == "gz" else lzma).compress(path.read_bytes()))
    if "dataset" in kind:
        sources = Dataset.from_dict({"text": [line for path in sources for line in path.read_text().splitlines()]})
        sources = sources.to_iterable_dataset() if kind == "streaming dataset" else sources
    corpus = Corpus(sources)
    whole = list(corpus.iterate(epoch=2, seed=seed))
    assert len(whole) == 25 + len(TEXT)
    for taken in range(len(whole) + 1):
        sentences = corpus.iterate(epoch=2, seed=seed)
        assert list(islice(sentences, taken)) == whole[:taken]
        position = json.loads(json.dumps(sentences.state_dict()))
        assert list(corpus.iterate(seed=seed, position=position)) == whole[taken:], f"after {taken}"


@pytest.mark.usefixtures("small_blocks")
def test_an_order_belongs_to_a_seed_and_an_epoch(tmp_path: Path) -> None:
    corpus = Corpus([numbered(tmp_path / "a", 30), numbered(tmp_path / "b", 30)])
    plain = list(corpus)
    orders = [list(corpus.iterate(epoch, seed)) for epoch, seed in ((0, 1), (0, 1), (1, 1), (0, 2))]
    assert orders[0] == orders[1]
    assert all(sorted(order) == sorted(plain) for order in orders)
    assert all(one != other for one, other in zip([plain, *orders[1:]], orders[1:], strict=False))
    files = Corpus([write_lines(tmp_path / f"file{number}", [str(number)]) for number in range(6)])
    assert len({str(list(files.iterate(epoch, seed=1))) for epoch in range(4)}) > 1, "files come in the same order"


@pytest.mark.parametrize("seed", [None, 5])
def test_the_parts_of_a_corpus_are_the_corpus(tmp_path: Path, seed: int | None) -> None:
    corpus = Corpus(numbered(tmp_path / "a", 31))
    parts = [list(corpus.shard(index, 3).iterate(seed=seed)) for index in range(3)]
    assert [len(part) for part in parts] == [11, 10, 10]
    whole = list(corpus.iterate(seed=seed))
    assert [parts[place % 3][place // 3] for place in range(31)] == whole


def test_a_corpus_travels_to_another_process(tmp_path: Path) -> None:
    corpus = Corpus(write_lines(tmp_path / "text"), "treebank")
    expected = list(corpus)
    assert list(pickle.loads(pickle.dumps(corpus))) == expected


def test_progress_ends_at_the_size(tmp_path: Path) -> None:
    corpus = Corpus([write_lines(tmp_path / "a"), write_lines(tmp_path / "b")])
    sentences = iter(corpus)
    seen = [sentences.progress() for _ in sentences]
    assert seen == sorted(set(seen))
    assert seen[-1] == corpus.size == 2 * len(CONTENT)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = numbered(tmp_path / "large", 60_000)
    tracemalloc.start()
    count = sum(1 for _ in Corpus(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 60_000
    assert peak < path.stat().st_size / 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "text holds no sentence"),
        (b"\n \n\t\n", "text holds no sentence"),
        (gzip.compress(b"", mtime=0), "text holds no sentence"),
        (b"good\ngood\nb\xe4d\n", "text, line 3, is no text in UTF-8"),
        ("one\n".encode("utf-16"), "text, line 1, is no text in UTF-8"),
        (b"good\n\x00\x01\x02", "text, line 2, is no text: it holds a zero byte"),
        (b"PK\x03\x04\x14\x00\x00", "text, line 1, is no text"),
        (gzip.compress(b"good\n" * 1000, mtime=0)[:-20], "text is damaged or incomplete after line"),
        (gzip.compress(b"good\n" * 1000, mtime=0)[:30] + b"\xff" * 30, "text is damaged or incomplete after line"),
        (lzma.compress(b"good\n" * 1000)[:-40], "text is damaged or incomplete after line"),
        (lzma.compress(b"good\n" * 1000)[:60] + b"\xff" * 40, "text is damaged or incomplete after line"),
    ],
)
def test_what_is_no_text_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "text").write_bytes(content)
    assert_refused(message, Corpus(tmp_path / "text"))


def test_an_empty_file_among_others_is_passed_over(tmp_path: Path) -> None:
    files = [write_lines(tmp_path / "a", []), write_lines(tmp_path / "b"), write_lines(tmp_path / "c", [])]
    assert list(Corpus(files)) == SENTENCES


def test_a_line_without_an_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 2**20)
    (tmp_path / "text").write_bytes(b"good\n" + b"word " * 2**18)
    assert_refused("text, line 2, is longer than 1 MiB", Corpus(tmp_path / "text"))


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    for source, message in (
        ([tmp_path / "missing"], "There is no file .*missing"),
        ([str(tmp_path / "*.gz")], r"There is no file .*\*\.gz"),
        ([tmp_path], "holds no files"),
        ([], "No file was given"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            Corpus(source)


def test_datasets_that_do_not_fit_are_told() -> None:
    dataset = Dataset.from_dict({"id": [1, 2], "line": ["a", "b"]})
    with pytest.raises(ValueError, match="no column 'text': text_column must be one of id, line"):
        Corpus(dataset)
    with pytest.raises(ValueError, match="choose one of train"):
        Corpus(DatasetDict(train=dataset), text_column="line")
    assert_refused("Row 0 of the dataset holds neither text nor a list of words", Corpus(dataset, text_column="id"))
    rows = IterableDataset.from_generator(lambda: iter([{"text": "a"}, {"text": 1.5}]))
    assert_refused("Row 1 of the dataset", Corpus(rows))


def test_a_position_of_other_text_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text")
    sentences = Corpus(path).iterate()
    next(sentences)
    position = sentences.state_dict()
    with pytest.raises(ValueError, match="order of seed None, not 3"):
        Corpus(path).iterate(seed=3, position=position)
    write_lines(path, [*TEXT, "one more"])
    with pytest.raises(ValueError, match=r"other text than .*give the same files, unchanged"):
        Corpus(path).iterate(position=position)
