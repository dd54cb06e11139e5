"""Which original tensor becomes which parameter: ordered tables as pure data, and their check against a file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
        optional: Tables for what a file may have beyond the biLM. Each is used as a whole when the file has any of
            its tensors; their sources are patterns, each for one tensor.
        ignored: Patterns of tensors that are no part of the model, such as an optimizer's.
    """

    rules: tuple[Rule, ...]
    optional: tuple[tuple[Rule, ...], ...] = ()
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

OUR_LSTM = "encoder.layers.{layer}.{side}_lstm"


def lstm_rules(kernel: str, bias: str, projection: str) -> tuple[Rule, ...]:
    """The table of an LSTM under the names that a format gives its three tensors."""
    return (
        Rule(
            "lstm",
            kernel,
            ("input_and_state", "gates"),
            (f"{OUR_LSTM}.input_gates.weight", f"{OUR_LSTM}.recurrent_gates.weight"),
            "gates",
        ),
        Rule("lstm", bias, ("gates",), (f"{OUR_LSTM}.input_gates.bias",), "gate_bias"),
        Rule("lstm", projection, ("cell", "projection"), (f"{OUR_LSTM}.projection.weight",), "transpose"),
    )


def under(prefix: str, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """A table for a file that puts a prefix before every name."""
    return tuple(replace(rule, source=prefix + rule.source) for rule in rules)


def mix_rules(weights: str, scale: str) -> tuple[Rule, ...]:
    """The table of the mix of the layers under the names that a format gives it."""
    return (
        Rule("model", weights, ("mix",), ("representations.0.scalar_parameters",), "copy"),
        Rule("model", scale, (1,), ("representations.0.gamma",), "one_number"),
    )


ALLENNLP_LSTM = "RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
ALLENNLP = Layout(
    rules=(
        *CHARACTER_ENCODER,
        *lstm_rules(f"{ALLENNLP_LSTM}/W_0", f"{ALLENNLP_LSTM}/B", f"{ALLENNLP_LSTM}/W_P_0"),
    )
)

HUB_LSTM = "RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/rnn/lstm_cell"
DEEPPAVLOV_HUB = Layout(
    rules=under(
        "bilm/",
        (
            *CHARACTER_ENCODER,
            *lstm_rules(f"{HUB_LSTM}/kernel", f"{HUB_LSTM}/bias", f"{HUB_LSTM}/projection/kernel"),
        ),
    ),
    # The module adds 1 / (L + 1) to every scalar before the softmax, which changes nothing.
    optional=(
        mix_rules("aggregation/*_ELMo_W", "aggregation/*_ELMo_gamma"),
        mix_rules("aggregation/weights", "aggregation/scaling"),
    ),
    ignored=("bilm*/Variable*",),
)

TRAINING_LSTM = "RNN_{direction}/rnn/multi_rnn_cell/cell_{layer}/lstm_cell"
TENSORFLOW_CHECKPOINT = Layout(
    rules=under(
        "lm/",
        (
            *CHARACTER_ENCODER,
            *lstm_rules(f"{TRAINING_LSTM}/kernel", f"{TRAINING_LSTM}/bias", f"{TRAINING_LSTM}/projection/kernel"),
        ),
    ),
    optional=(
        (
            Rule("model", "lm/softmax/W", ("words", "projection"), ("softmax.weight",), "copy"),
            Rule("model", "lm/softmax/b", ("words",), ("softmax.bias",), "copy"),
        ),
    ),
    ignored=(
        "global_step",
        "train_perplexity",
        "beta[12]_power*",
        "*/Adagrad",
        "*/Adagrad_[0-9]*",
        "*/Adadelta",
        "*/Adadelta_[0-9]*",
        "*/Adam",
        "*/Adam_[0-9]*",
        "*/Momentum",
        "*/RMSProp",
        "*/RMSProp_[0-9]*",
    ),
)


def allennlp_highway_rules(name: str) -> tuple[Rule, ...]:
    """The table of a layer of AllenNLP's `Highway` under the name that a format gives it."""
    ours = "embeddings.highways.{highway}"
    return (
        Rule(
            "highway",
            f"{name}.weight",
            ("highway_rows", "filters"),
            (f"{ours}.transform.weight", f"{ours}.carry.weight"),
            "highway",
        ),
        Rule(
            "highway", f"{name}.bias", ("highway_rows",), (f"{ours}.transform.bias", f"{ours}.carry.bias"), "highway"
        ),
    )


def allennlp_lstm_rules(name: str) -> tuple[Rule, ...]:
    """The table of AllenNLP's `LstmCellWithProjection` under the name that a format gives it."""
    return (
        Rule(
            "lstm",
            f"{name}.input_linearity.weight",
            ("gates", "projection"),
            (f"{OUR_LSTM}.input_gates.weight",),
            "copy",
        ),
        Rule(
            "lstm",
            f"{name}.state_linearity.weight",
            ("gates", "projection"),
            (f"{OUR_LSTM}.recurrent_gates.weight",),
            "copy",
        ),
        Rule("lstm", f"{name}.state_linearity.bias", ("gates",), (f"{OUR_LSTM}.input_gates.bias",), "copy"),
        Rule(
            "lstm",
            f"{name}.state_projection.weight",
            ("projection", "cell"),
            (f"{OUR_LSTM}.projection.weight",),
            "copy",
        ),
    )


ELMOFORMANYLANGS = Layout(
    rules=(
        Rule(
            "word_embedding",
            "token_embedder/word_emb_layer.embedding.weight",
            ("words", "word_size"),
            ("embeddings.word_embeddings.weight",),
            "zero_row",
        ),
        Rule(
            "model",
            "token_embedder/char_emb_layer.embedding.weight",
            ("lexicon", "character_size"),
            ("embeddings.character_embeddings.weight",),
            "zero_row",
        ),
        Rule(
            "filter",
            "token_embedder/convolutions.{filter}.weight",
            ("count", "character_size", "width"),
            ("embeddings.convolutions.{filter}.weight",),
            "copy",
        ),
        Rule(
            "filter",
            "token_embedder/convolutions.{filter}.bias",
            ("count",),
            ("embeddings.convolutions.{filter}.bias",),
            "copy",
        ),
        *allennlp_highway_rules("token_embedder/highways._layers.{highway}"),
        Rule(
            "token_projection",
            "token_embedder/projection.weight",
            ("projection", "features"),
            ("embeddings.projection.weight",),
            "copy",
        ),
        Rule(
            "token_projection",
            "token_embedder/projection.bias",
            ("projection",),
            ("embeddings.projection.bias",),
            "copy",
        ),
        *allennlp_lstm_rules("encoder/{side}_layer_{layer}"),
    )
)

EMBEDDER = "_elmo_lstm._token_embedder"
ALLENNLP_TASK_MODEL = Layout(
    rules=(
        Rule(
            "model",
            f"{EMBEDDER}._char_embedding_weights",
            ("characters", "character_size"),
            ("embeddings.character_embeddings.weight",),
            "character_table",
        ),
        Rule(
            "filter",
            f"{EMBEDDER}.char_conv_{{filter}}.weight",
            ("count", "character_size", "width"),
            ("embeddings.convolutions.{filter}.weight",),
            "copy",
        ),
        Rule(
            "filter",
            f"{EMBEDDER}.char_conv_{{filter}}.bias",
            ("count",),
            ("embeddings.convolutions.{filter}.bias",),
            "copy",
        ),
        *allennlp_highway_rules(f"{EMBEDDER}._highways._layers.{{highway}}"),
        Rule(
            "token_projection",
            f"{EMBEDDER}._projection.weight",
            ("projection", "filters"),
            ("embeddings.projection.weight",),
            "copy",
        ),
        Rule(
            "token_projection",
            f"{EMBEDDER}._projection.bias",
            ("projection",),
            ("embeddings.projection.bias",),
            "copy",
        ),
        *allennlp_lstm_rules("_elmo_lstm._elmo_lstm.{side}_layer_{layer}"),
        Rule(
            "representation",
            "scalar_mix_{representation}.scalar_parameters",
            ("mix",),
            ("representations.{representation}.scalar_parameters",),
            "copy",
        ),
        Rule(
            "representation",
            "scalar_mix_{representation}.gamma",
            (1,),
            ("representations.{representation}.gamma",),
            "one_number",
        ),
    ),
    ignored=("_elmo_lstm._word_embedding.*",),
)

MIX_PREFIX = "representations."
"""Parameters of the mixes, which few original files have; otherwise they come from the configuration."""

SOFTMAX_PREFIX = "softmax."
"""Parameters of a language model's output layer, which lie beside those of `ElmoModel`."""

CHARACTER_TABLE = "embeddings.character_embeddings.weight"
TOKEN_PROJECTION = "embeddings.projection.weight"
SOFTMAX_BIAS = "softmax.bias"
SCALAR_PARAMETERS = "representations.0.scalar_parameters"
GAMMA = "representations.0.gamma"


def used_rules(layout: Layout, names: Iterable[str]) -> tuple[Rule, ...]:
    """The table of a layout for a file: with the optional parts that the file has, and the file's names in them."""
    names = tuple(names)
    rules = list(layout.rules)
    for part in layout.optional:
        found = [[name for name in names if fnmatchcase(name, rule.source)] for rule in part]
        if any(found):
            rules += [
                replace(rule, source=matches[0]) if len(matches) == 1 else rule
                for rule, matches in zip(part, found, strict=True)
            ]
    return tuple(rules)


def find_tensor(layout: Layout, tensors: Mapping[str, StoredTensor], target: str) -> StoredTensor | None:
    """The tensor of a file that becomes a parameter, `None` when the file has none.

    Args:
        layout: The format's table.
        tensors: The file's tensors.
        target: A parameter that does not depend on the architecture, such as `CHARACTER_TABLE`.
    """
    sources = [rule.source for rule in used_rules(layout, tensors) if target in rule.targets]
    return next((tensors[source] for source in sources if source in tensors), None)


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
        "mix": config.mix_size,
        "words": config.word_vocab_size,
        "word_size": config.word_embedding_size,
        "features": config.num_filters + (config.word_embedding_size or 0),
        "highway_rows": 2 * config.num_filters,
        "lexicon": config.vocab_size - 1,
    }
    return {
        "model": [sizes],
        "filter": [
            {**sizes, "filter": index, "width": width, "count": count}
            for index, (width, count) in enumerate(config.filters)
        ],
        "highway": [{**sizes, "highway": index} for index in range(config.num_highway_layers)],
        "word_embedding": [sizes] if config.word_embedding_size is not None else [],
        "token_projection": [sizes] if config.use_token_projection else [],
        "representation": [{**sizes, "representation": index} for index in range(config.num_output_representations)],
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
        if name in wanted and not same_shape(tensor.shape, wanted[name].shape)
    ]
    problems += [
        f"{name} {tensor.shape} is not known"
        for name, tensor in tensors.items()
        if name not in wanted and not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    if problems:
        raise ConversionError(f"The tensors in {where} do not fit together:", problems)


def same_shape(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Whether two shapes are equal; one number may have the shape () or (1,)."""
    return first == second or {first, second} == {(), (1,)}
