"""`hf-elmo embed`, `neighbors` and `plot`: what people see, and the exit codes."""

import io
import os
import re
import signal
import subprocess
import sys
import time
import xml.dom.minidom
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

from hf_elmo import ElmoEmbedder, ElmoForTokenClassification, ElmoTokenizer
from hf_elmo.cli import app
from tests.embedding_jobs import contents, corpus_lines, model_folder, write_lines
from tests.saved_folders import varied_model

SENTENCES = [
    "the bank of the river rose",
    "shares of the bank fell",
    "a bank lent money",
    "the river bank was green",
    "Bank of England",
]
RUN = [sys.executable, "-m", "hf_elmo.cli"]


def run(*arguments: object, **options) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"}, **options)


def assert_exits(code: int, message: str, *arguments: object) -> None:
    """Checks the exit code and that stderr has one message, without a traceback."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "elmo")


@pytest.fixture
def source(tmp_path) -> Path:
    return write_lines(tmp_path / "in.txt", SENTENCES)


class TestEmbed:
    def test_the_help_shows_examples_and_every_exit_code(self):
        text = re.sub(r"\s+", " ", run("embed", "--help").stdout)
        assert "Examples" in text
        for code in (
            "0: done",
            "1: the input or the model",
            "2: the command is wrong",
            "3: OUTPUT belongs",
            "4: it could",
        ):
            assert code in text
        assert "129, 130, 143: it was stopped" in text

    def test_a_run_says_what_it_did_and_a_second_that_nothing_is_left(self, model, source, tmp_path):
        arguments = ("embed", source, tmp_path / "v.parquet", "--model", model, "--pool", "mean", "--layers", "0,2")
        first = run(*arguments)
        assert first.exit_code == 0, first.output
        assert "v.parquet: 5 lines, 23 words, in " in first.stdout.replace("\n", "")
        assert first.stderr == ""
        before = contents(tmp_path)
        assert sorted(before) == ["in.txt", "v.parquet", "v.parquet.manifest.json"]
        again = run(*arguments)
        assert again.exit_code == 0
        assert "is complete already: 5 lines, 23 words." in again.stdout.replace("\n", "")
        assert contents(tmp_path) == before

    def test_standard_input_is_an_input(self, model, tmp_path):
        arguments = ["embed", "-", tmp_path / "v.npz", "--model", model, "--input-format", "jsonl", "--column", "s"]
        result = run(*arguments, input=b'{"s": "a b"}\n\n{"s": ["c d"]}\n')
        assert result.exit_code == 0, result.output
        assert np.load(tmp_path / "v.npz")["offsets"].tolist() == [0, 2, 2, 3]

    def test_exit_codes(self, model, source, tmp_path):
        output = tmp_path / "v.hdf5"
        assert_exits(1, "cannot be read: No such file", "embed", tmp_path / "gone", output, "--model", model)
        assert_exits(1, "There is no model nowhere", "embed", source, output, "--model", "nowhere")
        assert run("embed", source).exit_code == 2
        assert run("embed", source, output, "--model", model).exit_code == 0
        assert_exits(3, "layers was 'mix' and is now 'all'", "embed", source, output, "-m", model, "--layers", "all")
        assert_exits(4, "cannot be written", "embed", source, source / "v.hdf5", "--model", model)

    @pytest.mark.parametrize(
        ("message", "options"),
        [
            ("float64", ("--dtype", "float64")),
            ("'foo' is unknown", ("--layers", "foo")),
            ("no layer 3", ("--layers", "3")),
            ("'foo' is unknown", ("--pool", "foo")),
            ("--on-error must be stop or skip", ("--on-error", "foo")),
            ("--num-proc must be 1 or more", ("--num-proc", "0")),
            ("--engine must be local or ray", ("--engine", "foo")),
            ("are for --engine ray", ("--gpus", "1")),
            ("must be 1 or more", ("--shard-lines", "0")),
            ("'foo' is unknown", ("--input-format", "foo")),
            ("--column is for", ("--column", "a")),
            ("The device cuda:99 cannot be used here", ("--device", "cuda:99")),
        ],
    )
    def test_a_wrong_option_is_a_wrong_command(self, message, options, model, source, tmp_path):
        assert_exits(2, message, "embed", source, tmp_path / "v.hdf5", "--model", model, *options)
        assert contents(tmp_path).keys() == {"in.txt"}

    def test_an_unknown_ending_is_a_wrong_command(self, model, source, tmp_path):
        assert_exits(2, "must end in", "embed", source, tmp_path / "v.xyz", "--model", model)

    def test_skipped_lines_are_counted_and_named(self, model, tmp_path):
        (tmp_path / "in.txt").write_bytes(b"good\n" + b"\xff\n" * 7)
        arguments = ("embed", tmp_path / "in.txt", tmp_path / "v.hdf5", "--model", model)
        assert_exits(1, "Line 2 of ", *arguments)
        result = run(*arguments, "--on-error", "skip")
        assert result.exit_code == 0
        assert "Skipped, without vectors: 7\n  line 2 is not valid UTF-8" in result.stdout
        assert "  line 6 is" in result.stdout
        assert "  line 7 is" not in result.stdout

    def signalled(self, number: int, before, folder: Path, model: Path) -> tuple[list, subprocess.Popen, str]:
        """A run that gets a signal when it has written a shard; `before` is what it had done with such signals."""
        source = write_lines(folder / "in.txt", corpus_lines(1200))
        arguments = ["embed", source, folder / "v.hdf5", "--model", model, "--shard-lines", "20", "--threads", "1"]
        process = subprocess.Popen(
            [*RUN, *map(str, arguments)],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(number, before),
        )
        while process.poll() is None and not list(folder.glob("v.hdf5.unfinished/part-*.safetensors")):
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        return arguments, process, errors

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_run_that_is_stopped_goes_on(self, number, code, model, tmp_path):
        # A shell's background jobs ignore SIGINT.
        arguments, process, errors = self.signalled(number, signal.SIG_DFL, tmp_path, model)
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        assert list(tmp_path.rglob("*.tmp")) == []
        result = run(*arguments)
        assert result.exit_code == 0, result.output
        assert "of the lines were done by an earlier run" in result.stdout

    def test_a_signal_that_is_ignored_stays_so_as_with_nohup(self, model, tmp_path):
        _, process, errors = self.signalled(signal.SIGHUP, signal.SIG_IGN, tmp_path, model)
        assert process.returncode == 0, errors
        assert (tmp_path / "v.hdf5").is_file()

    def test_a_terminal_shows_words_a_second_and_the_time_left(self, model, tmp_path):
        pty = pytest.importorskip("pty")
        source = write_lines(tmp_path / "in.txt", corpus_lines(200))
        arguments = ["embed", source, tmp_path / "v.hdf5", "--model", model, "--shard-lines", "10"]
        for quiet in (False, True):
            ours, theirs = pty.openpty()
            command = [*RUN, *map(str, arguments), "--overwrite", *(["--quiet"] if quiet else [])]
            environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
            os.close(theirs)
            shown = b""
            while True:
                try:
                    data = os.read(ours, 4096)
                except OSError:
                    break
                shown += data
                if not data:
                    break
            process.communicate(timeout=60)
            assert process.returncode == 0
            if quiet:
                assert shown == b""
            else:
                assert b"words/s" in shown
                assert b" left" in shown
                assert b"Embedding" in shown


class TestNeighbors:
    def test_each_occurrence_comes_with_its_neighbours(self, model, source):
        result = run("neighbors", model, source, "--word", "bank", "--top", 2, "--occurrences", 3)
        assert result.exit_code == 0, result.output
        blocks = result.stdout.strip("\n").split("\n\n")
        assert [block.split()[1] for block in blocks] == ["1", "2", "3"]
        expected = ElmoEmbedder.from_pretrained(model).nearest(SENTENCES[0], "bank", SENTENCES, top_k=2)
        rows = [row.split() for row in blocks[0].splitlines()[1:]]
        assert [(float(row[0]), int(row[1])) for row in rows] == [
            (round(neighbor.similarity, 3), neighbor.sentence + 1) for neighbor in expected
        ]

    def test_the_words_stand_below_each_other(self, model, source):
        result = run("neighbors", model, source, "--word", "bank", "--same-word", "--ignore-case", "--occurrences", 1)
        lines = result.stdout.rstrip("\n").splitlines()
        assert len(lines) == 5
        assert len({line.lower().rindex("bank") if "green" not in line else line.index("bank") for line in lines}) == 1

    def test_it_is_coloured(self, model):
        from hf_elmo.embedding.showing import show_occurrences

        found = ElmoEmbedder.from_pretrained(model).occurrences("bank", lambda: SENTENCES, most=1)
        page = io.StringIO()
        show_occurrences(found, Console(file=page, force_terminal=True, color_system="standard", width=100))
        assert "\x1b[1;30;43mbank\x1b[0m" in page.getvalue()
        assert "\x1b[1;36m" in page.getvalue()

    def test_errors(self, model, source):
        assert_exits(1, "'Bank' does", "neighbors", model, write_lines(source, ["Bank"]), "--word", "bank")
        assert_exits(1, "name a file", "neighbors", model, "-", "--word", "bank")
        assert_exits(1, "one layer", "neighbors", model, source, "--word", "Bank", "--layer", "all")


class TestPlots:
    @pytest.fixture(autouse=True)
    def _needs_matplotlib(self):
        pytest.importorskip("matplotlib")

    @pytest.mark.parametrize("ending", ["png", "svg"])
    def test_a_word_layer_by_layer(self, ending, model, source, tmp_path):
        output = tmp_path / f"bank.{ending}"
        result = run("plot", "word", model, source, output, "--word", "bank", "--ignore-case")
        assert result.exit_code == 0, result.output
        assert "5 occurrences of 'bank', 3 layers" in result.stdout.replace("\n", "")
        assert_is_picture(output)
        first = output.read_bytes()
        run("plot", "word", model, source, output, "--word", "bank", "--ignore-case")
        assert output.read_bytes() == first

    @pytest.mark.parametrize("representations", [1, 2])
    @pytest.mark.parametrize("ending", ["png", "svg"])
    def test_layer_weights_of_several_models(self, representations, ending, tmp_path):
        folders = [tmp_path / "tuned-a", tmp_path / "tuned-b"]
        for seed, folder in enumerate(folders):
            model = varied_model(ElmoForTokenClassification, num_output_representations=representations)
            with torch.no_grad():
                for mix in model.elmo.representations:
                    mix.scalar_parameters.copy_(torch.tensor([2.0 * seed, 0.0, -1.0]))
            model.save_pretrained(folder)
            ElmoTokenizer().save_pretrained(folder)
        output = tmp_path / f"weights.{ending}"
        result = run("plot", "weights", *folders, "--output", output)
        assert result.exit_code == 0, result.output
        assert_is_picture(output)

    def test_the_layer_without_context_has_one_point(self):
        from hf_elmo.embedding.plots import two_dimensions

        points, share = two_dimensions(np.full((5, 8), 0.1, dtype=np.float32) + np.float32(1e-9))
        assert not points.any()
        assert share == 1.0

    def test_principal_components_keep_distances_in_the_plane(self):
        from hf_elmo.embedding.plots import two_dimensions

        rng = np.random.default_rng(0)
        plane = rng.normal(size=(7, 2)) @ rng.normal(size=(2, 9))
        points, share = two_dimensions(plane)
        ours = np.linalg.norm(points[:, None] - points, axis=-1)
        np.testing.assert_allclose(ours, np.linalg.norm(plane[:, None] - plane, axis=-1), atol=1e-9)
        assert share == pytest.approx(1.0)
        np.testing.assert_allclose(two_dimensions(plane[:, ::-1])[0], points, atol=1e-9)

    def test_errors_leave_nothing(self, model, source, tmp_path):
        before = contents(tmp_path)
        assert_exits(1, ".png or .svg", "plot", "word", model, source, tmp_path / "x.pdf", "--word", "bank")
        assert_exits(1, "three occurrences", "plot", "word", model, source, tmp_path / "x.png", "--word", "green")
        assert_exits(1, "once for each", "plot", "weights", model, model, "--name", "a", "-o", tmp_path / "x.png")
        assert_exits(1, "There is no model", "plot", "weights", "nowhere", "-o", tmp_path / "x.png")
        assert contents(tmp_path) == before


def assert_is_picture(path: Path) -> None:
    """Checks that a file is a PNG of some size, or SVG with content."""
    data = path.read_bytes()
    if path.suffix == ".png":
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(data) > 10_000
    else:
        assert len(xml.dom.minidom.parseString(data).getElementsByTagName("path")) > 10
