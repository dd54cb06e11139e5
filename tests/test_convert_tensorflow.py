"""TF-Hub modules and training checkpoints become complete folders; nothing of them is lost."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from typer.testing import CliRunner

from hf_elmo import ElmoForPreTraining
from hf_elmo.cli import app
from hf_elmo.conversion import ConversionError, convert_checkpoint, export_checkpoint, operations
from tests.assertions import assert_close, assert_identical
from tests.checkpoints import REMOVED, random_tensors, tiny_options, write_checkpoint, write_tensors
from tests.shared_files import fixture_path
from tests.tensor_bundles import write_bundle
from tests.tensorflow_checkpoints import (
    MIX,
    WORDS,
    module_tensors,
    training_tensors,
    write_module,
    write_training,
)
from tests.test_bad_checkpoints import assert_listed
from tests.test_conversion import ARCHITECTURES, assert_fails

WORDS_FILE = "".join(f"{word}\n" for word in WORDS)
HUB_OPTIONS = {
    "char_cnn.activation": "relu",
    "char_cnn.max_characters_per_token": 50,
    "lstm.cell_clip": 3,
    "lstm.proj_clip": 3,
    "lstm.use_skip_connections": True,
}
FIXTURE_TWINS = {
    "deeppavlov_hub_ru": ("module", "source_weights.hdf5", "source_options.json"),
    "deeppavlov_lm_ru": ("model.index", "weights.hdf5", "options.json"),
    "bilm_tf_lm": (".", "weights.hdf5", "options.json"),
}


def read_bilm(folder: Path) -> dict[str, np.ndarray]:
    """The weights of the biLM in a converted folder, without the prefix of a language model."""
    return {
        name.removeprefix("elmo."): array
        for name, array in load_file(folder / "model.safetensors").items()
        if not name.startswith(("softmax.", "representations.", "elmo.representations."))
    }


def assert_same_bilm(first: Path, second: Path) -> None:
    ours, theirs = read_bilm(first), read_bilm(second)
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        assert_identical(array, theirs[name], name)


def assert_loads_in_silence(auto_class: Any, folder: Path, **arguments: Any) -> Any:
    """Loads a folder and checks that no weight is missing, unexpected or spoken of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, info = auto_class.from_pretrained(folder, output_loading_info=True, **arguments)
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert not {name for name in info["missing_keys"] if not name.startswith(("classifier.", "task_network."))}
    return model


class TestTrainingCheckpoint:
    @pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
    def test_every_architecture(self, changes: dict[str, Any], tmp_path: Path) -> None:
        options = tiny_options(**changes)
        report = convert_checkpoint(write_training(tmp_path / "source", options), tmp_path / "elmo")
        assert report.format == "tensorflow-checkpoint"
        assert report.max_difference < 2e-5
        convert_checkpoint(write_checkpoint(tmp_path / "twin", options), tmp_path / "from-hdf5")
        assert_same_bilm(tmp_path / "elmo", tmp_path / "from-hdf5")

    def test_nothing_is_lost(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        report = convert_checkpoint(source, tmp_path / "elmo")
        tensors, saved = training_tensors(), load_file(tmp_path / "elmo" / "model.safetensors")
        assert_identical(saved["softmax.weight"], tensors["lm/softmax/W"])
        assert_identical(saved["softmax.bias"], tensors["lm/softmax/b"])
        assert {name.split(".")[0] for name in saved} == {"elmo", "softmax"}
        assert (tmp_path / "elmo" / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()
        config = json.loads((tmp_path / "elmo" / "config.json").read_text())
        assert config["architectures"] == ["ElmoForPreTraining"]
        assert config["word_vocab_size"] == len(WORDS)
        assert set(report.files) == {
            "options.json",
            "model.ckpt-5.index",
            "model.ckpt-5.data-00000-of-00001",
            "vocab.txt",
        }
        assert "7 words" in report.summary()

    def test_it_is_a_language_model_that_loads_in_silence(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        convert_checkpoint(write_training(tmp_path / "source"), tmp_path / "elmo")
        model = assert_loads_in_silence(AutoModelForPreTraining, tmp_path / "elmo")
        assert type(model) is ElmoForPreTraining
        output = capfd.readouterr()
        assert "softmax" not in output.out + output.err
        tensors = training_tensors()
        assert_identical(model.softmax.weight, tensors["lm/softmax/W"])
        assert_identical(model.softmax.bias, tensors["lm/softmax/b"])
        for name, value in AutoModel.from_pretrained(tmp_path / "elmo").state_dict().items():
            assert_identical(model.elmo.state_dict()[name], value, name)

    @pytest.mark.parametrize(("dropout", "expected"), [(0.25, 0.25), (0, 0.0), (None, 0.0), (REMOVED, 0.1)])
    def test_dropout_is_that_of_the_options(self, dropout: Any, expected: float, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source", tiny_options(dropout=dropout))
        report = convert_checkpoint(source, tmp_path / "elmo")
        assert AutoConfig.from_pretrained(tmp_path / "elmo").bilm_dropout == expected
        assert not any("dropout" in note for note in report.notes)

    @pytest.mark.parametrize("dropout", [1, -0.1, "0.1", True])
    def test_dropout_that_is_none_is_refused(self, dropout: Any, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source", tiny_options(dropout=dropout))
        error = assert_fails(r"options in .* cannot be used", source, tmp_path / "elmo")
        assert any("dropout must be a number from 0 up to 1, but is" in problem for problem in error.problems)
        report = convert_checkpoint(source, tmp_path / "elmo", overrides={"dropout": 0.2})
        assert any("dropout 0.2" in note for note in report.notes)

    @pytest.mark.parametrize("where", ["summary", "card"])
    def test_lines_for_its_use_run(self, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        report = convert_checkpoint(write_training(tmp_path / "source"), tmp_path / "elmo")
        monkeypatch.chdir(tmp_path / "elmo")
        text = report.summary() if where == "summary" else (tmp_path / "elmo" / "README.md").read_text()
        code = re.split("As a language model[^:]*:", text)[1].replace("```python", "").split("```")[0]
        names: dict[str, Any] = {}
        exec("\n".join(line.strip() for line in code.splitlines()), names)
        assert names["loss"].isfinite()

    def test_without_vocabulary_no_use_as_a_language_model_is_shown(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        (source / "vocab.txt").unlink()
        report = convert_checkpoint(source, tmp_path / "elmo")
        assert "As a language model" not in report.summary() + (tmp_path / "elmo" / "README.md").read_text()

    def test_bilm_and_heads_load_without_a_word_about_the_softmax(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        convert_checkpoint(write_training(tmp_path / "source"), tmp_path / "elmo")
        model = assert_loads_in_silence(AutoModel, tmp_path / "elmo")
        head = assert_loads_in_silence(AutoModelForTokenClassification, tmp_path / "elmo", num_labels=3)
        output = capfd.readouterr()
        assert "softmax" not in output.out + output.err
        for name, value in model.state_dict().items():
            assert_identical(head.elmo.state_dict()[name], value, name)

    def test_saving_the_loaded_bilm_leaves_the_softmax_behind(self, tmp_path: Path) -> None:
        convert_checkpoint(write_training(tmp_path / "source"), tmp_path / "elmo")
        AutoModel.from_pretrained(tmp_path / "elmo").save_pretrained(tmp_path / "bilm")
        assert not [name for name in load_file(tmp_path / "bilm" / "model.safetensors") if "softmax" in name]

    def test_without_a_softmax_it_is_a_bilm(self, tmp_path: Path) -> None:
        tensors = {name: array for name, array in training_tensors().items() if "softmax" not in name}
        convert_checkpoint(write_training(tmp_path / "source", tensors=tensors), tmp_path / "elmo")
        config = AutoConfig.from_pretrained(tmp_path / "elmo")
        assert config.architectures == ["ElmoModel"]
        assert config.word_vocab_size is None
        assert not (tmp_path / "elmo" / "vocab.txt").exists()

    def test_half_a_softmax_is_refused(self, tmp_path: Path) -> None:
        tensors = training_tensors()
        del tensors["lm/softmax/b"]
        error = assert_fails(
            "do not fit together", write_training(tmp_path / "source", tensors=tensors), tmp_path / "elmo"
        )
        assert any("lm/softmax/b is missing" in problem for problem in error.problems)
        del tensors["lm/softmax/W"]
        tensors["lm/softmax/b"] = np.ones(7, dtype=np.float32)
        error = assert_fails(
            "do not fit together", write_training(tmp_path / "other", tensors=tensors), tmp_path / "elmo"
        )
        assert_listed(error, "lm/softmax/W is missing")

    def test_softmax_with_nan_is_refused(self, tmp_path: Path) -> None:
        tensors = training_tensors()
        tensors["lm/softmax/W"][3, 1] = np.nan
        source = write_training(tmp_path / "source", tensors=tensors)
        assert_listed(assert_fails("cannot be used", source, tmp_path / "elmo"), "lm/softmax/W holds NaN")

    def test_tensors_that_are_not_known_are_named(self, tmp_path: Path) -> None:
        more = {"lm/attention": np.ones(3, dtype=np.float32), "lm/softmax/W/Shadow": np.ones(3, dtype=np.float32)}
        source = write_training(tmp_path / "source", tensors=training_tensors() | more)
        error = assert_fails("do not fit together", source, tmp_path / "elmo")
        assert_listed(error, "lm/attention (3,) is not known", "lm/softmax/W/Shadow (3,) is not known")

    @pytest.mark.parametrize("slot", ["Adam", "Adam_1", "Adagrad_2", "Momentum", "RMSProp", "RMSProp_1", "Adadelta"])
    def test_optimizers_are_left_out(self, slot: str, tmp_path: Path) -> None:
        more = {f"lm/softmax/W/{slot}": np.ones(3, dtype=np.float32), "beta1_power": np.float32(0.9)}
        convert_checkpoint(write_training(tmp_path / "s", tensors=training_tensors() | more), tmp_path / "elmo")

    @pytest.mark.parametrize("in_options", [True, False])
    def test_models_with_words_as_input_are_refused(self, in_options: bool, tmp_path: Path) -> None:
        tensors = {name: array for name, array in training_tensors().items() if "CNN" not in name}
        tensors["lm/embedding"] = tensors.pop("lm/char_embed")
        options = tiny_options(char_cnn=REMOVED) if in_options else tiny_options()
        source = write_training(tmp_path / "source", options, tensors)
        assert_fails("whole words .*reads characters", source, tmp_path / "elmo")

    def test_fixture_with_words_as_input_is_refused(self, tmp_path: Path) -> None:
        for source in (".", "model.ckpt-4", "weights.hdf5"):
            assert_fails(
                "whole words.*reads characters", fixture_path("bilm_tf_lm_word_shared") / source, tmp_path / "elmo"
            )

    def test_options_are_needed(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        (source / "options.json").rename(tmp_path / "moved.json")
        assert_fails(r"no options file .* beside .*model\.ckpt-5; give it with --options", source, tmp_path / "elmo")
        convert_checkpoint(source, tmp_path / "elmo", options=tmp_path / "moved.json")


class TestFindingTheCheckpoint:
    @pytest.mark.parametrize("part", [".", "model.ckpt-5", "model.ckpt-5.index", "model.ckpt-5.data-00000-of-00001"])
    @pytest.mark.parametrize("format", ["auto", "tensorflow-checkpoint"])
    def test_every_way_to_name_it(self, part: str, format: str, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        report = convert_checkpoint(source / part, tmp_path / "elmo", format=format)
        assert report.format == "tensorflow-checkpoint"

    def test_file_with_a_dead_path_is_not_asked(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source", name="model")
        (source / "checkpoint").write_text('model_checkpoint_path: "/nowhere/model-9"')
        assert "model.index" in convert_checkpoint(source, tmp_path / "elmo").files

    def test_last_step_is_chosen_and_said(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source", name="model.ckpt-9")
        tensors = training_tensors()
        tensors["lm/softmax/b"] += 1
        write_bundle(source / "model.ckpt-10", tensors)
        report = convert_checkpoint(source, tmp_path / "elmo")
        assert any("model.ckpt-10" in note for note in report.notes)
        saved = load_file(tmp_path / "elmo" / "model.safetensors")
        assert_identical(saved["softmax.bias"], tensors["lm/softmax/b"])
        report = convert_checkpoint(source / "model.ckpt-9", tmp_path / "older")
        assert "model.ckpt-9.index" in report.files

    @pytest.mark.parametrize("other", ["best", "other-7", "model.ckpt-05"])
    def test_several_that_cannot_be_ordered_are_named(self, other: str, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        write_bundle(source / other, training_tensors())
        error = assert_fails("holds several checkpoints", source, tmp_path / "elmo")
        assert other in str(error)
        assert "model.ckpt-5" in str(error)

    def test_training_checkpoint_wins_over_the_hdf5_beside_it(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        write_tensors(source / "weights.hdf5", random_tensors(tiny_options()))
        report = convert_checkpoint(source, tmp_path / "elmo")
        assert report.format == "tensorflow-checkpoint"
        assert any("weights.hdf5 in the same folder was left aside" in note for note in report.notes)
        assert convert_checkpoint(source / "weights.hdf5", tmp_path / "hdf5").format == "allennlp"
        assert convert_checkpoint(source, tmp_path / "also-hdf5", format="allennlp").format == "allennlp"

    def test_data_without_an_index(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        (source / "model.ckpt-5.index").unlink()
        assert_fails(r"model\.ckpt-5\.index cannot be read: No such file", source, tmp_path / "elmo")

    def test_index_without_data(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        (source / "model.ckpt-5.data-00000-of-00001").unlink()
        error = assert_fails("data files of .* cannot be used", source, tmp_path / "elmo")
        assert_listed(error, "data-00000-of-00001 is missing")

    def test_folder_without_any(self, tmp_path: Path) -> None:
        (tmp_path / "source").mkdir()
        with pytest.raises(ConversionError, match=r"no checkpoint of TensorFlow \(\*\.index\) in the folder"):
            convert_checkpoint(tmp_path / "source", tmp_path / "elmo", format="tensorflow-checkpoint")

    def test_damaged_weights_name_the_tensor(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        path = source / "model.ckpt-5.data-00000-of-00001"
        content = bytearray(path.read_bytes())
        content[10] ^= 1
        path.write_bytes(content)
        assert_fails(r"The tensor lm/CNN/W_cnn_0 in .* is damaged", source, tmp_path / "elmo")


class TestVocabulary:
    def write(self, folder: Path, content: bytes, name: str = "vocab.txt") -> Path:
        source = write_training(folder)
        (source / "vocab.txt").unlink()
        (source / name).write_bytes(content)
        return source

    @pytest.mark.parametrize(
        "content",
        [
            WORDS_FILE.encode(),
            WORDS_FILE.encode().removesuffix(b"\n"),
            WORDS_FILE.replace("\n", "\r\n").encode(),
            WORDS_FILE.replace("\n", "\t17\n").encode(),
            WORDS_FILE.replace("\n", " 17\n").encode(),
            WORDS_FILE.replace("crane", "\u2028").encode(),
            WORDS_FILE.encode() + b"!!!MAXTERMID\n",
        ],
        ids=[
            "plain",
            "no last end",
            "Windows",
            "with counts",
            "after a blank",
            "line separator as a word",
            "bilm-tf's last line",
        ],
    )
    def test_copied_as_it_is(self, content: bytes, tmp_path: Path) -> None:
        convert_checkpoint(self.write(tmp_path / "source", content), tmp_path / "elmo")
        assert (tmp_path / "elmo" / "vocab.txt").read_bytes() == content
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "elmo")
        batch = tokenizer([["the", "flew", "unseen"]], is_split_into_words=True, return_tensors="pt")
        assert len(tokenizer.word_vocabulary) == 7
        # Ids of the file's lines, plus 1 because 0 is padding: <S> the flew <UNK> </S>.
        assert batch["word_input_ids"].tolist() == [[1, 4, 7, 3, 2]]

    def test_any_name(self, tmp_path: Path) -> None:
        source = self.write(tmp_path / "source", WORDS_FILE.encode(), "vocab-2016-09-10.txt")
        report = convert_checkpoint(source, tmp_path / "elmo")
        assert "vocab-2016-09-10.txt" in report.files
        assert (tmp_path / "elmo" / "vocab.txt").read_text(encoding="utf-8") == WORDS_FILE

    @pytest.mark.parametrize("content", [WORDS_FILE + "more\n", WORDS_FILE[4:], "", WORDS_FILE + "\n"])
    def test_other_number_of_words_is_refused(self, content: str, tmp_path: Path) -> None:
        source = self.write(tmp_path / "source", content.encode())
        assert_fails(r"vocab\.txt has \d words, but lm/softmax/W .* has 7 rows", source, tmp_path / "elmo")

    @pytest.mark.parametrize("word", ["<S>", "</S>", "<UNK>"])
    def test_special_words_are_needed(self, word: str, tmp_path: Path) -> None:
        source = self.write(tmp_path / "source", WORDS_FILE.replace(f"{word}\n", "other\n").encode())
        assert_fails(rf"vocab\.txt has no {word}; it is no language model's", source, tmp_path / "elmo")

    def test_other_encoding_is_refused_with_its_line(self, tmp_path: Path) -> None:
        source = self.write(tmp_path / "source", "a\nb\nЁ\nd\ne\nf\ng\n".encode("cp1251"))
        assert_fails(r"vocab\.txt is not UTF-8 in line 3", source, tmp_path / "elmo")

    def test_none_is_said(self, tmp_path: Path) -> None:
        source = write_training(tmp_path / "source")
        (source / "vocab.txt").unlink()
        report = convert_checkpoint(source, tmp_path / "elmo")
        assert any("no vocabulary" in note for note in report.notes)
        assert not (tmp_path / "elmo" / "vocab.txt").exists()

    def test_several_are_refused(self, tmp_path: Path) -> None:
        source = self.write(tmp_path / "source", b"", "vocab-1.txt")
        (source / "vocab-2.txt").write_bytes(b"")
        assert_fails(r"several vocabularies .*vocab-1\.txt, vocab-2\.txt", source, tmp_path / "elmo")


class TestModule:
    @pytest.mark.parametrize("part", [".", "variables", "variables/variables.index", "saved_model.pb"])
    def test_every_way_to_name_it(self, part: str, tmp_path: Path) -> None:
        report = convert_checkpoint(write_module(tmp_path / "module") / part, tmp_path / "elmo")
        assert report.format == "deeppavlov-hub"
        assert list(report.differences) == ["token layer", "biLM layer 1", "biLM layer 2", "mix of the layers"]
        assert report.max_difference < 2e-5
        convert_checkpoint(write_checkpoint(tmp_path / "twin"), tmp_path / "from-hdf5")
        assert_same_bilm(tmp_path / "elmo", tmp_path / "from-hdf5")

    @pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
    def test_every_architecture(self, changes: dict[str, Any], tmp_path: Path) -> None:
        options = tiny_options(**changes)
        layers = options["lstm"]["n_layers"]
        mix = {"my_ELMo_W": np.linspace(-1, 1, layers + 1, dtype=np.float32), "my_ELMo_gamma": np.float32([0.5])}
        source = write_module(tmp_path / "module", module_tensors(options, mix))
        overrides = {}
        for path, published in HUB_OPTIONS.items():
            group, name = path.split(".")
            if options[group][name] != published:
                overrides[path] = options[group][name]
        convert_checkpoint(source, tmp_path / "elmo", overrides=overrides)
        convert_checkpoint(write_checkpoint(tmp_path / "twin", options), tmp_path / "from-hdf5")
        assert_same_bilm(tmp_path / "elmo", tmp_path / "from-hdf5")
        ours, theirs = (AutoConfig.from_pretrained(tmp_path / name).to_dict() for name in ("elmo", "from-hdf5"))
        assert {name for name in ours if ours[name] != theirs[name]} == {
            "_name_or_path",
            "mix_parameters",
            "mix_gamma",
        }

    def test_mix_is_carried_over_exactly(self, tmp_path: Path) -> None:
        convert_checkpoint(write_module(tmp_path / "module"), tmp_path / "elmo")
        model = assert_loads_in_silence(AutoModel, tmp_path / "elmo")
        assert_identical(model.representations[0].scalar_parameters, MIX["W"])
        assert_identical(model.representations[0].gamma, MIX["gamma"])
        weights = np.exp(MIX["W"].astype(np.float64) + 1 / 3)
        assert_close(model.layer_weights().weights[0], weights / weights.sum(), 1e-7)
        assert model.config.mix_parameters == MIX["W"].tolist()
        assert model.config.mix_gamma == 1.75
        assert "its gamma are the original's" in (tmp_path / "elmo" / "README.md").read_text()
        two = AutoModel.from_pretrained(tmp_path / "elmo", num_output_representations=2)
        assert_identical(two.representations[1].scalar_parameters, MIX["W"])

    @pytest.mark.parametrize("shape", [(), (1,)])
    def test_names_of_googles_module(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        mix = {"weights": MIX["W"], "scaling": MIX["gamma"].reshape(shape)}
        convert_checkpoint(write_module(tmp_path / "module", module_tensors(mix=mix)), tmp_path / "elmo")
        model = AutoModel.from_pretrained(tmp_path / "elmo")
        assert_identical(model.representations[0].scalar_parameters, MIX["W"])
        assert_identical(model.representations[0].gamma, MIX["gamma"])

    def test_module_without_a_mix(self, tmp_path: Path) -> None:
        report = convert_checkpoint(write_module(tmp_path / "m", module_tensors(mix={})), tmp_path / "elmo")
        assert "mix of the layers" not in report.differences
        assert AutoConfig.from_pretrained(tmp_path / "elmo").mix_parameters is None

    @pytest.mark.parametrize(
        ("mix", "problem"),
        [
            ({"x_ELMo_W": np.ones(4, dtype=np.float32), "x_ELMo_gamma": MIX["gamma"]}, "x_ELMo_W has shape (4,)"),
            ({"x_ELMo_W": MIX["W"], "x_ELMo_gamma": np.ones(2, dtype=np.float32)}, "x_ELMo_gamma has shape (2,)"),
            ({"x_ELMo_W": MIX["W"]}, "aggregation/*_ELMo_gamma is missing"),
            ({"other": MIX["W"]}, "aggregation/other (3,) is not known"),
        ],
    )
    def test_wrong_mix_is_refused(self, mix: dict[str, np.ndarray], problem: str, tmp_path: Path) -> None:
        source = write_module(tmp_path / "module", module_tensors(mix=mix))
        assert_listed(assert_fails("do not fit together", source, tmp_path / "elmo"), problem)

    def test_two_mixes_are_refused(self, tmp_path: Path) -> None:
        mix = {f"{name}_ELMo_{part}": array for name in ("a", "b") for part, array in MIX.items()}
        error = assert_fails(
            "do not fit together", write_module(tmp_path / "module", module_tensors(mix=mix)), tmp_path / "elmo"
        )
        assert any("aggregation/b_ELMo_W (3,) is not known" in problem for problem in error.problems)

    def test_wrong_mix_never_gets_past_the_comparison(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wrong = operations.Operation(lambda array: (2 * array.reshape(1),), lambda arrays: arrays[0])
        monkeypatch.setitem(operations.OPERATIONS, "one_number", wrong)
        source = write_module(tmp_path / "module")
        assert_fails("differs from the original by .* in the mix of the layers", source, tmp_path / "elmo")

    def test_what_is_assumed_is_said_and_can_be_changed(self, tmp_path: Path) -> None:
        source = write_module(tmp_path / "module")
        report = convert_checkpoint(source, tmp_path / "elmo")
        config = AutoConfig.from_pretrained(tmp_path / "elmo")
        assert (config.hidden_act, config.cell_clip, config.projection_clip) == ("relu", 3, 3)
        assert (config.use_skip_connections, config.max_characters_per_token) == (True, 50)
        for path in HUB_OPTIONS:
            assert any(path in note for note in report.notes)
        overrides = {"lstm.cell_clip": None, "lstm.proj_clip": 2, "char_cnn.activation": "tanh"}
        report = convert_checkpoint(source, tmp_path / "other", overrides=overrides)
        config = AutoConfig.from_pretrained(tmp_path / "other")
        assert (config.hidden_act, config.cell_clip, config.projection_clip) == ("tanh", None, 2)
        (assumed,) = (note for note in report.notes if "assumed" in note)
        assert "lstm.cell_clip" not in assumed
        assert "lstm.use_skip_connections" in assumed

    def test_options_file_adds_to_what_the_tensors_say(self, tmp_path: Path) -> None:
        options = tmp_path / "mine.json"
        options.write_text('{"lstm": {"cell_clip": 5, "use_skip_connections": false}}')
        report = convert_checkpoint(write_module(tmp_path / "module"), tmp_path / "elmo", options=options)
        config = AutoConfig.from_pretrained(tmp_path / "elmo")
        assert (config.cell_clip, config.use_skip_connections, config.cell_size) == (5, False, 10)
        assert "mine.json" in report.files
        options.write_text('{"lstm": {"dim": 11}}')
        assert_fails("do not fit together", tmp_path / "module", tmp_path / "more", options=options)
        options.write_text('{"lstm": 11}')
        assert_fails("lstm must be a JSON object", tmp_path / "module", tmp_path / "more", options=options)

    def test_missing_tensors_are_named(self, tmp_path: Path) -> None:
        tensors = module_tensors()
        del tensors["bilm/char_embed"], tensors["bilm/CNN_high_0/b_carry"]
        error = assert_fails("is no ELMo module", write_module(tmp_path / "module", tensors), tmp_path / "elmo")
        assert_listed(error, "bilm/char_embed is missing")
        tensors["bilm/char_embed"] = module_tensors()["bilm/char_embed"]
        error = assert_fails("do not fit", write_module(tmp_path / "other", tensors), tmp_path / "elmo")
        assert_listed(error, "bilm/CNN_high_0/b_carry is missing")

    def test_kernels_of_another_rank(self, tmp_path: Path) -> None:
        tensors = module_tensors()
        tensors["bilm/CNN/W_cnn_1"] = np.ones(3, dtype=np.float32)
        assert_fails("cannot be used|do not fit", write_module(tmp_path / "module", tensors), tmp_path / "elmo")

    def test_row_of_masked_positions_must_be_zero(self, tmp_path: Path) -> None:
        tensors = module_tensors()
        tensors["bilm/char_embed"][0, 0] = 1
        source = write_module(tmp_path / "module", tensors)
        assert_fails(r"bilm/char_embed has 262 rows, but the first", source, tmp_path / "elmo")

    def test_missing_variables(self, tmp_path: Path) -> None:
        source = write_module(tmp_path / "module")
        shutil.rmtree(source / "variables")
        assert_fails(r"variables\.index cannot be read: No such file", source, tmp_path / "elmo")

    def test_missing_shard(self, tmp_path: Path) -> None:
        source = write_module(tmp_path / "module")
        (source / "variables" / "variables.data-00001-of-00002").unlink()
        error = assert_fails("cannot be used", source, tmp_path / "elmo")
        assert_listed(error, "variables.data-00001-of-00002 is missing")


class TestOverrides:
    def test_unknown_option_is_refused_with_those_known(self, tmp_path: Path) -> None:
        source = write_checkpoint(tmp_path / "source")
        assert_fails(
            "no option lstm.clip; options known: .*lstm.cell_clip",
            source,
            tmp_path / "elmo",
            overrides={"lstm.clip": 3},
        )

    def test_wrong_value_is_refused(self, tmp_path: Path) -> None:
        source = write_checkpoint(tmp_path / "source")
        overrides = {"lstm.cell_clip": "three"}
        assert_fails("cannot be used", source, tmp_path / "elmo", overrides=overrides)

    def test_they_count_and_are_said(self, tmp_path: Path) -> None:
        source = write_checkpoint(tmp_path / "source")
        report = convert_checkpoint(source, tmp_path / "elmo", overrides={"lstm.cell_clip": 0.5})
        assert AutoConfig.from_pretrained(tmp_path / "elmo").cell_clip == 0.5
        assert "Set by hand: lstm.cell_clip 0.5." in report.notes

    def test_command_line(self, tmp_path: Path) -> None:
        source = write_module(tmp_path / "module")
        arguments = ["--set", "lstm.cell_clip=null", "--set", "char_cnn.activation=tanh"]
        result = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "elmo"), *arguments])
        assert result.exit_code == 0, result.output
        config = AutoConfig.from_pretrained(tmp_path / "elmo")
        assert (config.cell_clip, config.hidden_act) == (None, "tanh")
        result = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "more"), "--set", "tanh"])
        assert result.exit_code == 1
        assert "must have the form NAME=VALUE" in result.stderr


class TestFixtures:
    @pytest.mark.parametrize("name", list(FIXTURE_TWINS))
    def test_plain_command_gives_the_weights_of_the_hdf5(self, name: str, tmp_path: Path) -> None:
        source, weights, options = FIXTURE_TWINS[name]
        fixture = fixture_path(name)
        result = CliRunner().invoke(app, ["convert", str(fixture / source), str(tmp_path / "elmo")])
        assert result.exit_code == 0, result.output
        convert_checkpoint(fixture / weights, tmp_path / "twin", options=fixture / options)
        assert_same_bilm(tmp_path / "elmo", tmp_path / "twin")

    @pytest.mark.parametrize("name", list(FIXTURE_TWINS))
    def test_export_gives_the_hdf5_back(self, name: str, tmp_path: Path) -> None:
        source, weights, options = FIXTURE_TWINS[name]
        fixture = fixture_path(name)
        convert_checkpoint(fixture / source, tmp_path / "elmo")
        report = export_checkpoint(tmp_path / "elmo", tmp_path / "exported")
        assert not any("head" in note for note in report.notes)
        assert any("softmax" in note for note in report.notes) == (name != "deeppavlov_hub_ru")
        with h5py.File(tmp_path / "exported" / "weights.hdf5") as ours, h5py.File(fixture / weights) as theirs:
            compared = []
            theirs.visititems(lambda key, item: compared.append(key) if isinstance(item, h5py.Dataset) else None)
            for key in compared:
                # The bias of the forget gate is stored with its 1, so that the last bit may be lost.
                assert_close(ours[key][...], theirs[key][...], 2.0**-21 if key.endswith("/B") else 0.0, key)
        written = json.loads((tmp_path / "exported" / "options.json").read_text())
        expected = json.loads((fixture / options).read_text())
        assert written["lstm"] == expected["lstm"]
        assert written["char_cnn"] == {**expected["char_cnn"], "n_characters": 262}
        assert written["dropout"] == expected.get("dropout", 0.1)

    def test_boundaries_typed_as_words(self, tmp_path: Path) -> None:
        """In the module they are plain bytes; the tokenizer follows AllenNLP, and the report says so."""
        report = convert_checkpoint(fixture_path("deeppavlov_hub_ru") / "module", tmp_path / "elmo")
        assert any("<S> and </S> typed as words" in note for note in report.notes)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "elmo")
        ids = tokenizer([["<S>"]], is_split_into_words=True, return_tensors="pt")["input_ids"]
        assert_identical(ids[0, 0], ids[0, 1])
