"""`hf-elmo demo` shows what it runs, and what it shows is what it ran."""

import re
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console
from transformers import AutoModel

from hf_elmo import demo as demo_module
from hf_elmo.cli import app
from hf_elmo.demo import SENTENCES, WORD, demo_sentences, run_demo

NOUNS, VERBS = range(3), range(3, 6)


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("demo") / "kept"
    console = Console(record=True, width=120, file=StringIO())
    run_demo(folder, console)
    return console.export_text(), folder


def heat_maps(text: str) -> list[list[list[float]]]:
    rows = [
        [float(value) for value in re.findall(r"\d\.\d\d", line)]
        for line in text.splitlines()
        if re.match(r"\(\d\) .* \d\.\d\d$", line)
    ]
    assert len(rows) == 2 * len(SENTENCES)
    return [rows[: len(SENTENCES)], rows[len(SENTENCES) :]]


def test_it_prints_the_python_that_it_runs(demo):
    text, _ = demo
    for line in (
        'folder = bundled_model("elmo-tiny-english")',
        "model = AutoModel.from_pretrained(folder)",
        "layers = model(**inputs, output_hidden_states=True).hidden_states",
        f'embedder.nearest(sentences[row], "{WORD}", others, top_k=3)',
        'export_checkpoint(folder, "original")',
        'convert_checkpoint("original", "elmo")',
    ):
        assert line in text


def test_the_token_layer_sees_one_word_and_the_top_layer_two_meanings(demo):
    token_layer, top_layer = heat_maps(demo[0])
    assert all(value == 1 for row in token_layer for value in row)
    for alike, other in ((NOUNS, VERBS), (VERBS, NOUNS)):
        for row in alike:
            assert min(top_layer[row][column] for column in alike) > max(top_layer[row][column] for column in other)


def test_the_nearest_words_have_the_meaning_of_the_sentence(demo):
    text, _ = demo
    parts = text.split("4. The nearest words")[1].split("5. What")[0].split(SENTENCES[3])
    found = [re.findall(r"^ +0\.\d\d +(.+)$", part, re.MULTILINE) for part in parts]
    assert [len(lines) for lines in found] == [3, 3]
    assert all(line.strip() in demo_sentences() for lines in found for line in lines)
    assert any(f" {WORD} " in line for line in found[0])


def test_the_sentences_are_few_hundred_different_ones_with_the_word_in_some():
    sentences = demo_sentences()
    assert 200 < len(sentences) == len(set(sentences)) < 1000
    assert sum(WORD in sentence.split() for sentence in sentences) >= 10
    assert not set(sentences) & set(SENTENCES)


def test_the_way_to_the_original_layout_and_back_changes_nothing(demo):
    text, folder = demo
    difference = float(re.search(r"there and back: (\S+)", text).group(1))
    assert difference < 5e-6
    assert {path.name for path in (folder / "original").iterdir()} == {"options.json", "weights.hdf5"}
    assert AutoModel.from_pretrained(folder / "elmo").config.projection_size == 64


def test_it_leaves_a_folder_with_files_alone(demo):
    _, folder = demo
    with pytest.raises(ValueError, match=r"exists already; name an empty or a new folder"):
        run_demo(folder, Console(quiet=True))


def test_the_command_that_keeps_the_files_is_one(monkeypatch):
    monkeypatch.setattr(demo_module, "_run", lambda work, console: None)
    console = Console(record=True, width=120, file=StringIO())
    run_demo(console=console)
    arguments = re.search(r"`hf-elmo demo (.+)` keeps them", console.export_text()).group(1).split()
    context = typer.main.get_command(app).commands["demo"].make_context("demo", arguments)
    assert context.params == {"output": Path("DIR")}
