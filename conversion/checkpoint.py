"""What every reader returns: the options and the tensors of an original checkpoint, under their own names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
        options: The options file as it is.
        tensors: Name in the file -> tensor.
        options_file: Where the options were read.
        weights_file: Where the tensors are.
    """

    format: str
    options: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    options_file: Path
    weights_file: Path
