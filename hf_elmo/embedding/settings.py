"""What a job is to do: all that the command line says."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..conversion.staging import nearest_existing
from .embedder import BATCH_WORDS, ElmoEmbedder
from .errors import OutputError, SettingError
from .formats import OutputFormat, Shape, format_for
from .readers import Reader, format_of, open_reader
from .selection import Layers, Selection

SHARD_LINES, SHARD_LETTERS = 1000, 1 << 17
PRECISIONS = ("float32", "bfloat16", "float16")
MOST_WORDS, MOST_LINE_BYTES = 100_000, 1 << 20


@dataclass(frozen=True)
class JobSettings:
    """What is to be done.

    Attributes:
        input: The file, or `-`.
        output: The file or folder; its ending says the format.
        model: The folder or repository.
        layers: As of `ElmoEmbedder.embed`.
        pool: As of `ElmoEmbedder.embed`.
        boundaries: As of `ElmoEmbedder.embed`.
        dtype: `float32`, `float16` or `bfloat16`, as written.
        layout: `allennlp` or `elmoformanylangs`, of HDF5.
        keep_shards: Write a folder of Parquet files, not one file.
        input_format: One of `READERS`; by the ending of the input by default.
        column: Where the sentences are, in formats with columns.
        pretokenized: Whether texts are words with blanks between them.
        on_error: `stop` at a line that cannot be used, or `skip` it.
        most_words: The longest sentence.
        most_line_bytes: The longest line.
        shard_lines: Lines of a shard.
        shard_letters: Letters of a shard.
        batch_words: As of `ElmoEmbedder`.
        precision: What the model computes in; that of the model by default.
        device: Where; a GPU if there is one by default.
        threads: Threads of each worker; all that PyTorch takes by default.
    """

    input: str
    output: str
    model: str
    layers: Layers = "mix"
    pool: str | None = None
    boundaries: bool = False
    dtype: str = "float32"
    layout: str = "allennlp"
    keep_shards: bool = False
    input_format: str | None = None
    column: str | None = None
    pretokenized: bool = False
    on_error: str = "stop"
    most_words: int = MOST_WORDS
    most_line_bytes: int = MOST_LINE_BYTES
    shard_lines: int = SHARD_LINES
    shard_letters: int = SHARD_LETTERS
    batch_words: int | None = None
    precision: str | None = None
    device: str | None = None
    threads: int | None = None

    def settled(self, device: str, threads: int) -> JobSettings:
        """The same with nothing left open that decides the bytes, so that every worker does the same.

        Args:
            device: Where to compute unless that is said.
            threads: Threads of each worker unless that is said.
        """
        device = self.device or device
        batch_words = self.batch_words or BATCH_WORDS.get(torch.device(device).type, BATCH_WORDS["cuda"])
        return replace(self, device=device, threads=self.threads or threads, batch_words=batch_words)

    def load(self, device: str | None = None) -> ElmoEmbedder:
        """Loads the model, by default to the device of the job."""
        return ElmoEmbedder.from_pretrained(self.model, device or self.device, self.precision, self.batch_words)

    def open_reader(self) -> Reader:
        """Opens the input.

        Raises:
            InputError: It cannot be opened.
        """
        return open_reader(self.input, self.input_format, self.column, self.pretokenized, self.most_line_bytes)

    def options(self, selection: Selection, precision: torch.dtype) -> dict[str, Any]:
        """All that decides the bytes, besides model and input; of settings that are settled."""
        layers = selection.layers
        return {
            "layers": list(layers) if isinstance(layers, tuple) else layers,
            "pool": self.pool,
            "boundaries": self.boundaries,
            "dtype": self.dtype,
            "output_format": Path(self.output).suffix.lower() or "datasets",
            "layout": self.layout,
            "shards": self.keep_shards,
            "input_format": format_of(self.input, self.input_format),
            "column": self.column,
            "pretokenized": self.pretokenized,
            "max_words": self.most_words,
            "max_line_bytes": self.most_line_bytes,
            "shard_lines": self.shard_lines,
            "shard_letters": self.shard_letters,
            "batch_words": self.batch_words,
            "precision": str(precision).removeprefix("torch."),
            "device": torch.device(self.device or "cpu").type,
        }


def output_format(settings: JobSettings, embedder: ElmoEmbedder, selection: Selection) -> OutputFormat:
    """The output's format.

    Raises:
        SettingError: There is none for this output, or it does not have what is asked for.
    """
    dim = embedder.model.config.hidden_size
    shape = Shape(selection.columns, selection.has_layer_axis, settings.pool is not None, dim, settings.dtype)
    return format_for(settings.output, shape, settings.layout, settings.keep_shards)


def check_settings(settings: JobSettings) -> None:
    """Refuses, before any work, what cannot be.

    Raises:
        SettingError: A setting is none, or a format is unknown or does not have what is asked for.
        OutputError: The output cannot be written.
    """
    if settings.on_error not in ("stop", "skip"):
        raise SettingError(f"--on-error must be stop or skip, not {settings.on_error!r}.")
    for name in ("most_words", "most_line_bytes", "shard_lines", "shard_letters", "threads", "batch_words"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise SettingError(f"{name.replace('_', '-').replace('most', 'max')} must be 1 or more, not {value}.")
    if settings.precision not in (None, *PRECISIONS):
        raise SettingError(f"--precision must be {', '.join(PRECISIONS)}, not {settings.precision!r}.")
    if not is_device(settings.device or "cpu"):
        raise SettingError(f"The device {settings.device!r} is unknown: name cpu, cuda, cuda:1 or the like.")
    format_of(settings.input, settings.input_format)
    format_for(
        settings.output, Shape(["vectors"], False, False, 1, settings.dtype), settings.layout, settings.keep_shards
    )
    parent = nearest_existing(Path(os.path.abspath(settings.output)).parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"The output {settings.output} cannot be written: {parent} is no folder to write in.")


def is_device(name: str) -> bool:
    """Whether PyTorch knows such a device, be there one or not."""
    try:
        return torch.device(name).type != "meta"
    except RuntimeError:
        return False
