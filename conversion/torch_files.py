"""Reads the tensors in PyTorch's own files, which are pickles, without executing anything in them."""

import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from .checkpoint import FloatArray, StoredTensor
from .errors import ConversionError

ZIP_MAGIC = b"PK\x03\x04"
FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def read_state_dict(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a state dict, by their names.

    Both formats of PyTorch are read: the zip, whose checksums PyTorch itself does not look at, and the older one,
    which has none. Tensors of other types than floating-point numbers are listed but cannot be loaded.

    Args:
        path: A file that `torch.save` wrote.

    Raises:
        ConversionError: When the file is missing or damaged, or when it holds anything but named tensors.
    """
    if not path.is_file():
        raise ConversionError(f"The weights file {path} does not exist.")
    damage = f"The weights file {path} cannot be read; it is damaged, cut short or in another format"
    try:
        with path.open("rb") as file:
            zipped = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
        if zipped and (problem := zip_problem(path)):
            raise ConversionError(f"{damage} ({problem}).")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # damage can look like an unknown version of the format
            # A mapped storage cannot grow, so that no tensor reaches beyond what is stored; the older format checks.
            contents = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except ConversionError:
        raise
    except pickle.UnpicklingError as error:
        # PyTorch's own message advises to switch its safety off.
        raise ConversionError(
            f"The weights file {path} is damaged or holds something other than tensors; nothing in it was executed."
        ) from error
    # A damaged pickle can end in any exception.
    except Exception as error:
        raise ConversionError(f"{damage} ({first_line(error)}).") from error
    if not isinstance(contents, Mapping):
        raise ConversionError(f"The weights file {path} must hold named tensors, not a {type(contents).__name__}.")
    found = [(name, value_problem(name, value)) for name, value in contents.items()]
    problems = [f"{name!r:.100} {problem}" for name, problem in found if problem]
    if problems:
        raise ConversionError(f"The weights file {path} is refused:", problems)
    return {
        name: StoredTensor(tuple(value.shape), str(value.dtype).removeprefix("torch."), loader(path, name, value))
        for name, value in contents.items()
    }


def first_line(error: Exception) -> str:
    """The first line of a message: PyTorch's go on for pages."""
    return (str(error) or type(error).__name__).splitlines()[0]


def zip_problem(path: Path) -> str | None:
    """What is wrong with the zip of a state dict, `None` when nothing is."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                return f"{member.filename} in it is compressed, which PyTorch never does"
        damaged = archive.testzip()
    return None if damaged is None else f"the checksum of {damaged} in it is wrong"


def value_problem(name: object, value: object) -> str | None:
    """Why an entry of a state dict is no tensor to be read, `None` when it is one."""
    if not isinstance(name, str):
        return "is no name"
    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__} and no tensor"
    if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
        return "is no plain tensor"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return "has more numbers than are stored"
    return None


def loader(path: Path, name: str, tensor: torch.Tensor) -> Callable[[], FloatArray]:
    """A function that gives one tensor as float32."""

    def load() -> FloatArray:
        if tensor.dtype not in FLOAT_TYPES:
            raise ConversionError(f"The tensor {name} in {path} holds {tensor.dtype}, and weights are float.")
        return np.array(tensor.detach().to(torch.float32).numpy())

    return load
