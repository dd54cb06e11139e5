"""A converted folder is compared with its original again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_elmo.conversion import ConversionError, convert_checkpoint, verify_folder

from .checkpoints import random_tensors, tiny_options, write_checkpoint
from .shared_files import fixture_path
from .test_cli import assert_one_message, assert_succeeds


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source")


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    convert_checkpoint(source, tmp_path / "elmo")
    return tmp_path / "elmo"


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Changes the weights of a converted folder."""
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_a_converted_folder_is_verified(folder: Path, source: Path) -> None:
    report = verify_folder(folder, source)
    assert report.num_tensors == 29
    assert max(report.differences.values()) < 2e-5
    assert "equal bit for bit" in report.summary()


def test_another_original_is_not_this_one(folder: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", tensors=random_tensors(tiny_options(), seed=1))
    with pytest.raises(ConversionError, match=r"differ from the original") as caught:
        verify_folder(folder, other)
    assert len(caught.value.problems) == 33


def test_one_changed_bit_is_found(folder: Path, source: Path) -> None:
    name = "encoder.layers.1.forward_lstm.projection.weight"
    edit_weights(folder, lambda weights: weights[name].view(torch.int32)[0, 0].bitwise_xor_(1))
    with pytest.raises(ConversionError, match=name) as caught:
        verify_folder(folder, source)
    assert len(caught.value.problems) == 1


def test_a_missing_weight_is_found(folder: Path, source: Path) -> None:
    name = "encoder.layers.1.forward_lstm.projection.weight"
    edit_weights(folder, lambda weights: weights.pop(name))
    with pytest.raises(ConversionError, match=f"{name} is missing"):
        verify_folder(folder, source)


def test_a_changed_configuration_is_found(folder: Path, source: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["cell_clip"] = 2.5
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConversionError, match=r"cell_clip was 3\.0 and is 2\.5"):
        verify_folder(folder, source)


def test_what_was_set_by_hand_is_set_again(source: Path, tmp_path: Path) -> None:
    convert_checkpoint(source, tmp_path / "elmo", overrides={"lstm.cell_clip": 2})
    verify_folder(tmp_path / "elmo", source, overrides={"lstm.cell_clip": 2})
    with pytest.raises(ConversionError, match=r"cell_clip was 3\.0 and is 2\.0"):
        verify_folder(tmp_path / "elmo", source)


def test_kept_files_must_not_change(tmp_path: Path) -> None:
    archive = fixture_path("nlpl_zip", "900.zip")
    convert_checkpoint(archive, tmp_path / "elmo")
    verify_folder(tmp_path / "elmo", archive)
    (tmp_path / "elmo" / "training_vocab.txt").write_text("other words")
    with pytest.raises(ConversionError, match=r"training_vocab\.txt"):
        verify_folder(tmp_path / "elmo", archive)


def test_the_command(folder: Path, source: Path, tmp_path: Path) -> None:
    assert "equal bit for bit" in assert_succeeds("verify", folder, "--against", source)
    assert "hf-elmo verify " in assert_succeeds("verify", "--help")
    assert_one_message("nowhere does not exist", "verify", folder, "--against", tmp_path / "nowhere")
    assert_one_message("no config.json", "verify", source, "--against", source)
    (folder / "tokenizer.json").write_text("{")
    assert_one_message("tokenizer", "verify", folder, "--against", source)
