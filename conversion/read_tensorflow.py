"""Reads TensorFlow's files of ELMo: modules for TF-Hub, and the checkpoints that training writes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint import SourceCheckpoint, StoredTensor, numbered
from .errors import ConversionError
from .read_allennlp import find_options, names, read_options, weight_candidates
from .tensor_bundle import INDEX_SUFFIX, is_index, read_bundle

HUB_FORMAT = "deeppavlov-hub"
CHECKPOINT_FORMAT = "tensorflow-checkpoint"

MODULE_FILES = ("saved_model.pb", "tfhub_module.pb")
VARIABLES = "variables"
BUNDLE_FILE = re.compile(r"(?P<prefix>.+)\.(?P<kind>index|meta|data-\d{5}-of-\d{5})", re.DOTALL)
STEP = re.compile(r"(?P<run>.*)-(?P<step>\d{1,18})", re.DOTALL)

PUBLISHED_OPTIONS: Mapping[str, Any] = {
    "char_cnn.activation": "relu",
    "char_cnn.max_characters_per_token": 50,
    "lstm.cell_clip": 3,
    "lstm.proj_clip": 3,
    "lstm.use_skip_connections": True,
}
"""What the published modules have in their graphs, and no module has in its variables."""

HUB_NOTES = (
    "In the original module <S> and </S> typed as words were plain characters; here they are the boundaries, as in "
    "AllenNLP.",
    "The module's output `default` is the mean of the mixed layers over the words, without gamma.",
)

WORD_TABLE, CHARACTER_TABLE, SOFTMAX = "lm/embedding", "lm/char_embed", "lm/softmax/W"
VOCABULARY = "vocab.txt"
LARGEST_VOCABULARY = 2**28
SPECIAL_WORDS = ("<S>", "</S>", "<UNK>")
NO_WORD = "!!!MAXTERMID"
"""A line at the end of some of bilm-tf's vocabularies that is no word and has no row in the softmax."""


def recognises_module(source: Path) -> bool:
    """Whether a path is a TF-Hub module, its folder of variables, or a file in it."""
    return find_module(source) is not None


def find_module(source: Path) -> Path | None:
    """The folder of the module that a path means, `None` when it is no module."""
    index = f"{VARIABLES}{INDEX_SUFFIX}"
    candidates = [source, source.parent, source.parent.parent]
    for folder in candidates[:1] if source.is_dir() and source.name != VARIABLES else candidates:
        if (folder / VARIABLES / index).is_file() or all((folder / name).is_file() for name in MODULE_FILES):
            inside = folder == source or source.name in MODULE_FILES or VARIABLES in (source.name, source.parent.name)
            return folder if inside else None
    return None


def read_module(source: Path, options_file: Path | None = None) -> SourceCheckpoint:
    """Reads the index of a module's variables; the sizes of the architecture are those of its tensors.

    Args:
        source: The module's folder, or a file in it.
        options_file: A module has none; one given here adds to what the tensors say.

    Raises:
        ConversionError: When a file is missing or damaged, or when the variables are no ELMo.
    """
    folder = find_module(source) or source
    bundle = read_bundle(folder / VARIABLES / VARIABLES)
    options = describe_tensors(bundle.tensors, bundle.files[0])
    if options_file is not None:
        options = merge(options, read_options(options_file))
    index, *shards = bundle.files
    return SourceCheckpoint(
        format=HUB_FORMAT,
        options=options,
        tensors=bundle.tensors,
        options_file=options_file,
        weights_file=index,
        data_files=tuple(shards),
        defaults=PUBLISHED_OPTIONS,
        notes=HUB_NOTES,
    )


def describe_tensors(tensors: Mapping[str, StoredTensor], index: Path) -> dict[str, Any]:
    """The sizes of a module, as an options file states them.

    Raises:
        ConversionError: Naming the tensors without which there are no sizes.
    """
    lstm = "bilm/RNN_0/RNN/MultiRNNCell/Cell{}/rnn/lstm_cell/projection/kernel"
    wanted = {"bilm/char_embed": 2, "bilm/CNN/W_cnn_0": 4, lstm.format(0): 2}
    problems = [
        f"{name} is missing" if name not in tensors else f"{name} has shape {tensors[name].shape}"
        for name, rank in wanted.items()
        if name not in tensors or len(tensors[name].shape) != rank
    ]
    if problems:
        raise ConversionError(f"{index} is no ELMo module:", problems)
    kernels = numbered(tensors, "bilm/CNN/W_cnn_{}")
    cell, projection = tensors[lstm.format(0)].shape
    return {
        "char_cnn": {
            "embedding": {"dim": tensors["bilm/char_embed"].shape[1]},
            # (1, width, dim, count); another rank is found when the shapes are compared
            "filters": [[(*kernel.shape, 0, 0, 0, 0)[position] for position in (1, 3)] for kernel in kernels],
            "n_highway": len(numbered(tensors, "bilm/CNN_high_{}/W_carry")),
        },
        "lstm": {"dim": cell, "projection_dim": projection, "n_layers": len(numbered(tensors, lstm))},
    }


def merge(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with those of a file over them, group by group."""
    merged = {**options, **given}
    for key, value in options.items():
        if isinstance(value, Mapping) and isinstance(given.get(key), Mapping):
            merged[key] = merge(value, given[key])
    return merged


def recognises_checkpoint(source: Path) -> bool:
    """Whether a path is a training checkpoint: a folder with one, one of its files, or what their names begin with."""
    if source.is_dir():
        return bool(find_prefixes(source))
    return find_prefix(source) is not None


def read_checkpoint(source: Path, options_file: Path | None = None) -> SourceCheckpoint:
    """Reads the options, the index and the vocabulary of a training checkpoint.

    Args:
        source: The folder, a file of the checkpoint, or what the names of its files begin with.
        options_file: The options file; looked for beside the checkpoint when it is `None`.

    Raises:
        ConversionError: When a file is missing, damaged or ambiguous, when the model's input are whole words, or when
            the vocabulary is not the softmax's.
    """
    prefix, notes = choose_prefix(source)
    bundle = read_bundle(prefix)
    index, *shards = bundle.files
    if options_file is None:
        options_file = find_options(prefix)
    options = read_options(options_file)
    if WORD_TABLE in bundle.tensors and CHARACTER_TABLE not in bundle.tensors:
        raise ConversionError(
            f"{index} holds a model whose input are whole words ({WORD_TABLE}; no char_cnn in its options), and "
            "ElmoModel reads characters."
        )
    kept_files = {}
    if SOFTMAX in bundle.tensors:
        words = bundle.tensors[SOFTMAX].shape[:1]
        vocabulary = find_vocabulary(prefix.parent)
        if vocabulary is None:
            notes.append(
                f"There is no vocabulary (vocab*.txt) beside {index.name}; the softmax's words are not known."
            )
        else:
            check_vocabulary(vocabulary, words[0] if words else 0, index)
            kept_files[VOCABULARY] = vocabulary
        notes.append(
            "The softmax of the language model is kept as softmax.weight and softmax.bias"
            + (f", its words as {VOCABULARY}" if kept_files else "")
            + "; AutoModel loads the biLM without it."
        )
    others = weight_candidates(prefix.parent)
    if source.is_dir() and others:
        notes.append(f"{names(others)} in the same folder was left aside; it has no softmax.")
    return SourceCheckpoint(
        format=CHECKPOINT_FORMAT,
        options=options,
        tensors=bundle.tensors,
        options_file=options_file,
        weights_file=index,
        data_files=tuple(shards),
        kept_files=kept_files,
        notes=tuple(notes),
    )


def choose_prefix(source: Path) -> tuple[Path, list[str]]:
    """What the names of a checkpoint's files begin with, and a note where there was a choice.

    The file `checkpoint` is not asked: it often holds a path on the machine where the training ran.

    Raises:
        ConversionError: When there is none, or several of which none is the newest.
    """
    if not source.is_dir():
        return find_prefix(source) or source, []
    found = find_prefixes(source)
    if not found:
        raise ConversionError(f"There is no checkpoint of TensorFlow (*.index) in the folder {source}.")
    if len(found) == 1:
        return found[0], []
    matches = [STEP.fullmatch(path.name) for path in found]
    steps = {int(match["step"]): path for match, path in zip(matches, found, strict=True) if match}
    if None in matches or len({match["run"] for match in matches if match}) > 1 or len(steps) < len(found):
        raise ConversionError(
            f"The folder {source} holds several checkpoints ({names(found)}); name the one to convert."
        )
    newest = steps[max(steps)]
    return newest, [f"Of {len(found)} checkpoints the one of the last step, {newest.name}, was converted."]


def find_prefixes(folder: Path) -> list[Path]:
    """What the names of the checkpoints in a folder begin with."""
    found = set()
    for path in folder.iterdir():
        match = BUNDLE_FILE.fullmatch(path.name)
        if match and path.is_file() and (match["kind"].startswith("data") or is_index(path)):
            found.add(folder / match["prefix"])
    return sorted(found)


def find_prefix(source: Path) -> Path | None:
    """What the names of a checkpoint's files begin with, from one of them or from the beginning itself."""
    match = BUNDLE_FILE.fullmatch(source.name)
    for prefix in (source.parent / match["prefix"] if match else source, source):
        if source.parent.is_dir() and prefix in find_prefixes(source.parent):
            return prefix
    return None


def find_vocabulary(folder: Path) -> Path | None:
    """The vocabulary in a folder: `vocab.txt`, otherwise the only `vocab*.txt`.

    Raises:
        ConversionError: When there are several.
    """
    found = sorted(path for path in folder.glob("vocab*.txt") if path.is_file())
    if folder / VOCABULARY in found:
        return folder / VOCABULARY
    if len(found) > 1:
        raise ConversionError(
            f"There are several vocabularies in {folder} ({names(found)}); keep the right one there."
        )
    return found[0] if found else None


def check_vocabulary(path: Path, words: int, index: Path) -> None:
    """Checks that a vocabulary has a line for each row of the softmax, and the words that every one has.

    Raises:
        ConversionError: When it has not, or when it is no text in UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_VOCABULARY + 1)
    except OSError as error:
        raise ConversionError(f"The vocabulary {path} cannot be read: {error.strerror or error}.") from error
    if len(content) > LARGEST_VOCABULARY:
        raise ConversionError(f"The vocabulary {path} is larger than {LARGEST_VOCABULARY} bytes.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConversionError(f"The vocabulary {path} is not UTF-8 in line {line}.") from error
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
    # DeepPavlov cuts a line at the first white space, behind which there may be a count.
    found = [(line.split() or [""])[0] for line in lines]
    if found[-1] == NO_WORD:
        found.pop()
    if len(found) != words:
        raise ConversionError(
            f"The vocabulary {path} has {len(found)} words, but {SOFTMAX} in {index.name} has {words} rows; "
            "they do not belong together."
        )
    missing = [word for word in SPECIAL_WORDS if word not in found]
    if missing:
        raise ConversionError(f"The vocabulary {path} has no {' and no '.join(missing)}; it is no language model's.")
