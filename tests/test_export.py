"""A model goes back to AllenNLP's files, and nothing is lost on the way."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoForTokenClassification, ElmoModel, bundled_model
from hf_elmo.conversion import ConversionError, convert_checkpoint, export_checkpoint
from hf_elmo.conversion.operations import OPERATIONS, subtract_one

from .assertions import assert_close
from .checkpoints import original_shapes, random_tensors, tiny_options, write_checkpoint
from .saved_folders import save_folder
from .shared_files import fixture_path, leave_out, shared_path
from .test_conversion import ARCHITECTURES

PEER = "HF_ELMO_PEER_ALLENNLP"
SIMPLE_ELMO = "HF_ELMO_PEER_SIMPLE_ELMO"


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of an HDF5 file."""
    found: dict[str, np.ndarray] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[...]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def assert_round_trip(source: Path, folder: Path) -> dict[str, np.ndarray]:
    """Checks that convert -> export -> convert gives the same folder; returns the exported tensors."""
    first, exported, second = folder / "first", folder / "exported", folder / "second"
    convert_checkpoint(source, first)
    report = export_checkpoint(first, exported)
    assert report.rounded == 0
    convert_checkpoint(exported, second)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), f"{name} changed on the way"
    return read_tensors(exported / "weights.hdf5")


def assert_refused(message: str, folder: Path, output: Path) -> ConversionError:
    """Checks that an export is refused and leaves nothing."""
    with pytest.raises(ConversionError, match=message) as caught:
        export_checkpoint(folder, output)
    assert not output.exists()
    assert [path.name for path in output.parent.iterdir() if "unfinished" in path.name] == []
    return caught.value


def change_weights(folder: Path, change: Any) -> None:
    """Edits the weights of a saved folder in place; `change` gets the dictionary of tensors."""
    weights = load_file(folder / "model.safetensors")
    weights = {name: value.clone() for name, value in weights.items()}
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_round_trip_of_every_architecture(changes: dict[str, Any], tmp_path: Path) -> None:
    options = tiny_options(**changes)
    original = random_tensors(options)
    exported = assert_round_trip(write_checkpoint(tmp_path / "source", options, original), tmp_path)
    assert {name: array.shape for name, array in exported.items()} == original_shapes(options)
    for name, array in exported.items():
        assert array.dtype == np.float32
        if name.endswith("/B"):
            assert_close(array, original[name], 1e-7, name)
        else:
            assert np.array_equal(array, original[name]), name
    written = json.loads((tmp_path / "exported" / "options.json").read_text())
    assert written["char_cnn"] == {**options["char_cnn"], "n_characters": 262}
    assert written["lstm"] == options["lstm"]
    assert written["dropout"] == options.get("dropout", 0.1)


def test_a_trained_language_model_leaves_its_softmax_behind_and_says_so(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "elmo", ElmoForPreTraining, word_vocab_size=9, bilm_dropout=0.25)
    report = export_checkpoint(folder, tmp_path / "exported")
    assert "the softmax of the language model and its vocabulary are not part of this format" in report.notes
    assert not any("head" in note for note in report.notes)
    assert sorted(path.name for path in (tmp_path / "exported").iterdir()) == ["options.json", "weights.hdf5"]
    assert json.loads((tmp_path / "exported" / "options.json").read_text())["dropout"] == 0.25
    convert_checkpoint(tmp_path / "exported", tmp_path / "again")
    again, bilm = ElmoModel.from_pretrained(tmp_path / "again"), ElmoModel.from_pretrained(folder)
    assert again.config.bilm_dropout == 0.25
    for name, value in bilm.state_dict().items():
        assert_close(again.state_dict()[name], value, 1e-7, name)


def test_round_trip_with_biases_of_every_magnitude(tmp_path: Path) -> None:
    options = tiny_options()
    tensors = random_tensors(options)
    generator = np.random.default_rng(1)
    for name, array in tensors.items():
        if name.endswith("/B"):
            magnitudes = 2.0 ** generator.integers(-40, 30, array.shape)
            tensors[name] = (generator.uniform(-2, 2, array.shape) * magnitudes).astype(np.float32)
    assert_round_trip(write_checkpoint(tmp_path / "source", options, tensors), tmp_path)


@pytest.mark.parametrize("name", ["allennlp_tiny", "allennlp_random"])
def test_round_trip_of_fixtures(name: str, tmp_path: Path) -> None:
    assert_round_trip(fixture_path(name), tmp_path)


def test_one_is_subtracted_exactly_from_every_possible_sum() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint32).view(np.float32)
    steps = np.arange(-200, 200, dtype=np.float32)
    near = [sign * (2.0**power + 2.0 ** (power - 23) * steps) for sign in (-1, 1) for power in range(-30, 31)]
    biases = np.concatenate([bits[np.isfinite(bits)], *near]).astype(np.float32)
    sums = biases + np.float32(1)
    assert np.array_equal((subtract_one(sums) + np.float32(1)).view(np.int32), sums.view(np.int32))


def test_sum_that_cannot_be_said_gets_the_nearest() -> None:
    sums = np.random.default_rng(0).uniform(-1e-3, 1e-3, 10_000).astype(np.float32)
    assert_close(subtract_one(sums) + np.float32(1), sums, 2.0**-24)


@pytest.mark.parametrize(
    ("operation", "shape"),
    [
        ("copy", (5,)),
        ("transpose", (3, 5)),
        ("character_table", (261, 3)),
        ("convolution", (1, 3, 4, 5)),
        ("gates", (6, 20)),
        ("gate_bias", (20,)),
    ],
)
def test_operations_undo_themselves(operation: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(-8, 8, shape).astype(np.float32)
    converted = OPERATIONS[operation].convert(array)
    assert np.array_equal(OPERATIONS[operation].export(converted), array)


class TestModels:
    @pytest.fixture
    def config(self) -> ElmoConfig:
        config = ElmoConfig(
            character_embedding_size=4,
            filters=[[1, 3], [2, 5]],
            projection_size=4,
            cell_size=6,
            num_highway_layers=1,
        )
        config.num_labels = 3
        return config

    def test_model_with_a_head_exports_its_bilm(self, config: ElmoConfig, tmp_path: Path) -> None:
        model = ElmoForTokenClassification(config)
        model.save_pretrained(tmp_path / "head")
        report = export_checkpoint(tmp_path / "head", tmp_path / "exported")
        assert any("head" in note for note in report.notes)
        convert_checkpoint(tmp_path / "exported", tmp_path / "back")
        back = ElmoModel.from_pretrained(tmp_path / "back").state_dict()
        for name, value in model.elmo.state_dict().items():
            if not name.startswith("representations"):
                assert_close(back[name], value, 2.0**-24, name)

    def test_trained_biases_are_rounded_and_counted(self, config: ElmoConfig, tmp_path: Path) -> None:
        model = ElmoModel(config)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if name.endswith("input_gates.bias"):
                    value.copy_(torch.linspace(-1e-3, 1e-3, len(value)))
        model.save_pretrained(tmp_path / "trained")
        report = export_checkpoint(tmp_path / "trained", tmp_path / "exported")
        assert 0 < report.rounded <= 4 * config.cell_size
        assert f"{report.rounded} forget biases" in report.summary()

    def test_half_precision_exports_exactly(self, config: ElmoConfig, tmp_path: Path) -> None:
        model = ElmoModel(config)
        model.bfloat16()
        model.save_pretrained(tmp_path / "half")
        export_checkpoint(tmp_path / "half", tmp_path / "exported")
        tensors = read_tensors(tmp_path / "exported" / "weights.hdf5")
        expected = model.state_dict()["embeddings.projection.bias"].float()
        assert np.array_equal(tensors["CNN_proj/b_proj"], expected.numpy())

    def test_missing_weight_is_refused(self, config: ElmoConfig, tmp_path: Path) -> None:
        ElmoModel(config).save_pretrained(tmp_path / "model")
        change_weights(tmp_path / "model", lambda weights: weights.pop("embeddings.projection.bias"))
        assert_refused(r"embeddings\.projection\.bias is missing", tmp_path / "model", tmp_path / "exported")

    def test_nan_is_refused(self, config: ElmoConfig, tmp_path: Path) -> None:
        ElmoModel(config).save_pretrained(tmp_path / "model")
        change_weights(tmp_path / "model", lambda weights: weights["embeddings.projection.bias"].fill_(torch.nan))
        assert_refused(r"embeddings\.projection\.bias holds NaN", tmp_path / "model", tmp_path / "exported")

    def test_padding_row_that_is_not_zero_is_refused(self, config: ElmoConfig, tmp_path: Path) -> None:
        ElmoModel(config).save_pretrained(tmp_path / "model")
        change_weights(tmp_path / "model", lambda weights: weights["embeddings.character_embeddings.weight"].fill_(1))
        assert_refused("row 0 that is not zero", tmp_path / "model", tmp_path / "exported")

    def test_other_boundaries_are_refused(self, config: ElmoConfig, tmp_path: Path) -> None:
        config.begin_sentence_character_id = 1
        ElmoModel(config).save_pretrained(tmp_path / "model")
        assert_refused("begin_sentence_character_id is 1", tmp_path / "model", tmp_path / "exported")

    def test_what_only_bilm_tf_reads_is_said(self, config: ElmoConfig, tmp_path: Path) -> None:
        config.use_skip_connections = False
        ElmoModel(config).save_pretrained(tmp_path / "model")
        report = export_checkpoint(tmp_path / "model", tmp_path / "exported")
        assert any("AllenNLP refuses models without skip connections" in note for note in report.notes)

    def test_other_character_tables_are_refused(self, config: ElmoConfig, tmp_path: Path) -> None:
        config.vocab_size = 300
        ElmoModel(config).save_pretrained(tmp_path / "model")
        assert_refused("vocab_size is 300", tmp_path / "model", tmp_path / "exported")


class TestFolders:
    def test_folder_that_is_missing_or_empty(self, tmp_path: Path) -> None:
        assert_refused(r"no config\.json", tmp_path / "nowhere", tmp_path / "exported")
        assert_refused(r"no config\.json", tmp_path, tmp_path / "exported")

    def test_other_model(self, tmp_path: Path) -> None:
        (tmp_path / "bert").mkdir()
        (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
        assert_refused("no ELMo but 'bert'", tmp_path / "bert", tmp_path / "exported")

    def test_damaged_weights(self, tmp_path: Path) -> None:
        convert_checkpoint(write_checkpoint(tmp_path / "source"), tmp_path / "elmo")
        (tmp_path / "elmo" / "model.safetensors").write_bytes(b"nothing")
        assert_refused("cannot be loaded", tmp_path / "elmo", tmp_path / "exported")

    def test_existing_output(self, tmp_path: Path) -> None:
        convert_checkpoint(write_checkpoint(tmp_path / "source"), tmp_path / "elmo")
        with pytest.raises(ConversionError, match="exists and is not empty"):
            export_checkpoint(tmp_path / "elmo", tmp_path / "source")
        assert sorted(path.name for path in (tmp_path / "source").iterdir()) == ["options.json", "weights.hdf5"]


READ_WITH_ALLENNLP = """
import sys
sys.path.insert(0, sys.argv[1])
import allennlp_stub
import numpy, torch
from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids
sentences = [line.split() for line in sys.argv[4:]]
model = _ElmoBiLm(sys.argv[2] + "/options.json", sys.argv[2] + "/weights.hdf5").eval()
with torch.no_grad():
    output = model(batch_to_ids(sentences))
numpy.savez(sys.argv[3], *[layer.numpy() for layer in output["activations"]])
"""


READ_WITH_SIMPLE_ELMO = """
import sys
import numpy
from simple_elmo import ElmoModel
sentences = [line.split() for line in sys.argv[3:]]
model = ElmoModel()
model.load(sys.argv[1], max_batch_size=len(sentences))
vectors = model.get_elmo_vectors(sentences, warmup=False, layers="all").astype(numpy.float32)
numpy.savez(sys.argv[2], *[vectors[row, :, : len(words)] for row, words in enumerate(sentences)])
"""
SENTENCES = ["The crane flew over the river .", "Ёлка naïve", "a"]


def language_model(name: str, work: Path) -> Path:
    """A trained model of the package, or one with random weights."""
    return (
        save_folder(work / "elmo", ElmoForPreTraining, word_vocab_size=9) if name == "random" else bundled_model(name)
    )


def layers_of(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """All layers (L + 1, sentences, words, 2P) of the sentences, boundaries included, and the mask of the words."""
    from transformers import AutoTokenizer

    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = ElmoModel.from_pretrained(folder)(**batch, output_hidden_states=True)
    return torch.stack(output.hidden_states), batch["attention_mask"].bool()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random", "elmo-tiny-english"])
def test_allennlp_reads_the_export_of_a_language_model_and_gives_the_same_numbers(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    python = os.environ.get(PEER)
    if not python:
        leave_out(f"needs {PEER}, the Python of an environment with AllenNLP")
    folder = language_model(name, tmp_path)
    export_checkpoint(folder, tmp_path / "exported")
    arguments = [str(shared_path("peers")), str(tmp_path / "exported"), str(tmp_path / "theirs.npz"), *SENTENCES]
    subprocess.run([python, "-c", READ_WITH_ALLENNLP, *arguments], check=True)
    theirs = np.load(tmp_path / "theirs.npz")
    for layer, state in enumerate(layers_of(folder)[0]):
        difference = assert_close(state, theirs[f"arr_{layer}"], what=f"layer {layer}")
        record_property("parity", ("export, read by AllenNLP", difference))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random", "elmo-tiny-english"])
def test_simple_elmo_reads_the_export_of_a_language_model_and_gives_the_same_numbers(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    python = os.environ.get(SIMPLE_ELMO)
    if not python:
        leave_out(f"needs {SIMPLE_ELMO}, the Python of an environment with simple_elmo")
    folder = language_model(name, tmp_path)
    export_checkpoint(folder, tmp_path / "exported")
    # It looks for weights under this name.
    (tmp_path / "exported" / "weights.hdf5").rename(tmp_path / "exported" / "model.hdf5")
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    arguments = [str(tmp_path / "exported"), str(tmp_path / "theirs.npz"), *SENTENCES]
    subprocess.run([python, "-c", READ_WITH_SIMPLE_ELMO, *arguments], check=True, env=environment)
    theirs = np.load(tmp_path / "theirs.npz")
    layers, mask = layers_of(folder)
    for row in range(len(SENTENCES)):
        difference = assert_close(layers[:, row, mask[row]][:, 1:-1], theirs[f"arr_{row}"], what=f"sentence {row}")
        record_property("parity", ("export, read by simple_elmo", difference))
