"""The original checkpoints of the fixtures, converted, and what they give for a batch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModel, AutoTokenizer

import hf_elmo  # noqa: F401  (registers the Auto classes)
from hf_elmo.conversion import convert_checkpoint
from tests.assertions import assert_zero_at_padding
from tests.reference import Array, ReferenceBiLm, read_checkpoint
from tests.shared_files import fixture_path

SOURCES = {
    "allennlp_tiny": ("lm_weights.hdf5", "options.json"),
    "allennlp_random": ("weights.hdf5", "options.json"),
    "nlpl_zip": ("model.hdf5", "options.json"),
    "bilm_tf_lm": ("weights.hdf5", "options.json"),
    "deeppavlov_lm_ru": ("weights.hdf5", "options.json"),
    "deeppavlov_hub_ru": ("source_weights.hdf5", "source_options.json"),
}

TENSORFLOW = {"bilm_tf_lm": ".", "deeppavlov_lm_ru": "model", "deeppavlov_hub_ru": "module"}
"""Fixtures that have TensorFlow's own files beside their HDF5, and what a person would name to convert them."""

FROM_TENSORFLOW = " from TensorFlow"
"""After a fixture's name: its TensorFlow files are converted, not its HDF5."""


@dataclass
class Output:
    """What the model gives for a batch, as arrays; boundary rows are kept.

    Attributes:
        layers: (L + 1, batch, length, 2P).
        representation: (batch, length, 2P).
        mask: (batch, length), bool.
        states: To be passed to the next batch.
    """

    layers: Array
    representation: Array
    mask: Array
    states: Any

    def without_boundaries(self) -> Output:
        """The words alone, moved to the left and followed by zeros, as AllenNLP's `remove_sentence_boundaries`."""
        lengths = self.mask.sum(axis=1) - 2
        mask = np.arange(self.mask.shape[1] - 2) < lengths[:, None]
        return replace(
            self,
            layers=self.layers[:, :, 1:-1] * mask[..., None],
            representation=self.representation[:, 1:-1] * mask[..., None],
            mask=mask,
        )


@dataclass
class Elmo:
    """A converted checkpoint and the original beside it; `weights_path` is the HDF5, whatever was converted."""

    model: Any
    tokenizer: Any
    options_path: Path
    weights_path: Path
    fixture: Path

    def json(self, name: str) -> Any:
        return json.loads((self.fixture / name).read_text())

    def arrays(self, name: str = "expected.npz") -> dict[str, Array]:
        with np.load(self.fixture / name) as file:
            return dict(file)

    def softmax(self) -> dict[str, Array]:
        """The converted output layer: weight (words, P) and bias (words,); nothing where there was none."""
        saved = load_file(Path(self.model.name_or_path) / "model.safetensors")
        return {key.removeprefix("softmax."): value for key, value in saved.items() if key.startswith("softmax.")}

    def reference(self) -> ReferenceBiLm:
        return ReferenceBiLm(*read_checkpoint(self.options_path, self.weights_path))

    def encode(self, sentences: Sequence[Sequence[str]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Character ids and mask from the converted tokenizer."""
        batch = self.tokenizer(
            [list(words) for words in sentences], is_split_into_words=True, padding=True, return_tensors="pt"
        )
        return batch["input_ids"], batch["attention_mask"]

    def run(self, input_ids: torch.Tensor, mask: torch.Tensor, states: Any = None) -> Output:
        with torch.inference_mode():
            output = self.model(input_ids, attention_mask=mask, states=states, output_hidden_states=True)
        for index, layer in enumerate(output.hidden_states):
            assert_zero_at_padding(layer, mask, f"layer {index}")
        return Output(
            layers=torch.stack(output.hidden_states).numpy(),
            representation=output.last_hidden_state.numpy(),
            mask=mask.numpy() == 1,
            states=output.states,
        )

    def read(self, sentences: Sequence[Sequence[str]], states: Any = None) -> Output:
        return self.run(*self.encode(sentences), states)

    def padding_vector(self) -> Array:
        """The token layer (2P,) of a row of zeros that is not masked: what TensorFlow has at padded positions."""
        zeros = torch.zeros(1, 1, self.model.config.max_characters_per_token, dtype=torch.long)
        return self.run(zeros, torch.ones(1, 1, dtype=torch.long)).layers[0, 0, 0]


def convert_fixture(name: str, folder: Path) -> Elmo:
    """Converts the checkpoint of a fixture into a folder and loads it as a user would.

    Args:
        name: A key of `SOURCES`; with `FROM_TENSORFLOW` after it, a key of `TENSORFLOW`.
        folder: An empty folder.
    """
    from_tensorflow = name.endswith(FROM_TENSORFLOW)
    name = name.removesuffix(FROM_TENSORFLOW)
    fixture = source = fixture_path(name)
    if name == "nlpl_zip":
        source = folder / "unpacked"
        with zipfile.ZipFile(fixture / "900.zip") as archive:
            archive.extractall(source)
    weights_path, options_path = (source / part for part in SOURCES[name])
    if from_tensorflow:
        convert_checkpoint(fixture / TENSORFLOW[name], folder / "converted")
    elif name == "nlpl_zip":
        convert_checkpoint(fixture / "900.zip", folder / "converted")
    else:
        convert_checkpoint(weights_path, folder / "converted", options=options_path)
    model = AutoModel.from_pretrained(folder / "converted").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "converted")
    return Elmo(model, tokenizer, options_path, weights_path, fixture)
