"""The table from an original options file to the fields of `ElmoConfig`, and back."""

import json
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ConversionError

CHARACTERS_WITHOUT_PADDING = 261
"""Rows of a stored character table: 256 bytes, four boundaries, character padding."""

REQUIRED = object()
"""Stands for the default of an option that has none."""


LARGEST_SIZE = 2**20
LARGEST_COUNT = 1000
LARGEST_CLIP = 1e38
"""Bounds far beyond any ELMo, so that a damaged options file cannot ask for endless work."""


def whole_number(value: Any, least: int, most: int) -> int:
    """A whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"must be a whole number from {least} to {most}")
    return value


def size(value: Any) -> int:
    """The size of a vector."""
    return whole_number(value, 1, LARGEST_SIZE)


def layers(value: Any) -> int:
    """A number of LSTM layers."""
    return whole_number(value, 1, LARGEST_COUNT)


def highways(value: Any) -> int:
    """A number of highway layers; `null` means 0, as in bilm-tf."""
    return 0 if value is None else whole_number(value, 0, LARGEST_COUNT)


def word_length(value: Any) -> int:
    """A number of characters, with room for the begin and the end of a word and one byte."""
    return whole_number(value, 3, LARGEST_SIZE)


def clip(value: Any) -> float | None:
    """A positive bound, or `None` for no clipping."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST_CLIP:
        raise ValueError("must be a positive number in single precision, or null for no clipping")
    return float(value)


def flag(value: Any) -> bool:
    """True or false; `null` means false, as in bilm-tf."""
    if value is not None and not isinstance(value, bool):
        raise ValueError("must be true or false")
    return bool(value)


def activation(value: Any) -> str:
    """An activation that the original implementations know."""
    if value not in ("relu", "tanh"):
        raise ValueError('must be "relu" or "tanh"')
    return value


def probability(value: Any) -> float:
    """A probability of dropout; `null` means none."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError("must be a number from 0 up to 1")
    return float(value)


def filters(value: Any) -> list[list[int]]:
    """Convolutions as `[width, count]` pairs."""
    try:
        pairs = [[size(width), size(count)] for width, count in value]
    except (TypeError, ValueError):
        pairs = []
    if not 1 <= len(pairs) <= LARGEST_COUNT:
        raise ValueError("must be a list of [width, count] pairs of positive whole numbers")
    return pairs


@dataclass(frozen=True)
class Option:
    """One row of the table.

    Args:
        path: Keys in the options file, joined by dots.
        field: The field of `ElmoConfig`.
        parse: Checks the value and gives it the field's type; a `ValueError` says what it must be.
        default: What bilm-tf takes when the key is absent, `REQUIRED` when it takes nothing.
        only_for_training: Whether the key changes nothing outside of training, so that nobody misses it.
    """

    path: str
    field: str
    parse: Callable[[Any], Any]
    default: Any = REQUIRED
    only_for_training: bool = False


OPTIONS = (
    Option("char_cnn.embedding.dim", "character_embedding_size", size),
    Option("char_cnn.filters", "filters", filters),
    Option("char_cnn.activation", "hidden_act", activation),
    Option("char_cnn.n_highway", "num_highway_layers", highways, default=0),
    Option("char_cnn.max_characters_per_token", "max_characters_per_token", word_length),
    Option("lstm.projection_dim", "projection_size", size),
    Option("lstm.dim", "cell_size", size),
    Option("lstm.n_layers", "num_hidden_layers", layers, default=1),
    Option("lstm.cell_clip", "cell_clip", clip, default=None),
    Option("lstm.proj_clip", "projection_clip", clip, default=None),
    Option("lstm.use_skip_connections", "use_skip_connections", flag, default=False),
    Option("dropout", "bilm_dropout", probability, default=0.1, only_for_training=True),
)

FIXED_FIELDS = {
    "vocab_size": CHARACTERS_WITHOUT_PADDING + 1,
    "begin_sentence_character_id": 257,
    "end_sentence_character_id": 258,
}
"""Fields of `ElmoConfig` that are the same in every original model."""

ABSENT = object()


@dataclass(frozen=True)
class ParsedOptions:
    """The architecture that an options file states.

    Args:
        fields: Field of `ElmoConfig` -> value.
        assumed: What the file leaves out and which value stands in for it, as sentences for the summary.
    """

    fields: dict[str, Any]
    assumed: tuple[str, ...]


def read_path(options: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, `ABSENT` when there is none.

    Raises:
        ValueError: When something on the way is no JSON object.
    """
    value: Any = options
    keys = path.split(".")
    for depth, key in enumerate(keys):
        if not isinstance(value, Mapping):
            raise ValueError(f"{'.'.join(keys[:depth])} must be a JSON object, but is {reprlib.repr(value)}")
        if key not in value:
            return ABSENT
        value = value[key]
    return value


def write_path(options: dict[str, Any], path: str, value: Any) -> None:
    """Sets the value at a dotted path.

    Raises:
        ValueError: When something on the way is no JSON object.
    """
    read_path(options, path)
    *groups, key = path.split(".")
    for group in groups:
        options = options.setdefault(group, {})
    options[key] = value


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Options from a command line: `lstm.cell_clip=5` and its like, the value in JSON or a bare word.

    Raises:
        ConversionError: When a setting has another form.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        path, sign, value = setting.partition("=")
        if not path or not sign:
            raise ConversionError(f"The setting {setting!r} must have the form NAME=VALUE, such as lstm.cell_clip=5.")
        try:
            values[path] = json.loads(value)
        except (ValueError, RecursionError):
            values[path] = value
    return values


def parse_options(options: Mapping[str, Any], source: str) -> ParsedOptions:
    """Turns an original options file into the fields of `ElmoConfig`.

    Args:
        options: The file's content. Keys that only matter in training are allowed.
        source: Name of the file, for messages.

    Raises:
        ConversionError: With every missing or wrong field; also for models whose input are words and not characters.
    """
    if "char_cnn" not in options and "lstm" in options:
        raise ConversionError(
            f"{source} has no field char_cnn: it describes a model whose input are whole words, "
            "and ElmoModel reads characters."
        )
    fields, assumed, problems = parse_table(OPTIONS, options, source)
    problems += check_character_count(options)
    problems += check_filter_widths(fields)
    if options.get("bidirectional") is False:
        problems.append("bidirectional is false, and ELMo has both directions")
    if problems:
        raise ConversionError(f"The options in {source} cannot be used:", problems)
    return ParsedOptions(fields, tuple(assumed))


def parse_table(
    table: Sequence[Option], options: Mapping[str, Any], source: str
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Turns options into fields.

    Returns:
        Field -> value, sentences on what stands in for a missing option, and every finding.
    """
    fields: dict[str, Any] = {}
    problems: list[str] = []
    assumed: list[str] = []
    for option in table:
        try:
            value = read_path(options, option.path)
        except ValueError as error:
            if str(error) not in problems:
                problems.append(str(error))
            continue
        if value is ABSENT:
            if option.default is REQUIRED:
                problems.append(f"{option.path} is missing")
                continue
            value = option.default
            if not option.only_for_training:
                assumed.append(f"{option.path} is not in {source}; taken as {json.dumps(value)}, as bilm-tf does.")
        try:
            fields[option.field] = option.parse(value)
        except ValueError as error:
            problems.append(f"{option.path} {error}, but is {reprlib.repr(value)}")
    return fields, assumed, problems


def check_character_count(options: Mapping[str, Any]) -> list[str]:
    """Findings about `n_characters`: 261 in training and 262 afterwards are the same table without and with row 0."""
    try:
        value = read_path(options, "char_cnn.n_characters")
    except ValueError:
        return []
    if value is ABSENT or value in (CHARACTERS_WITHOUT_PADDING, CHARACTERS_WITHOUT_PADDING + 1):
        return []
    return [f"char_cnn.n_characters must be 261 or 262 (the characters are UTF-8 bytes), but is {value!r}"]


def check_filter_widths(fields: Mapping[str, Any], section: str = "char_cnn") -> list[str]:
    """Findings about filters that are wider than a word."""
    longest = fields.get("max_characters_per_token", math.inf)
    return [
        f"{section}.filters holds {pair!r}, wider than {section}.max_characters_per_token {longest}"
        for pair in fields.get("filters", [])
        if pair[0] > longest
    ]


def write_options(config: Any) -> dict[str, Any]:
    """The options file of a configuration, as AllenNLP and bilm-tf read it.

    Args:
        config: An `ElmoConfig`.

    Raises:
        ConversionError: When the configuration has something that an options file cannot say.
    """
    for field, value in FIXED_FIELDS.items():
        if getattr(config, field) != value:
            raise ConversionError(
                f"An options file cannot say that {field} is {getattr(config, field)}; it is always {value}."
            )
    if config.word_embedding_size is not None:
        raise ConversionError("An options file cannot say that a model has vectors of words (word_embedding_size).")
    options: dict[str, Any] = {}
    for option in OPTIONS:
        *groups, key = option.path.split(".")
        node = options
        for group in groups:
            node = node.setdefault(group, {})
        node[key] = option.parse(getattr(config, option.field))
    options["char_cnn"]["n_characters"] = config.vocab_size
    return options
