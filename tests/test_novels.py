"""The example that turns novels into training text."""

from __future__ import annotations

import io
import lzma
import runpy
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shared_files import data_path

SCRIPT = Path(__file__).parents[1] / "examples" / "prepare_novels.py"
WRAPPED = """CHAPTER I

It was _not_ Mr. Weston's fault,[1] said Emma. "Who told you so? I never
did!" He looked half-
past them. No more was said at J. K. Smith's... Then they went.

   A line that is set in
ends here.
"""
RUNNING_ON = (
    "   Она вошла в комнату и т. е. остановилась, глядя на него долго и молча, не говоря ему ни слова о вчерашнем"
    " дне. Он встал!\n   -- Кто там? -- спросила она. -- Никого, -- отвечал А. С. Петров, садясь опять на прежнее"
    " свое место у окна и закрывая глаза рукой.\n"
)


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the example with arguments."""

    def run(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return run


def archive(path: Path, works: dict[str, str]) -> Path:
    """An archive of works."""
    with tarfile.open(path, "w:xz") as file:
        for name, text in works.items():
            content = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def test_novels_become_one_sentence_a_line(
    tmp_path: Path, prepare: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    source = archive(tmp_path / "novels.tar.xz", {"b.txt": "The end.", "a.txt": WRAPPED})
    prepare(source, "--output", tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text().splitlines() == [
        "CHAPTER I",
        "It was not Mr. Weston 's fault , said Emma .",
        '" Who told you so ?',
        'I never did ! "',
        "He looked half-past them .",
        "No more was said at J. K. Smith 's ...",
        "Then they went .",
        "A line that is set in ends here .",
        "The end .",
    ]
    assert "9 sentences, 55 words" in capsys.readouterr().out


def test_other_languages_and_packed_output(tmp_path: Path, prepare: Callable[..., None]) -> None:
    (tmp_path / "work.txt").write_text(RUNNING_ON)
    prepare(tmp_path / "work.txt", "--output", tmp_path / "text.xz", "--word-splitter", "punctuation")
    assert lzma.decompress((tmp_path / "text.xz").read_bytes()).decode().splitlines() == [
        "Она вошла в комнату и т . е . остановилась , глядя на него долго и молча , не говоря ему ни слова о"
        " вчерашнем дне .",
        "Он встал !",
        "-- Кто там ? -- спросила она .",
        "-- Никого , -- отвечал А . С . Петров , садясь опять на прежнее свое место у окна и закрывая глаза рукой .",
    ]


def test_nothing_half_written_stays(tmp_path: Path, prepare: Callable[..., None]) -> None:
    (tmp_path / "good.txt").write_text("A good text. " * 100)
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xff")
    output = tmp_path / "out"
    output.mkdir()
    with pytest.raises(UnicodeDecodeError):
        prepare(tmp_path / "good.txt", tmp_path / "bad.txt", "--output", output / "text.txt")
    assert list(output.iterdir()) == []


@pytest.mark.parametrize(("corpus", "works"), [("litbank_text", 10), ("russian_text", 5)])
def test_the_corpora_split_into_sentences_of_a_likely_length(corpus: str, works: int) -> None:
    novels = runpy.run_path(str(SCRIPT))
    texts = list(novels["texts"]([data_path(corpus, "dev.tar.xz")]))
    assert len(texts) == works
    lengths = [
        len(sentence.split())
        for text in texts
        for paragraph in novels["paragraphs"](text)
        for sentence in novels["sentences"](paragraph)
    ]
    words = sum(len(text.split()) for text in texts)
    assert abs(sum(lengths) - words) < 0.01 * words, "words were lost"
    assert 10 < words / len(lengths) < 25
