"""The formats that can be converted: for each, how to recognise it, its reader and the names of its tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hf_elmo.configuration_elmo import ElmoConfig

from . import (
    configure,
    mapping,
    read_allennlp,
    read_elmoformanylangs,
    read_nlpl,
    read_task_model,
    read_tensorflow,
    tensor_bundle,
    verify,
    verify_elmoformanylangs,
    verify_task_model,
)
from .archives import is_archive
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
        evaluate: The original's arithmetic from the original arrays, for the sentences of `verify`.
        configure: (checkpoint, layout) -> its configuration and what was assumed.
    """

    title: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, Path | None], SourceCheckpoint]
    layout: mapping.Layout
    evaluate: Callable[[SourceCheckpoint], verify.Expected] = verify.evaluate_allennlp
    configure: Callable[[SourceCheckpoint, mapping.Layout], tuple[ElmoConfig, tuple[str, ...]]] = configure.configure


# Where several are in one folder, the first wins: a training checkpoint has more than the HDF5 written from it.
FORMATS = {
    read_tensorflow.HUB_FORMAT: CheckpointFormat(
        title="DeepPavlov's or Google's TF-Hub module: a folder with saved_model.pb and variables/",
        recognises=read_tensorflow.recognises_module,
        read=read_tensorflow.read_module,
        layout=mapping.DEEPPAVLOV_HUB,
        evaluate=verify.evaluate_hub,
    ),
    read_tensorflow.CHECKPOINT_FORMAT: CheckpointFormat(
        title="training checkpoint of bilm-tf or DeepPavlov: *.index and *.data-* with an options.json beside them",
        recognises=read_tensorflow.recognises_checkpoint,
        read=read_tensorflow.read_checkpoint,
        layout=mapping.TENSORFLOW_CHECKPOINT,
        evaluate=verify.evaluate_training,
    ),
    read_nlpl.FORMAT: CheckpointFormat(
        title="NLPL, RusVectores or CLARIN: a zip or folder with model.hdf5, options.json and meta.json",
        recognises=read_nlpl.recognises,
        read=read_nlpl.read,
        layout=mapping.ALLENNLP,
    ),
    read_elmoformanylangs.FORMAT: CheckpointFormat(
        title="ELMoForManyLangs: a folder with config.json, char.dic, word.dic, token_embedder.pkl and encoder.pkl",
        recognises=read_elmoformanylangs.recognises,
        read=read_elmoformanylangs.read,
        layout=mapping.ELMOFORMANYLANGS,
        evaluate=verify_elmoformanylangs.evaluate,
        configure=read_elmoformanylangs.configure,
    ),
    read_task_model.FORMAT: CheckpointFormat(
        title="task model of AllenNLP with an ELMo inside: model.tar.gz, or a folder with weights.th and config.json",
        recognises=read_task_model.recognises,
        read=read_task_model.read,
        layout=mapping.ALLENNLP_TASK_MODEL,
        evaluate=verify_task_model.evaluate,
        configure=read_task_model.configure,
    ),
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
    if not source.exists() and not (
        source.name and source.with_name(source.name + tensor_bundle.INDEX_SUFFIX).is_file()
    ):
        raise ConversionError(f"The source {source} does not exist.")
    known = FORMATS[name] if name != "auto" else find_format(source)
    if known is not None:
        return known
    inside = sorted(path.name for path in source.iterdir() if is_archive(path)) if source.is_dir() else []
    hint = f" It holds {' and '.join(inside)}: name that, or unpack it." if inside else ""
    if not inside and source.is_dir() and any(source.glob("*options.json")):
        hint = " It holds an options file but no weights: put the HDF5 file beside it."
    raise ConversionError(
        f"{source} is no checkpoint that can be converted; formats known: {', '.join(FORMATS)} (`hf-elmo convert "
        f"--help` tells what belongs to each).{hint}"
    )


def find_format(source: Path, name: str = "auto") -> CheckpointFormat | None:
    """The format that a file or folder looks like, `None` when it looks like none.

    Args:
        source: The file or folder.
        name: The only format to look for, or `"auto"`.

    Raises:
        ConversionError: When the source cannot be read.
    """
    try:
        for known_name, known in FORMATS.items():
            if name in ("auto", known_name) and known.recognises(source):
                return known
    except OSError as error:
        raise ConversionError(f"The source {source} cannot be read: {error.strerror or error}.") from error
    return None
