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
from hf_elmo.demo import run_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("demo") / "kept"
    console = Console(record=True, width=120, file=StringIO())
    run_demo(folder, console)
    return console.export_text(), folder


def test_it_says_that_the_weights_are_not_trained(demo):
    text, _ = demo
    assert "not trained" in text


def test_it_prints_the_python_that_it_runs(demo):
    text, _ = demo
    for line in (
        'export_checkpoint("random", "original")',
        'convert_checkpoint("original", "elmo")',
        'model = AutoModel.from_pretrained("elmo")',
        "outputs = model(**inputs, output_hidden_states=True)",
        "weights, gamma = model.layer_weights()",
    ):
        assert line in text


def test_the_token_layer_is_equal_in_both_sentences_and_the_bilm_layers_are_not(demo):
    rows = [line.split("│") for line in demo[0].splitlines() if line.startswith("│")]
    cosines = {row[1].strip(): float(row[4]) for row in rows}
    apart = {row[1].strip(): float(row[5]) for row in rows}
    assert list(cosines) == ["token", "biLM 1", "biLM 2", "mix"]
    assert cosines["token"] == 1
    assert apart["token"] == 0
    assert all(0 < cosines[layer] < 1 and apart[layer] > 0 for layer in ("biLM 1", "biLM 2", "mix"))


def test_it_keeps_an_original_checkpoint_and_a_folder_that_loads(demo):
    _, folder = demo
    assert {path.name for path in (folder / "original").iterdir()} == {"options.json", "weights.hdf5"}
    assert AutoModel.from_pretrained(folder / "elmo").config.projection_size == 128


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
