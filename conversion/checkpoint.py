"""What every reader returns: the options and the tensors of an original checkpoint, under their own names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file, read when it is asked for, so that a checkpoint is never in memory twice.

    Args:
        shape: Shape as the file states it.
        dtype: Name of the stored type, such as `"float32"`.
        load: Reads the tensor as float32, of exactly `shape`; raises `ConversionError` when it cannot be read.
    """

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], FloatArray]


@dataclass(frozen=True)
class SourceCheckpoint:
    """An original checkpoint; nothing in it is renamed or reordered.

    Args:
        format: Name of the format, as in `formats.FORMATS`.
        options: The options file as it is, or what the tensors say where the format has none.
        tensors: Name in the file -> tensor.
        options_file: Where the options were read; `None` where the format has no such file.
        weights_file: Where the tensors are, or the index that says where.
        data_files: Further files of the checkpoint.
        kept_files: Name in the converted folder -> file that goes into it as it is, such as a vocabulary.
        defaults: Options that files of this format leave out, by their dotted path, with the published value.
        stated: What the files say of their origin: property -> value, in words.
        tokenizer: Arguments of `ElmoTokenizer`, such as the characters where they are not bytes.
        notes: What the reader chose or left aside, as sentences for the report.
    """

    format: str
    options: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    options_file: Path | None
    weights_file: Path
    data_files: tuple[Path, ...] = ()
    kept_files: Mapping[str, Path] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def options_name(self) -> str:
        """The file that the options come from, for messages."""
        return (self.options_file or self.weights_file).name

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the conversion reads, each once."""
        options = () if self.options_file is None else (self.options_file,)
        return tuple(dict.fromkeys((*options, self.weights_file, *self.data_files, *self.kept_files.values())))


def numbered(tensors: Mapping[str, StoredTensor], name: str) -> list[StoredTensor]:
    """The tensors whose names are `name` with 0, 1, 2 and so on in the place of `{}`."""
    found: list[StoredTensor] = []
    while name.format(len(found)) in tensors:
        found.append(tensors[name.format(len(found))])
    return found
