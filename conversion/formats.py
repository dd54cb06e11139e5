"""The formats that can be converted: for each, how to recognise it, its reader and the names of its tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import mapping, read_allennlp
from .checkpoint import SourceCheckpoint
from .errors import ConversionError


@dataclass(frozen=True)
class CheckpointFormat:
    """One format.

    Args:
        title: What it is, for messages.
        recognises: Whether a path looks like it.
        read: (source, options file or `None`) -> the checkpoint.
        layout: The table of its tensors.
    """

    title: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, Path | None], SourceCheckpoint]
    layout: mapping.Layout


FORMATS = {
    read_allennlp.FORMAT: CheckpointFormat(
        title="AllenNLP or bilm-tf: an HDF5 file with an options.json beside it",
        recognises=read_allennlp.recognises,
        read=read_allennlp.read,
        layout=mapping.ALLENNLP,
    ),
}


def describe_formats() -> str:
    """The known formats in one line."""
    return "; ".join(f"{name} ({known.title})" for name, known in FORMATS.items())


def choose_format(source: Path, name: str = "auto") -> CheckpointFormat:
    """The format of a checkpoint.

    Args:
        source: The file or folder.
        name: A key of `FORMATS`, or `"auto"`.

    Raises:
        ConversionError: When there is no such format or no such source, or when no format recognises it.
    """
    if name != "auto" and name not in FORMATS:
        raise ConversionError(f"There is no format {name!r}; formats known: auto, {describe_formats()}.")
    if not source.exists():
        raise ConversionError(f"The source {source} does not exist.")
    if name != "auto":
        return FORMATS[name]
    try:
        for known in FORMATS.values():
            if known.recognises(source):
                return known
    except OSError as error:
        raise ConversionError(f"The source {source} cannot be read: {error.strerror or error}.") from error
    raise ConversionError(f"{source} is no checkpoint that can be converted; formats known: {describe_formats()}.")
