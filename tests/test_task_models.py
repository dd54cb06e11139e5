"""The ELMo inside a task model of AllenNLP becomes a model with the same weights, mixes included."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from hf_elmo.conversion import convert_checkpoint

from .assertions import assert_close, assert_identical
from .checkpoints import random_tensors, tiny_options, write_checkpoint
from .shared_files import leave_out, shared_path
from .task_models import EMBEDDER, pack, task_model_config, task_model_state, write_task_model
from .test_conversion import assert_fails

MIXES = [([0.5, -1.0, 0.25], 1.5), ([0.0, 2.0, -0.5], 0.75)]
SENTENCES = [["The", "crane", "flew", "."], ["Ёлка", "naïve", "un" * 30, "<S>", ""], ["one"]]


def tiny_state(count: int = 2, prefix: str = EMBEDDER, **changes: Any) -> dict[str, torch.Tensor]:
    """The state dict of a task model with a tiny ELMo."""
    return task_model_state(random_tensors(tiny_options(**changes)), MIXES[:count], prefix)


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    """The parameters of a converted model."""
    return AutoModel.from_pretrained(folder).state_dict()


def representations(folder: Path, sentences: list[list[str]]) -> list[np.ndarray]:
    """The representations of a converted model, without the boundaries."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return [vectors.numpy() for vectors in model(**batch).representations]


def assert_same_words(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Compares each word of each sentence, where ours have the boundaries, too; returns the largest difference."""
    return max(
        assert_close(ours[row, 1 : len(sentence) + 1], theirs[row, : len(sentence)], what=f"sentence {row}")
        for row, sentence in enumerate(SENTENCES)
    )


@pytest.mark.parametrize("prefix", ["", "./", "model/"])
def test_an_archive_gives_the_bilm_of_its_hdf5_and_its_mixes(prefix: str, tmp_path: Path) -> None:
    archive = pack(write_task_model(tmp_path / "task", tiny_state()), tmp_path / "model.tar.gz", prefix)
    report = convert_checkpoint(archive, tmp_path / "elmo")
    assert report.format == "allennlp-archive"
    assert list(report.files) == ["model.tar.gz", "weights.th", "config.json"]
    assert report.num_tensors == 29 + 4
    assert "mix of the layers 2" in report.differences
    assert report.max_difference < 2e-5
    convert_checkpoint(write_checkpoint(tmp_path / "source"), tmp_path / "plain")
    ours, plain = parameters(tmp_path / "elmo"), parameters(tmp_path / "plain")
    for name, value in plain.items():
        if not name.startswith("representations."):
            assert_identical(ours[name], value, name)
    for index, (scalars, gamma) in enumerate(MIXES):
        assert ours[f"representations.{index}.scalar_parameters"].tolist() == scalars
        assert ours[f"representations.{index}.gamma"].tolist() == [gamma]


@pytest.mark.parametrize(
    "changes",
    [
        {"lstm__n_layers": 1},
        {"lstm__n_layers": 3},
        {"char_cnn__n_highway": 0},
        {"char_cnn__n_highway": 1},
        {"char_cnn__filters": [[2, 7]]},
    ],
    ids=lambda changes: next(iter(changes)) + str(next(iter(changes.values()))),
)
def test_sizes_are_those_of_the_tensors(changes: dict[str, Any], tmp_path: Path) -> None:
    layers = changes.get("lstm__n_layers", 2)
    state = task_model_state(random_tensors(tiny_options(**changes)), [([0.5] * (layers + 1), 2.0)])
    assert_converts_with_mix(write_task_model(tmp_path / "task", state), tmp_path / "elmo")


def assert_converts_with_mix(source: Path, output: Path, **arguments: Any) -> None:
    report = convert_checkpoint(source, output, **arguments)
    assert report.max_difference < 2e-5
    assert "mix of the layers" in report.differences


@pytest.mark.parametrize("name", ["weights.th", "best.th"])
@pytest.mark.parametrize("zipped", [True, False])
def test_both_names_and_both_formats_of_the_weights(name: str, zipped: bool, tmp_path: Path) -> None:
    folder = write_task_model(tmp_path / "task", tiny_state(), _use_new_zipfile_serialization=zipped)
    (folder / "weights.th").rename(folder / name)
    assert_converts_with_mix(folder, tmp_path / "elmo")
    assert_converts_with_mix(folder / name, tmp_path / "again")


def test_one_mix_is_also_what_the_configuration_says(tmp_path: Path) -> None:
    convert_checkpoint(write_task_model(tmp_path / "task", tiny_state(1)), tmp_path / "elmo")
    config = AutoModel.from_pretrained(tmp_path / "elmo").config
    assert (config.mix_parameters, config.mix_gamma) == MIXES[0]
    assert config.num_output_representations == 1


def test_settings_of_the_embedder(tmp_path: Path) -> None:
    settings = {"do_layer_norm": True, "dropout": 0.25, "requires_grad": True, "scalar_mix_parameters": [1, 2, 3]}
    folder = write_task_model(tmp_path / "task", tiny_state(), task_model_config(**settings))
    assert_converts_with_mix(folder, tmp_path / "elmo")
    config = AutoModel.from_pretrained(tmp_path / "elmo").config
    assert config.mix_layer_norm
    assert config.representation_dropout == 0.25
    assert not config.freeze_bilm
    assert not config.mix_trainable
    for dropout in (True, "0.5", -1, 2, 1e308):
        wrong = task_model_config(dropout=dropout)
        (folder / "config.json").write_text(json.dumps(wrong))
        assert_fails(r"the ELMo in config\.json cannot be used: (.|\n)*dropout", folder, tmp_path / "wrong")
    settings["do_layer_norm"] = "yes"
    (folder / "config.json").write_text(json.dumps(task_model_config(**settings)))
    assert_fails(r"the ELMo in config\.json cannot be used: .*mix_layer_norm", folder, tmp_path / "wrong")


@pytest.mark.parametrize(
    "place", ["fta/model.text_field_embedder.token_embedders.elmo.options_file", "elmo_options.json"]
)
def test_options_in_the_archive(place: str, tmp_path: Path) -> None:
    options = tiny_options(lstm__cell_clip=0.5, char_cnn__max_characters_per_token=20)
    folder = write_task_model(tmp_path / "task", tiny_state())
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text(json.dumps(options))
    assert_converts_with_mix(folder, tmp_path / "elmo")
    config = AutoModel.from_pretrained(tmp_path / "elmo").config
    assert config.cell_clip == 0.5
    assert config.max_characters_per_token == 20


def test_several_options_in_the_archive(tmp_path: Path) -> None:
    folder = write_task_model(tmp_path / "task", tiny_state())
    for number in range(2):
        (folder / "fta").mkdir(exist_ok=True)
        (folder / "fta" / f"model.{number}.options_file").write_text(json.dumps(tiny_options()))
    assert_fails("There are several options files in .*fta .*choose one with --options", folder, tmp_path / "elmo")
    assert_converts_with_mix(folder, tmp_path / "elmo", options=folder / "fta" / "model.0.options_file")


def test_cached_words_are_left_aside(tmp_path: Path) -> None:
    state = tiny_state() | {f"{EMBEDDER}_elmo_lstm._word_embedding.weight": torch.ones(3, 6)}
    report = convert_checkpoint(write_task_model(tmp_path / "task", state), tmp_path / "elmo")
    assert any("cached vectors of words" in note for note in report.notes)


def test_without_a_configuration(tmp_path: Path) -> None:
    folder = write_task_model(tmp_path / "task", tiny_state())
    (folder / "config.json").unlink()
    assert_converts_with_mix(folder, tmp_path / "elmo")


def test_task_models_that_are_refused(tmp_path: Path) -> None:
    def assert_refused(message: str, state: dict[str, Any]) -> None:
        folder = tmp_path / f"task{len(list(tmp_path.iterdir()))}"
        assert_fails(message, write_task_model(folder, state), tmp_path / "elmo")

    assert_refused("has no ELMo", {"weight": torch.ones(2)})
    assert_refused("several ELMos", tiny_state() | tiny_state(prefix="_other._elmo."))
    assert_refused("must hold named tensors|is refused", {"epoch": 3, **tiny_state()})
    state = tiny_state()
    name = f"{EMBEDDER}scalar_mix_1.scalar_parameters.1"
    assert_refused(r"scalar_mix_1\.scalar_parameters", {key: value for key, value in state.items() if key != name})
    assert_refused(r"scalar_mix_1\.scalar_parameters", state | {name: torch.ones(2)})
    name = f"{EMBEDDER}_elmo_lstm._elmo_lstm.backward_layer_1.state_linearity.bias"
    assert_refused(r"backward_layer_1\.state_linearity\.bias", state | {name: torch.ones(39)})
    assert_refused("NaN or infinity", state | {name: torch.full((40,), torch.nan)})
    assert_refused("no plain tensor", state | {name: torch.ones(40).to_sparse()})
    assert_refused(r"holds torch\.int64", state | {name: torch.ones(40, dtype=torch.int64)})
    assert_refused("more numbers than are stored", state | {name: torch.ones(1).expand(40)})
    name = f"{EMBEDDER}_elmo_lstm._token_embedder._char_embedding_weights"
    assert_refused("for masked positions, is not zero", state | {name: torch.ones(262, 4)})


@pytest.mark.slow
@pytest.mark.parametrize("do_layer_norm", [False, True])
@pytest.mark.parametrize("representation_count", [1, 2])
def test_the_vectors_are_those_of_allennlp(
    do_layer_norm: bool,
    representation_count: int,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """AllenNLP itself makes the state dict and gives the vectors."""
    python = os.environ.get("HF_ELMO_PEER_ALLENNLP")
    if not python:
        leave_out("needs HF_ELMO_PEER_ALLENNLP, the Python of an environment with AllenNLP")
    folder = write_checkpoint(tmp_path / "peer")
    request = {
        "paths": [str(shared_path("peers"))],
        "representations": representation_count,
        "do_layer_norm": do_layer_norm,
        "sentences": SENTENCES,
    }
    (folder / "request.json").write_text(json.dumps(request))
    script = Path(__file__).parent / "peer_task_model.py"
    subprocess.run([python, script, folder], check=True, capture_output=True, timeout=300)
    state = torch.load(folder / "state.th", weights_only=True)
    config = task_model_config(do_layer_norm=do_layer_norm)
    archive = pack(write_task_model(tmp_path / "task", state, config), tmp_path / "model.tar.gz")
    assert_converts_with_mix(archive, tmp_path / "elmo")
    ours = representations(tmp_path / "elmo", SENTENCES)
    with np.load(folder / "outputs.npz") as theirs:
        assert len(ours) == len(theirs) == representation_count
        for index, vectors in enumerate(ours):
            record_property("parity", ("task archive", assert_same_words(vectors, theirs[f"arr_{index}"])))
