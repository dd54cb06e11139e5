"""The commands: help that teaches, reports on stdout, one message on stderr."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import hf_elmo
from hf_elmo.cli import app

from .checkpoints import write_checkpoint
from .shared_files import leave_out


def run(*arguments: object) -> Result:
    """Runs hf-elmo in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def assert_succeeds(*arguments: object) -> str:
    """Runs hf-elmo, checks that it succeeds and returns stdout."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def assert_one_message(message: str, *arguments: object) -> None:
    """Checks that a command ends with status 1 and a message without a traceback."""
    result = run(*arguments)
    assert result.exit_code == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source")


def test_version() -> None:
    assert assert_succeeds("--version") == f"hf-elmo {hf_elmo.__version__}\n"


def test_help_lists_the_commands() -> None:
    for command in ("convert", "export", "verify", "demo"):
        assert command in assert_succeeds("--help")


@pytest.mark.parametrize("command", ["convert", "export"])
def test_help_of_a_command_shows_an_example(command: str) -> None:
    text = assert_succeeds(command, "--help")
    assert "Example" in text
    assert f"hf-elmo {command} " in text


def test_only_a_name_of_the_catalog_is_downloaded_again(source: Path, tmp_path: Path) -> None:
    message = "--force-download is for a name of the catalog"
    assert_one_message(message, "convert", source, tmp_path / "elmo", "--force-download")
    assert_one_message(message, "convert", source, tmp_path / "elmo", "--as", "elmo-small", "--force-download")
    assert not (tmp_path / "elmo").exists()


def test_convert_and_export(source: Path, tmp_path: Path) -> None:
    text = assert_succeeds("convert", source, tmp_path / "elmo", "--word-splitter", "treebank")
    assert "equal bit for bit" in text
    assert f'AutoModel.from_pretrained("{tmp_path / "elmo"}")' in text
    text = assert_succeeds("export", tmp_path / "elmo", tmp_path / "exported")
    assert "equal bit for bit" in text
    arguments = ("--options", tmp_path / "exported" / "options.json", "--format", "allennlp")
    assert_succeeds("convert", tmp_path / "exported" / "weights.hdf5", tmp_path / "again", *arguments)


def test_errors_are_one_message(source: Path, tmp_path: Path) -> None:
    assert_one_message("nowhere does not exist", "convert", tmp_path / "nowhere", tmp_path / "elmo")
    assert_one_message("exists and is not empty", "convert", source, source)
    assert_one_message("'csv'", "convert", source, tmp_path / "elmo", "--format", "csv")
    assert_one_message("'spaces'", "convert", source, tmp_path / "elmo", "--word-splitter", "spaces")
    assert_one_message("no config.json", "export", source, tmp_path / "exported")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_installed_command(source: Path, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "hf-elmo"
    if not program.exists():
        leave_out("needs the command hf-elmo, which is not installed here")
    (source / "weights.hdf5").write_bytes(b"damaged")
    result = subprocess.run([program, "convert", source, tmp_path / "elmo"], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("Error: ")
    assert "weights.hdf5" in result.stderr
