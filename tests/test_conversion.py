"""An original checkpoint becomes a complete folder with the original's weights and numbers."""

import hashlib
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

from hf_elmo.conversion import ConversionError, ConversionReport, convert_checkpoint, mapping, operations
from hf_elmo.conversion import convert as conversion
from hf_elmo.conversion.card import model_card

from .checkpoints import REMOVED, original_shapes, random_tensors, tiny_options, write_checkpoint, write_tensors
from .shared_files import fixture_path

ARCHITECTURES = {
    "two layers, relu, skip connections": {},
    "one layer": {"lstm__n_layers": 1},
    "three layers": {"lstm__n_layers": 3},
    "no skip connections": {"lstm__use_skip_connections": False},
    "tanh": {"char_cnn__activation": "tanh"},
    "no highway": {"char_cnn__n_highway": 0},
    "one highway": {"char_cnn__n_highway": 1},
    "no clipping": {"lstm__cell_clip": None, "lstm__proj_clip": None},
    "fractional clipping": {"lstm__cell_clip": 0.25, "lstm__proj_clip": 0.125},
    "no token projection": {"lstm__projection_dim": 12},
    "short words": {"char_cnn__max_characters_per_token": 5},
    "one filter": {"char_cnn__filters": [[2, 7]]},
    "training options": {"char_cnn__n_characters": 261, "bidirectional": True, "dropout": 0.1, "n_epochs": 3},
}


def assert_converts(source: Path, output: Path, **arguments: Any) -> ConversionReport:
    """Converts, and checks that the folder loads and the report says what was compared."""
    report = convert_checkpoint(source, output, **arguments)
    assert sorted(path.name for path in output.parent.iterdir() if path.name.startswith(".")) == []
    assert report.output_dir == output
    assert report.max_difference < 2e-5
    assert list(report.differences) == ["token layer"] + [
        f"biLM layer {layer + 1}" for layer in range(len(report.differences) - 1)
    ]
    model = AutoModel.from_pretrained(output, trust_remote_code=False)
    assert len(report.differences) == model.config.num_hidden_layers + 1
    assert report.num_parameters == sum(
        value.numel() for name, value in model.named_parameters() if not name.startswith("representations")
    )
    return report


def assert_fails(message: str, source: Path, output: Path, **arguments: Any) -> ConversionError:
    """Checks that a conversion is refused with a message, and that nothing is left of it."""
    with pytest.raises(ConversionError, match=message) as caught:
        convert_checkpoint(source, output, **arguments)
    assert not output.exists()
    assert [path.name for path in output.parent.iterdir() if "unfinished" in path.name] == []
    return caught.value


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_converts_every_architecture(changes: dict[str, Any], tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", tiny_options(**changes))
    assert_converts(source, tmp_path / "elmo")


def test_config_holds_the_options(tmp_path: Path) -> None:
    options = tiny_options(
        lstm__cell_clip=2, lstm__proj_clip=1.5, lstm__use_skip_connections=False, char_cnn__activation="tanh"
    )
    convert_checkpoint(write_checkpoint(tmp_path / "source", options), tmp_path / "elmo")
    config = AutoConfig.from_pretrained(tmp_path / "elmo", trust_remote_code=False)
    assert config.model_type == "elmo"
    assert config.vocab_size == 262
    assert config.character_embedding_size == 4
    assert config.filters == [[1, 3], [2, 5], [3, 4]]
    assert config.hidden_act == "tanh"
    assert config.num_highway_layers == 2
    assert config.max_characters_per_token == 50
    assert (config.projection_size, config.cell_size, config.num_hidden_layers) == (6, 10, 2)
    assert (config.cell_clip, config.projection_clip) == (2, 1.5)
    assert config.use_skip_connections is False
    assert config.use_token_projection is True


def test_parameters_are_the_original_arrays(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_options())
    convert_checkpoint(write_checkpoint(tmp_path / "source", tensors=tensors), tmp_path / "elmo")
    weights = load_file(tmp_path / "elmo" / "model.safetensors")
    cell = 10

    table = weights["embeddings.character_embeddings.weight"]
    assert table.shape == (262, 4)
    assert not table[0].any()
    assert np.array_equal(table[1:], tensors["char_embed"])
    kernel = tensors["CNN/W_cnn_1"]
    assert weights["embeddings.convolutions.1.weight"][4, 3, 1] == kernel[0, 1, 3, 4]
    assert np.array_equal(weights["embeddings.highways.1.carry.weight"], tensors["CNN_high_1/W_carry"].T)
    assert np.array_equal(weights["embeddings.highways.1.transform.bias"], tensors["CNN_high_1/b_transform"])
    assert np.array_equal(weights["embeddings.projection.weight"], tensors["CNN_proj/W_proj"].T)
    for direction, side in enumerate(("forward", "backward")):
        original = f"RNN_{direction}/RNN/MultiRNNCell/Cell1/LSTMCell"
        ours = f"encoder.layers.1.{side}_lstm"
        i, j, f, o = np.split(tensors[f"{original}/W_0"], 4, axis=1)
        rows = np.concatenate([i, f, j, o], axis=1).T
        assert np.array_equal(weights[f"{ours}.input_gates.weight"], rows[:, :6])
        assert np.array_equal(weights[f"{ours}.recurrent_gates.weight"], rows[:, 6:])
        bias, stored = weights[f"{ours}.input_gates.bias"], tensors[f"{original}/B"]
        assert np.array_equal(bias[cell : 2 * cell], stored[2 * cell : 3 * cell] + np.float32(1))
        assert np.array_equal(bias[2 * cell : 3 * cell], stored[cell : 2 * cell])
        assert np.array_equal(bias[3 * cell :], stored[3 * cell :])
        assert np.array_equal(weights[f"{ours}.projection.weight"], tensors[f"{original}/W_P_0"].T)


def test_folder_is_complete(tmp_path: Path) -> None:
    convert_checkpoint(write_checkpoint(tmp_path / "source"), tmp_path / "elmo")
    found = {path.name for path in (tmp_path / "elmo").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"} <= found
    config = json.loads((tmp_path / "elmo" / "config.json").read_text())
    assert {"AutoConfig", "AutoModel", "AutoModelForTokenClassification"} <= set(config["auto_map"])
    assert {f"{reference.split('.')[0]}.py" for reference in config["auto_map"].values()} <= found
    for path in (tmp_path / "elmo").iterdir():
        assert path.stat().st_mode == (tmp_path / "elmo" / "config.json").stat().st_mode
        assert b"unfinished" not in path.read_bytes(), f"{path.name} names the temporary folder"


def test_existing_empty_output_and_missing_parents_are_fine(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (tmp_path / "empty").mkdir()
    convert_checkpoint(source, tmp_path / "empty")
    convert_checkpoint(source, tmp_path / "new" / "deeper" / "elmo")
    for folder in (tmp_path / "empty", tmp_path / "new" / "deeper" / "elmo"):
        assert (folder / "config.json").is_file()
        assert folder.stat().st_mode & 0o777 == (tmp_path / "source").stat().st_mode & 0o777


def test_word_splitter_is_stored(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    convert_checkpoint(source, tmp_path / "elmo", word_splitter="punctuation")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "elmo", trust_remote_code=False)
    assert len(tokenizer("Well, yes!")["input_ids"]) == 6
    assert_fails("nonsense", source, tmp_path / "other", word_splitter="nonsense")


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"])
def test_every_float_type_converts(dtype: str, tmp_path: Path) -> None:
    tensors = {name: array.astype(dtype) for name, array in random_tensors(tiny_options()).items()}
    report = assert_converts(write_checkpoint(tmp_path / "source", tensors=tensors), tmp_path / "elmo")
    assert any(np.dtype(dtype).name in note for note in report.notes) == (dtype[1:] != "f4")
    weights = load_file(tmp_path / "elmo" / "model.safetensors")
    expected = tensors["CNN_proj/b_proj"].astype(np.float32)
    assert weights["embeddings.projection.bias"].dtype == np.float32
    assert np.array_equal(weights["embeddings.projection.bias"], expected)


def test_compressed_chunks_convert(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    with h5py.File(source / "weights.hdf5", "w") as file:
        for name, array in random_tensors(tiny_options()).items():
            file.create_dataset(name, data=array, chunks=True, compression="gzip", shuffle=True, fletcher32=True)
    assert_converts(source, tmp_path / "elmo")


def test_table_with_its_padding_row_converts_to_the_same(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_options())
    convert_checkpoint(write_checkpoint(tmp_path / "without", tensors=tensors), tmp_path / "first")
    table = tensors["char_embed"]
    tensors["char_embed"] = np.concatenate([np.zeros_like(table[:1]), table])
    assert_converts(write_checkpoint(tmp_path / "with", tensors=tensors), tmp_path / "second")
    first, second = (tmp_path / name / "model.safetensors" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_projection_between_equal_sizes_is_kept_when_the_file_has_it(tmp_path: Path) -> None:
    options = tiny_options(lstm__projection_dim=12)
    tensors = random_tensors(options)
    tensors["CNN_proj/W_proj"] = np.full((12, 12), 0.1, dtype=np.float32)
    tensors["CNN_proj/b_proj"] = np.full(12, 0.1, dtype=np.float32)
    assert_converts(write_checkpoint(tmp_path / "source", options, tensors), tmp_path / "elmo")
    assert AutoConfig.from_pretrained(tmp_path / "elmo", trust_remote_code=False).use_token_projection is True


def test_left_out_options_are_bilm_tfs_defaults_and_are_said(tmp_path: Path) -> None:
    left_out = ("n_layers", "cell_clip", "proj_clip", "use_skip_connections")
    options = tiny_options(**{f"lstm__{name}": REMOVED for name in left_out}, char_cnn__n_highway=REMOVED)
    report = assert_converts(write_checkpoint(tmp_path / "source", options), tmp_path / "elmo")
    config = AutoConfig.from_pretrained(tmp_path / "elmo", trust_remote_code=False)
    assert (config.num_hidden_layers, config.num_highway_layers) == (1, 0)
    assert (config.cell_clip, config.projection_clip, config.use_skip_connections) == (None, None, False)
    for name in left_out:
        assert any(f"lstm.{name}" in note for note in report.notes)
        assert f"lstm.{name}" in report.summary()
        assert f"lstm.{name}" in (tmp_path / "elmo" / "README.md").read_text()


def test_large_weights_convert(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_options(lstm__cell_clip=None, lstm__proj_clip=None), scale=30)
    options = tiny_options(lstm__cell_clip=None, lstm__proj_clip=None, lstm__n_layers=2)
    report = convert_checkpoint(write_checkpoint(tmp_path / "source", options, tensors), tmp_path / "elmo")
    assert report.differences.keys() == {"token layer", "biLM layer 1", "biLM layer 2"}


class TestFindingFiles:
    def rename(self, folder: Path, options: str, weights: str) -> Path:
        (folder / "options.json").rename(folder / options)
        (folder / "weights.hdf5").rename(folder / weights)
        return folder

    @pytest.mark.parametrize(
        ("options", "weights"),
        [
            ("options.json", "weights.hdf5"),
            ("elmo_2x4096_512_2048cnn_2xhighway_options.json", "elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5"),
            ("options.json", "model.hdf5"),
            ("source_options.json", "source_weights.h5"),
            ("options.json", "anything.HDF5"),
        ],
    )
    def test_usual_names_are_found(self, options: str, weights: str, tmp_path: Path) -> None:
        folder = self.rename(write_checkpoint(tmp_path / "source"), options, weights)
        report = convert_checkpoint(folder, tmp_path / "from-folder")
        assert list(report.files) == [options, weights]
        assert list(convert_checkpoint(folder / weights, tmp_path / "from-file").files) == [options, weights]

    def test_options_of_the_same_stem_win(self, tmp_path: Path) -> None:
        folder = self.rename(write_checkpoint(tmp_path / "source"), "small_options.json", "small_weights.hdf5")
        (folder / "other_options.json").write_text("{}")
        assert next(iter(convert_checkpoint(folder, tmp_path / "elmo").files)) == "small_options.json"

    def test_options_may_lie_anywhere(self, tmp_path: Path) -> None:
        folder = self.rename(write_checkpoint(tmp_path / "source"), "moved.txt", "weights.hdf5")
        convert_checkpoint(folder, tmp_path / "elmo", options=folder / "moved.txt")

    def test_weights_may_have_any_name(self, tmp_path: Path) -> None:
        folder = self.rename(write_checkpoint(tmp_path / "source"), "options.json", "weights.bin")
        convert_checkpoint(folder / "weights.bin", tmp_path / "elmo")

    def test_usual_name_is_chosen_among_other_hdf5_files(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path / "source")
        write_tensors(folder / "embeddings.hdf5", {"embedding": np.zeros((2, 2), dtype=np.float32)})
        assert "weights.hdf5" in convert_checkpoint(folder, tmp_path / "elmo").files

    def test_several_weights_are_an_error_that_names_them(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path / "source")
        write_tensors(folder / "old_weights.hdf5", random_tensors(tiny_options()))
        assert_fails(r"old_weights\.hdf5, weights\.hdf5", folder, tmp_path / "elmo")

    def test_several_options_are_an_error_that_names_them(self, tmp_path: Path) -> None:
        folder = self.rename(write_checkpoint(tmp_path / "source"), "a_options.json", "weights.hdf5")
        (folder / "b_options.json").write_text("{}")
        assert_fails(r"a_options\.json, b_options\.json.*--options", folder, tmp_path / "elmo")

    def test_missing_options_are_an_error(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path / "source")
        (folder / "options.json").unlink()
        assert_fails(r"no options file .* beside .*weights\.hdf5.*--options", folder, tmp_path / "elmo")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ConversionReport:
    """The report of a conversion, whose folder and source are still there."""
    folder = tmp_path_factory.mktemp("report")
    return convert_checkpoint(write_checkpoint(folder / "source"), folder / "elmo")


class TestReport:
    def test_summary_says_what_was_done(self, report: ConversionReport) -> None:
        summary = report.summary()
        numbers = sum(int(np.prod(shape)) for shape in original_shapes(tiny_options()).values()) + 4
        assert f"{numbers:,}" in summary
        assert "2 layers, cell 10, projection 6" in summary
        assert f"{len(original_shapes(tiny_options()))} original tensors" in summary
        assert "biLM layer 2" in summary
        assert f'AutoModel.from_pretrained("{report.output_dir}")' in summary

    def test_card_is_honest(self, report: ConversionReport) -> None:
        card = (report.output_dir / "README.md").read_text()
        assert card == model_card(report)
        assert card.startswith("---\nlibrary_name: transformers\n")
        assert "license:" not in card.split("---")[1]
        assert "Licence of the weights: not stated" in card
        for name, digest in report.files.items():
            assert f"| `{name}` | `{digest}` |" in card
        for name, value in report.architecture.items():
            assert f"| {name} | {value} |" in card
        for difference in report.differences.values():
            assert f"{difference:.1e}" in card

    def test_files_have_their_digests(self, report: ConversionReport, tmp_path: Path) -> None:
        source = report.output_dir.parent / "source"
        expected = {name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in report.files}
        assert report.files == expected

    def test_usage_lines_run(self, report: ConversionReport) -> None:
        lines = report.summary().split("To use it:")[1]
        names: dict[str, Any] = {}
        exec("\n".join(line.strip() for line in lines.splitlines()), names)
        assert names["vectors"].shape == (1, 4, 12)


class TestMistakesAreCaught:
    """A wrong table or operation never gets past the comparison with the original's equations."""

    @pytest.mark.parametrize(
        ("operation", "wrong"),
        [
            ("gates", lambda kernel: tuple(half.T for half in np.split(kernel, 2))),
            ("gate_bias", lambda bias: (operations.swap_gates(bias),)),
            ("character_table", lambda table: (np.concatenate([table, np.zeros_like(table[:1])]),)),
            ("convolution", lambda kernel: (kernel[0][::-1].transpose(2, 1, 0),)),
        ],
    )
    def test_wrong_operation(
        self, operation: str, wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(operations.OPERATIONS, operation, operations.Operation(wrong, lambda arrays: arrays[0]))
        source = write_checkpoint(tmp_path / "source")
        assert_fails("differs from the original by .* in the (token layer|biLM layer 1)", source, tmp_path / "elmo")

    def test_wrong_tokenizer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make = conversion.ElmoTokenizer
        monkeypatch.setattr(conversion, "ElmoTokenizer", lambda **arguments: make(**{**arguments, "bos_token": None}))
        source = write_checkpoint(tmp_path / "source")
        with pytest.raises((ConversionError, ValueError)):
            convert_checkpoint(source, tmp_path / "elmo")
        assert not (tmp_path / "elmo").exists()

    def test_parameter_that_nothing_fills(self) -> None:
        config = conversion.ElmoConfig(cell_size=4, projection_size=2, filters=[[1, 2]], num_hidden_layers=1)
        steps = mapping.expand(mapping.ALLENNLP.rules, config)
        parameters = {name: torch.zeros(1) for step in steps[1:] for name in step.targets}
        with pytest.raises(ConversionError, match=r"the model has no embeddings\.character_embeddings\.weight"):
            conversion.check_targets(steps, parameters)
        with pytest.raises(ConversionError, match="nothing fills extra"):
            conversion.check_targets(steps, {**parameters, "extra": torch.zeros(1)})


@pytest.mark.parametrize(
    "parts",
    [
        ("allennlp_tiny",),
        ("allennlp_tiny", "lm_weights.hdf5"),
        ("allennlp_random",),
        ("bilm_tf_lm", "weights.hdf5"),
        ("deeppavlov_lm_ru", "weights.hdf5"),
        ("deeppavlov_hub_ru", "source_weights.hdf5"),
    ],
    ids="/".join,
)
def test_fixtures_convert(parts: tuple[str, ...], tmp_path: Path) -> None:
    assert_converts(fixture_path(*parts), tmp_path / "elmo")


def test_word_model_is_refused(tmp_path: Path) -> None:
    assert_fails("char_cnn.*whole words", fixture_path("bilm_tf_lm_word_shared", "weights.hdf5"), tmp_path / "elmo")
