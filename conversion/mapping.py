"""Which original tensor becomes which parameter: ordered tables as pure data, and their check against a file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .checkpoint import StoredTensor
from .errors import ConversionError
from .options import CHARACTERS_WITHOUT_PADDING


@dataclass(frozen=True)
class Rule:
    """One row of a table; names may hold `{filter}`, `{highway}`, `{layer}`, `{direction}` (0, 1) and `{side}`.

    Args:
        each: What the rule is repeated for, a key of `repetitions`.
        source: Name in the original file.
        shape: Shape of the original, as names of `repetitions` and numbers.
        targets: Parameters of `ElmoModel`.
        operation: A key of `operations.OPERATIONS`.
    """

    each: str
    source: str
    shape: tuple[str | int, ...]
    targets: tuple[str, ...]
    operation: str


@dataclass(frozen=True)
class Layout:
    """How a format names its tensors.

    Args:
        rules: The table.
        ignored: Patterns of tensors that are no part of the model, such as an optimizer's.
    """

    rules: tuple[Rule, ...]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """A rule for one tensor of one architecture."""

    source: str
    shape: tuple[int, ...]
    targets: tuple[str, ...]
    operation: str


CHARACTER_ENCODER = (
    Rule(
        "model",
        "char_embed",
        ("characters", "character_size"),
        ("embeddings.character_embeddings.weight",),
        "character_table",
    ),
    Rule(
        "filter",
        "CNN/W_cnn_{filter}",
        (1, "width", "character_size", "count"),
        ("embeddings.convolutions.{filter}.weight",),
        "convolution",
    ),
    Rule("filter", "CNN/b_cnn_{filter}", ("count",), ("embeddings.convolutions.{filter}.bias",), "copy"),
    Rule(
        "highway",
        "CNN_high_{highway}/W_carry",
        ("filters", "filters"),
        ("embeddings.highways.{highway}.carry.weight",),
        "transpose",
    ),
    Rule(
        "highway",
        "CNN_high_{highway}/b_carry",
        ("filters",),
        ("embeddings.highways.{highway}.carry.bias",),
        "copy",
    ),
    Rule(
        "highway",
        "CNN_high_{highway}/W_transform",
        ("filters", "filters"),
        ("embeddings.highways.{highway}.transform.weight",),
        "transpose",
    ),
    Rule(
        "highway",
        "CNN_high_{highway}/b_transform",
        ("filters",),
        ("embeddings.highways.{highway}.transform.bias",),
        "copy",
    ),
    Rule(
        "token_projection",
        "CNN_proj/W_proj",
        ("filters", "projection"),
        ("embeddings.projection.weight",),
        "transpose",
    ),
    Rule("token_projection", "CNN_proj/b_proj", ("projection",), ("embeddings.projection.bias",), "copy"),
)

LSTM = "RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
OUR_LSTM = "encoder.layers.{layer}.{side}_lstm"

ALLENNLP = Layout(
    rules=(
        *CHARACTER_ENCODER,
        Rule(
            "lstm",
            f"{LSTM}/W_0",
            ("input_and_state", "gates"),
            (f"{OUR_LSTM}.input_gates.weight", f"{OUR_LSTM}.recurrent_gates.weight"),
            "gates",
        ),
        Rule("lstm", f"{LSTM}/B", ("gates",), (f"{OUR_LSTM}.input_gates.bias",), "gate_bias"),
        Rule("lstm", f"{LSTM}/W_P_0", ("cell", "projection"), (f"{OUR_LSTM}.projection.weight",), "transpose"),
    )
)

MIX_PREFIX = "representations."
"""Parameters that no original biLM has: they come from the configuration."""


def repetitions(config: Any, characters: int) -> dict[str, list[dict[str, Any]]]:
    """What the placeholders and the sizes of a rule stand for in one architecture.

    Args:
        config: An `ElmoConfig`.
        characters: Rows of the character table in the file.

    Returns:
        What a rule is repeated for -> the values of each repetition.
    """
    sizes = {
        "characters": characters,
        "character_size": config.character_embedding_size,
        "filters": config.num_filters,
        "projection": config.projection_size,
        "cell": config.cell_size,
        "gates": 4 * config.cell_size,
        "input_and_state": 2 * config.projection_size,
    }
    return {
        "model": [sizes],
        "filter": [
            {**sizes, "filter": index, "width": width, "count": count}
            for index, (width, count) in enumerate(config.filters)
        ],
        "highway": [{**sizes, "highway": index} for index in range(config.num_highway_layers)],
        "token_projection": [sizes] if config.use_token_projection else [],
        "lstm": [
            {**sizes, "direction": direction, "side": side, "layer": layer}
            for direction, side in enumerate(("forward", "backward"))
            for layer in range(config.num_hidden_layers)
        ],
    }


def expand(rules: Iterable[Rule], config: Any, characters: int = CHARACTERS_WITHOUT_PADDING) -> list[Step]:
    """The rules of a table for one architecture, in the table's order.

    Args:
        rules: The table.
        config: An `ElmoConfig`.
        characters: Rows of the character table in the file.
    """
    values = repetitions(config, characters)
    return [
        Step(
            source=rule.source.format_map(bound),
            shape=tuple(bound[size] if isinstance(size, str) else size for size in rule.shape),
            targets=tuple(target.format_map(bound) for target in rule.targets),
            operation=rule.operation,
        )
        for rule in rules
        for bound in values[rule.each]
    ]


def match(steps: Sequence[Step], tensors: Mapping[str, StoredTensor], ignored: Sequence[str], where: str) -> None:
    """Checks that a file holds the tensors of an architecture, each in its shape, and no other.

    Args:
        steps: The expanded table.
        tensors: The file's tensors.
        ignored: Patterns of names that may be there and mean nothing.
        where: Names the file and the options, for the message.

    Raises:
        ConversionError: With every tensor that is unknown, missing or of another shape.
    """
    wanted = {step.source: step for step in steps}
    problems = [
        f"{step.source} is missing, so that nothing fills {', '.join(step.targets)}"
        for step in steps
        if step.source not in tensors
    ]
    problems += [
        f"{name} has shape {tensor.shape}, but the options say {wanted[name].shape}"
        for name, tensor in tensors.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    problems += [
        f"{name} {tensor.shape} is not known"
        for name, tensor in tensors.items()
        if name not in wanted and not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    if problems:
        raise ConversionError(f"The tensors in {where} do not fit together:", problems)
