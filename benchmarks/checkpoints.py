"""Random checkpoints, which cost as much as trained ones: in the original layout, and converted."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.conversion import convert_checkpoint, export_checkpoint

TINY: dict[str, Any] = {
    "cell_size": 32,
    "projection_size": 16,
    "character_embedding_size": 4,
    "filters": [[1, 8], [2, 8], [3, 16]],
    "num_highway_layers": 1,
}
"""Not a published size: for trying the code."""


@dataclass(frozen=True)
class Checkpoint:
    """The same weights twice.

    Args:
        original: Folder with options.json and weights.hdf5, as AllenNLP and bilm-tf read them.
        converted: Folder of transformers.
    """

    original: Path
    converted: Path


def make_config(size: str) -> ElmoConfig:
    """The architecture of a published size, or of the size "tiny"."""
    return ElmoConfig(**TINY) if size == "tiny" else ElmoConfig.from_size(size)


def make_checkpoint(work: Path, size: str) -> Checkpoint:
    """A random checkpoint of a size; kept below `work` for the next run."""
    folder = work / "checkpoints" / size
    checkpoint = Checkpoint(folder / "original", folder / "converted")
    if not checkpoint.original.exists():
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as temporary:
            ElmoModel(make_config(size)).save_pretrained(temporary)
            ElmoTokenizer().save_pretrained(temporary)
            export_checkpoint(temporary, checkpoint.original)
    if not checkpoint.converted.exists():
        convert_checkpoint(checkpoint.original, checkpoint.converted)
    return checkpoint
