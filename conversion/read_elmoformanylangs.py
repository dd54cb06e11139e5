"""Reads the models of ELMoForManyLangs: a folder of settings in JSON, two lexicons and two pickles of weights."""

import ntpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.lexicon_elmo import CharacterLexicon, WordVocabulary

from .checkpoint import SourceCheckpoint, StoredTensor
from .errors import ConversionError
from .mapping import Layout
from .options import (
    LARGEST_SIZE,
    Option,
    activation,
    check_filter_widths,
    clip,
    filters,
    highways,
    layers,
    parse_table,
    read_path,
    size,
    whole_number,
    word_length,
)
from .read_allennlp import names, read_options
from .torch_files import read_state_dict

FORMAT = "elmoformanylangs"
WEIGHTS_FILES = ("token_embedder.pkl", "encoder.pkl")
SETTINGS_FILE = "config.json"
CHARACTERS_FILE, WORDS_FILE = "char.dic", "word.dic"
SOFTMAX_FILE = "classifier.pkl"
LARGEST_LEXICON_FILE = 2**28
SHOWN_PROBLEMS = 10

UNKNOWN = "<oov>"
BOUNDARIES = ("<bos>", "<eos>")
IDEOGRAPHIC_SPACE = "\u3000"

PUBLISHED_NAME = "cnn_50_100_512_4096_sample.json"
PUBLISHED_OPTIONS: Mapping[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}
"""The file that the settings of all published models name, and that is not always beside them."""


def word_size(value: Any) -> int | None:
    """The size of the vectors of words; `None` for 0, where there are none."""
    return whole_number(value, 0, LARGEST_SIZE) or None


OPTIONS = (
    Option("token_embedder.char_dim", "character_embedding_size", size),
    Option("token_embedder.word_dim", "word_embedding_size", word_size),
    Option("token_embedder.filters", "filters", filters),
    Option("token_embedder.activation", "hidden_act", activation),
    Option("token_embedder.n_highway", "num_highway_layers", highways),
    Option("token_embedder.max_characters_per_token", "max_characters_per_token", word_length),
    Option("encoder.projection_dim", "projection_size", size),
    Option("encoder.dim", "cell_size", size),
    Option("encoder.n_layers", "num_hidden_layers", layers),
    Option("encoder.cell_clip", "cell_clip", clip),
    Option("encoder.proj_clip", "projection_clip", clip),
)


def recognises(source: Path) -> bool:
    """Whether a path is such a folder, a folder with one inside, or one of its files of weights."""
    return bool(find_folders(source))


def read(source: Path, options_file: Path | None = None) -> SourceCheckpoint:
    """Reads the options, the lexicons and the weights.

    Args:
        source: The folder, or one that holds it.
        options_file: The file of the architecture; by default the one that config.json names.

    Raises:
        ConversionError: When a file is missing, damaged or of another kind.
    """
    folder = find_folder(source)
    settings_file = folder / SETTINGS_FILE
    options_file, notes = (options_file, []) if options_file else find_options(folder)
    options = PUBLISHED_OPTIONS if options_file is None else read_options(options_file)
    check_kind(options, PUBLISHED_NAME if options_file is None else options_file.name)
    tokenizer: dict[str, Any] = {"bos_token": BOUNDARIES[0], "eos_token": BOUNDARIES[1]}
    lexicon_files = [folder / CHARACTERS_FILE]
    tokenizer["character_lexicon"] = read_characters(lexicon_files[0])
    if number(options, "token_embedder.word_dim"):
        lexicon_files.append(folder / WORDS_FILE)
        tokenizer["word_vocabulary"] = read_words(lexicon_files[1])
    tensors: dict[str, StoredTensor] = {}
    for name in WEIGHTS_FILES:
        state = read_state_dict(folder / name)
        tensors |= {f"{Path(name).stem}/{tensor}": stored for tensor, stored in state.items()}
    if (folder / SOFTMAX_FILE).is_file():
        notes.append(f"{SOFTMAX_FILE}, the softmax of the training, was left aside.")
    return SourceCheckpoint(
        format=FORMAT,
        options=options,
        tensors=tensors,
        options_file=options_file,
        weights_file=folder / WEIGHTS_FILES[0],
        data_files=(folder / WEIGHTS_FILES[1], *lexicon_files, *[settings_file][: settings_file.is_file()]),
        tokenizer=tokenizer,
        notes=tuple(notes),
    )


def find_folders(source: Path) -> list[Path]:
    """The folders with weights: the source itself, or otherwise those up to two levels below it."""
    if not source.is_dir():
        is_ours = source.name in WEIGHTS_FILES and source.is_file() and (source.parent / CHARACTERS_FILE).is_file()
        return [source.parent] if is_ours else []
    for pattern in ("", "*/", "*/*/"):
        found = {path.parent for name in WEIGHTS_FILES for path in source.glob(f"{pattern}{name}") if path.is_file()}
        if found:
            return sorted(found)
    return []


def find_folder(source: Path) -> Path:
    """The only folder with weights."""
    found = find_folders(source)
    if not found:
        raise ConversionError(f"There is no {' or '.join(WEIGHTS_FILES)} in {source}.")
    if len(found) > 1:
        raise ConversionError(f"{source} holds several models ({names(found)}); name the one to convert.")
    return found[0]


def find_options(folder: Path) -> tuple[Path | None, list[str]]:
    """The file of the architecture, `None` for the published one, and a note where it is not plain which one that is.

    The settings name it by a path of the machine on which the model was trained: only the last part counts.

    Raises:
        ConversionError: When there is none, or more than one that could be meant.
    """
    settings_file = folder / SETTINGS_FILE
    if not settings_file.is_file():
        raise ConversionError(
            f"There is no {SETTINGS_FILE}, which names the file of the architecture, in {folder}; give that file with "
            "--options."
        )
    named = read_options(settings_file).get("config_path")
    name = ntpath.basename(named) if isinstance(named, str) else ""
    places = [place for place in (folder, folder / "configs", folder.parent / "configs") if place.is_dir()]
    for place in places:
        if name and name != SETTINGS_FILE and (place / name).is_file():
            return place / name, []
    others = [path for path in sorted(folder.glob("*.json")) if path.name != SETTINGS_FILE and path.is_file()]
    if len(others) == 1:
        return others[0], [f"{SETTINGS_FILE} names {name or 'no file'}; {others[0].name} was taken in its place."]
    if not others and name == PUBLISHED_NAME:
        return None, [f"{name} is not beside the model; its published content was taken."]
    if others:
        raise ConversionError(
            f"Several files in {folder} could describe the architecture ({names(others)}); choose one with --options."
        )
    raise ConversionError(
        f"The file of the architecture that {settings_file} names ({name or 'none'}) is not beside it; give it with "
        "--options."
    )


def number(options: Mapping[str, Any], path: str) -> Any:
    """The number at a dotted path, 0 when there is none."""
    try:
        value = read_path(options, path)
    except ValueError:
        return 0
    return value if isinstance(value, int | float) else 0


def check_kind(options: Mapping[str, Any], source: str) -> None:
    """Checks that the architecture is the one of ELMo.

    Raises:
        ConversionError: When it is another that the original implementation knows.
    """
    for path, wanted in (("encoder.name", "elmo"), ("token_embedder.name", "cnn")):
        try:
            value = read_path(options, path)
        except ValueError as error:
            raise ConversionError(f"The options in {source} cannot be used: {error}.") from error
        if not isinstance(value, str) or value.lower() != wanted:
            found = repr(value)[:100] if isinstance(value, str | int | float | list | dict) else "missing"
            raise ConversionError(
                f"{path} in {source} must be {wanted!r}, the only kind that is ELMo, but is {found}."
            )
    if number(options, "token_embedder.char_dim") == 0 and number(options, "token_embedder.word_dim"):
        raise ConversionError(
            f"token_embedder.char_dim in {source} is 0: it describes a model whose input are whole words, and "
            "ElmoModel reads characters."
        )


def configure(checkpoint: SourceCheckpoint, layout: Layout) -> tuple[ElmoConfig, tuple[str, ...]]:
    """The configuration of a model; the layers are mixed in equal parts, as the original's average.

    Raises:
        ConversionError: When the options are incomplete or wrong.
    """
    source = PUBLISHED_NAME if checkpoint.options_file is None else checkpoint.options_name
    fields, assumed, problems = parse_table(OPTIONS, checkpoint.options, source)
    problems += check_filter_widths(fields, "token_embedder")
    if problems:
        raise ConversionError(f"The options in {source} cannot be used:", problems)
    lexicon: CharacterLexicon = checkpoint.tokenizer["character_lexicon"]
    vocabulary: WordVocabulary | None = checkpoint.tokenizer.get("word_vocabulary")
    try:
        config = ElmoConfig(
            **fields,
            use_token_projection=True,
            use_skip_connections=True,
            vocab_size=len(lexicon.characters) + 1,
            begin_sentence_character_id=lexicon.begin_sentence,
            end_sentence_character_id=lexicon.end_sentence,
            word_vocab_size=None if vocabulary is None else len(vocabulary),
        )
    except (ValueError, StrictDataclassError) as error:
        raise ConversionError(f"The options in {source} cannot be used: {error}") from error
    return config, tuple(assumed)


def read_characters(path: Path) -> CharacterLexicon:
    """The characters of a model.

    The original looks up the begin of a word under the name of its end, and the end under that of the begin.

    Raises:
        ConversionError: When the file is missing or damaged.
    """
    entries = read_lexicon(path)
    try:
        return CharacterLexicon(entries, *BOUNDARIES, begin_word="<eow>", end_word="<bow>", unknown=UNKNOWN)
    except ValueError as error:
        raise ConversionError(f"The lexicon {path} cannot be used: {error}") from error


def read_words(path: Path) -> WordVocabulary:
    """The words of a model.

    Raises:
        ConversionError: When the file is missing or damaged.
    """
    entries = read_lexicon(path)
    missing = [name for name in (UNKNOWN, *BOUNDARIES) if name not in entries]
    if missing:
        raise ConversionError(f"The lexicon {path} cannot be used: it has no {' and no '.join(missing)}.")
    return WordVocabulary(entries, UNKNOWN)


def read_lexicon(path: Path) -> list[str]:
    """The entries of a lexicon, each at the place that its number says.

    A line is an entry, a tab and a number. As in the original, lines are stripped, and one of which only the number is
    left is the entry of the ideographic space.

    Raises:
        ConversionError: When the file is missing or damaged, with the lines that are wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_LEXICON_FILE + 1)
    except OSError as error:
        raise ConversionError(f"The lexicon {path} cannot be read: {error.strerror or error}.") from error
    if len(content) > LARGEST_LEXICON_FILE:
        raise ConversionError(f"The lexicon {path} is larger than {LARGEST_LEXICON_FILE} bytes; it is no lexicon.")
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConversionError(f"The lexicon {path} is not in UTF-8: {error}.") from error
    entries: dict[int, str] = {}
    seen: dict[str, int] = {}
    problems: list[str] = []
    for place, line in enumerate(lines, start=1):
        entry, tab, digits = line.strip().rpartition("\t")
        entry = entry if tab else IDEOGRAPHIC_SPACE
        if "\t" in entry or not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            problems.append(f"line {place} must be an entry, a tab and a number, but is {line[:50]!r}")
        elif int(digits) in entries:
            problems.append(
                f"line {place} gives {entry[:50]!r} the number {int(digits)} of {entries[int(digits)][:50]!r}"
            )
        elif entry in seen:
            problems.append(f"line {place} holds {entry[:50]!r} again, as line {seen[entry]}")
        else:
            entries[int(digits)] = entry
            seen[entry] = place
    if not problems and sorted(entries) != list(range(len(entries))):
        absent = next(place for place in range(len(entries)) if place not in entries)
        problems.append(f"the numbers must go from 0 to {len(entries) - 1}, but {absent} is missing")
    if problems:
        more = [f"and {len(problems) - SHOWN_PROBLEMS} more"] if len(problems) > SHOWN_PROBLEMS else []
        raise ConversionError(f"The lexicon {path} cannot be used:", problems[:SHOWN_PROBLEMS] + more)
    return [entries[place] for place in range(len(entries))]
