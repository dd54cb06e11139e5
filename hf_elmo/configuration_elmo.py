"""The configuration of ELMo: every architectural number of an original options file, and how its layers are mixed."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .pipeline_elmo import install_pipelines

# A pipeline looks up its implementation before it loads a model, and every path to a model imports its configuration.
install_pipelines()

# Sizes of the published English models (Peters et al. 2018; options files of AllenNLP): they share the character
# filters and differ in the LSTMs and in the number of highway layers.
SIZES: dict[str, dict[str, int]] = {
    "small": {"cell_size": 1024, "projection_size": 128, "num_highway_layers": 1},
    "medium": {"cell_size": 2048, "projection_size": 256, "num_highway_layers": 1},
    "original": {"cell_size": 4096, "projection_size": 512, "num_highway_layers": 2},
}

# Which class of which shipped file each Auto class finds. It goes into every saved configuration whole, so that any
# head can be loaded as remote code from a folder that another head was saved to.
AUTO_MAP: dict[str, str] = {
    "AutoConfig": "configuration_elmo.ElmoConfig",
    "AutoModel": "modeling_elmo.ElmoModel",
    "AutoModelForPreTraining": "language_model_elmo.ElmoForPreTraining",
    "AutoModelForSequenceClassification": "heads_elmo.ElmoForSequenceClassification",
    "AutoModelForTokenClassification": "heads_elmo.ElmoForTokenClassification",
}

# The smallest number that makes sense; a word is its begin, its end and one byte at least.
SMALLEST: dict[str, int] = {
    "vocab_size": 1,
    "character_embedding_size": 1,
    "num_highway_layers": 0,
    "max_characters_per_token": 3,
    "projection_size": 1,
    "cell_size": 1,
    "num_hidden_layers": 1,
    "num_output_representations": 1,
    "word_vocab_size": 1,
    "word_embedding_size": 1,
    "num_sampled_words": 1,
    "task_embedding_size": 1,
    "task_hidden_size": 1,
    "task_num_layers": 0,
}

PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@strict
class ElmoConfig(PreTrainedConfig):
    r"""The architecture of an ELMo model; the defaults are those of the published `original` model.

    Args:
        vocab_size (`int`, defaults to 262):
            Rows of the character table: 256 bytes, begin and end of sentence, begin and end of word, padding, and
            row 0 for masked positions. Option files say 261 or 262 for the same thing, before and after row 0. With a
            character lexicon: its entries, and row 0.
        word_vocab_size (`int`, *optional*):
            Words in the word vocabulary: those that a language model's softmax can predict, or those that have vectors
            (`word_embedding_size`). `None` where a checkpoint has neither.
        word_embedding_size (`int`, *optional*):
            Size of the vector of a word of the vocabulary, put before the features of its characters ahead of the
            projection, as in ELMoForManyLangs; the model then needs `word_input_ids`. `None` for characters alone.
        character_embedding_size (`int`, defaults to 16):
            Size of a character vector.
        filters (`list[list[int]]`, *optional*):
            The convolutions of the character encoder as `[width, count]`, in the order of the original file.
        hidden_act (`str`, defaults to `"relu"`):
            Activation after the max pooling of the convolutions, `"relu"` or `"tanh"`.
        num_highway_layers (`int`, defaults to 2):
            Highway layers of the character encoder; may be 0.
        max_characters_per_token (`int`, defaults to 50):
            Character ids a word, its begin and end included.
        projection_size (`int`, defaults to 512):
            Size P of a word vector of one direction.
        cell_size (`int`, defaults to 4096):
            Size C of the LSTM's memory cell.
        num_hidden_layers (`int`, defaults to 2):
            Layers L of the biLM.
        cell_clip (`float`, *optional*, defaults to 3.0):
            Bound of the memory cell; `None` for no clipping.
        projection_clip (`float`, *optional*, defaults to 3.0):
            Bound of the projected LSTM output; `None` for no clipping.
        use_skip_connections (`bool`, defaults to `True`):
            Whether a layer's input is added to its output, from the second layer on.
        use_token_projection (`bool`, *optional*):
            Whether the character encoder ends in a projection to P. Left at `None`, it does when the number of
            filters is not P, or when there are word vectors.
        num_output_representations (`int`, defaults to 1):
            How many mixes of the layers the model returns, each with weights of its own; raised to as many as a head
            needs for `elmo_at_input` and `elmo_at_output`.
        mix_trainable (`bool`, defaults to `True`):
            Whether the weights and the scale of the mixes are trained.
        mix_parameters (`list[float]`, *optional*):
            The L + 1 scalars s before the softmax that a new mix starts with; zeros (equal weights) by default.
        mix_gamma (`float`, defaults to 1.0):
            The scale gamma that a new mix starts with.
        mix_layers (`list[int]`, *optional*):
            The layers that take part in the mixes, the softmax being over them alone: 0 is the token layer, and -1 the
            last layer of the biLM, so that `[-1]` is the paper's "last layer only". `None` for all.
        mix_l2 (`float`, defaults to 0.0):
            The paper's lambda: the heads add to their loss in training lambda times the sum of the squares of the
            mixes' scalars, which keeps their weights near to one another.
        mix_layer_norm (`bool`, defaults to `False`):
            Normalise each layer before mixing, as AllenNLP's `do_layer_norm`. Mean and variance are taken over all
            words of the batch, so that a sentence's vector then depends on the sentences beside it.
        representation_dropout (`float`, defaults to 0.5):
            Dropout of the representations in training.
        freeze_bilm (`bool`, defaults to `True`):
            Whether the biLM (everything but the mixes and a head) keeps its weights in training. It then runs without
            gradients and in evaluation mode.
        frozen_bilm_dtype (`str`, *optional*):
            `"bfloat16"` or `"float16"` to run a frozen biLM in this type, with a copy of its weights; what is saved
            stays as it is. `None` for the type of the weights.
        bilm_reference, bilm_fingerprint (`str`, *optional*):
            The folder or repository of the biLM, and what tells its weights from others, where a folder holds the
            weights of a task only (`save_pretrained(..., task_only=True)`).
        elmo_at_input (`bool`, defaults to `True`):
            Whether the task network of a head reads ELMo, [x; ELMo]: the first mix of the layers.
        elmo_at_output (`bool`, defaults to `False`):
            Whether ELMo is put beside the output of the task network, [h; ELMo]: the next mix. With neither, a head
            is the paper's baseline, which reads `task_embedding_size` alone.
        task_embedding_size (`int`, *optional*):
            Size of a head's own word vectors x over the `word_vocab_size` words of the tokenizer, which are read from
            `word_input_ids`; `None` for none.
        task_hidden_size (`int`, defaults to 128):
            Size of each direction of a head's BiLSTM.
        task_num_layers (`int`, defaults to 1):
            Layers of a head's BiLSTM; 0 to go straight to the classifier.
        task_dropout (`float`, defaults to 0.5):
            Dropout in a head, in training: of the word vectors x, between the layers of the BiLSTM, and before the
            classifier.
        classifier_dropout (`float`, *optional*):
            Dropout before the classifier of a head; `None` for `task_dropout` behind a BiLSTM, and for none beyond
            `representation_dropout` without one.
        classifier_pooling (`str`, defaults to `"mean"`):
            How a sequence classifier pools the words: `"mean"`, `"max"`, `"last"` (the last state of each direction)
            or `"biattentive"` (the biattentive classification network, see `ElmoTaskNetwork`).
        use_crf (`bool`, defaults to `False`):
            Whether a token classifier scores the labels of a text together, with a linear-chain CRF.
        label_scheme (`str`, *optional*):
            `"BIO"` or `"BIOES"` to forbid the CRF what the scheme of the labels' names (`id2label`) does not allow.
        use_predicate_indicator (`bool`, defaults to `False`):
            Whether a token classifier reads from `token_type_ids` which word is the predicate, for semantic roles.
        bilm_dropout (`float`, defaults to 0.1):
            Dropout of a language model in training (`ElmoForPreTraining`; the other classes never apply it), where
            bilm-tf has it: at the input of each LSTM, ahead of the skip connection, and at the output of the last.
        num_sampled_words (`int`, *optional*, defaults to 8192):
            Words that a language model's softmax draws on average in training, in the place of the whole vocabulary;
            `None` for the whole. The whole is also taken where more than half of it would be drawn, and in evaluation.
        initializer_range (`float`, defaults to 0.02):
            Standard deviation of a new classifier's weights; the biLM is initialised as bilm-tf does.
        begin_sentence_character_id, end_sentence_character_id (`int`, default to 257 and 258):
            The character id that marks the rows `<S>` and `</S>`.
        pad_token_id, bos_token_id, eos_token_id (`int`, default to 0, 2 and 3):
            Ids of the special tokens in the tokenizer.

    Raises:
        StrictDataclassError: When a value has the wrong type, is out of range, or contradicts another.

    Example:
        >>> from hf_elmo import ElmoConfig, ElmoModel
        >>> config = ElmoConfig.from_size("small")
        >>> config.hidden_size
        256
    """

    model_type = "elmo"
    keys_to_ignore_at_inference = ["hidden_states", "representations", "states"]  # Trainer adds a list to it

    vocab_size: int = 262
    word_vocab_size: int | None = None
    word_embedding_size: int | None = None
    character_embedding_size: int = 16
    filters: list[list[int]] | None = None
    hidden_act: Literal["relu", "tanh"] = "relu"
    num_highway_layers: int = 2
    max_characters_per_token: int = 50
    projection_size: int = 512
    cell_size: int = 4096
    num_hidden_layers: int = 2
    cell_clip: float | int | None = 3.0
    projection_clip: float | int | None = 3.0
    use_skip_connections: bool = True
    use_token_projection: bool | None = None
    num_output_representations: int = 1
    mix_trainable: bool = True
    mix_parameters: list[float | int] | None = None
    mix_gamma: float | int = 1.0
    mix_layers: list[int] | None = None
    mix_l2: float | int = 0.0
    mix_layer_norm: bool = False
    representation_dropout: float | int = 0.5
    freeze_bilm: bool = True
    frozen_bilm_dtype: Literal["bfloat16", "float16"] | None = None
    bilm_reference: str | None = None
    bilm_fingerprint: str | None = None
    elmo_at_input: bool = True
    elmo_at_output: bool = False
    task_embedding_size: int | None = None
    task_hidden_size: int = 128
    task_num_layers: int = 1
    task_dropout: float | int = 0.5
    classifier_dropout: float | int | None = None
    classifier_pooling: Literal["mean", "max", "last", "biattentive"] = "mean"
    use_crf: bool = False
    label_scheme: Literal["BIO", "BIOES"] | None = None
    use_predicate_indicator: bool = False
    bilm_dropout: float | int = 0.1
    num_sampled_words: int | None = 8192
    initializer_range: float = 0.02
    begin_sentence_character_id: int = 257
    end_sentence_character_id: int = 258
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | None = 3

    def __post_init__(self, **kwargs: Any) -> None:
        """Fills in the values that others decide."""
        if self.filters is None:
            self.filters = [list(item) for item in PUBLISHED_FILTERS]
        if self.use_token_projection is None:
            num_filters = sum(item[-1] for item in self.filters)
            self.use_token_projection = self.word_embedding_size is not None or num_filters != self.projection_size
        self.fill_in()
        kwargs["auto_map"] = {**AUTO_MAP, **(kwargs.get("auto_map") or {})}
        super().__post_init__(**kwargs)

    def fill_in(self) -> None:
        """Raises `num_output_representations` to what a head needs; models call it too, as fields can be set later."""
        needed = int(self.elmo_at_input) + int(self.elmo_at_output)
        if 1 <= self.num_output_representations < needed:
            self.num_output_representations = needed

    @classmethod
    def from_size(cls, size: str, **overrides: Any) -> "ElmoConfig":
        """The configuration of a published size.

        Args:
            size: `"small"` (13.6M parameters), `"medium"` (28.0M) or `"original"` (93.6M).
            **overrides: Any argument of the configuration.

        Raises:
            ValueError: When there is no such size.
        """
        if size not in SIZES:
            raise ValueError(f"There is no published size {size!r}; choose one of {', '.join(SIZES)}.")
        return cls(**{**SIZES[size], **overrides})

    @property
    def hidden_size(self) -> int:
        """Size 2P of a word vector of both directions."""
        return 2 * self.projection_size

    @property
    def num_filters(self) -> int:
        """Size of the character encoder's features before the projection."""
        return sum(count for _, count in self.filters or [])

    @property
    def mix_size(self) -> int:
        """Number L + 1 of layers that are mixed: the token layer and every layer of the biLM."""
        return self.num_hidden_layers + 1

    @property
    def mixed_layers(self) -> list[int]:
        """The numbers from 0 of the layers that take part in the mixes, in their order."""
        if self.mix_layers is None:
            return list(range(self.mix_size))
        return sorted(number % self.mix_size for number in self.mix_layers)

    @property
    def layers_size(self) -> int:
        """Size of a word in `layers`: the token layer once, and both directions of each layer of the biLM."""
        return self.projection_size + self.num_hidden_layers * self.hidden_size

    def validate_sizes(self) -> None:
        """Every size is large enough and every filter fits a word."""
        for name, least in SMALLEST.items():
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ValueError(f"`{name}` must be at least {least}, but is {getattr(self, name)}.")
        if self.word_embedding_size is not None and (self.word_vocab_size is None or not self.use_token_projection):
            raise ValueError(
                "`word_embedding_size` needs `word_vocab_size`, the number of words, and `use_token_projection`, from "
                "the vectors of word and characters to `projection_size`."
            )
        if not self.filters:
            raise ValueError("`filters` must name at least one convolution as [width, count].")
        for item in self.filters:
            if len(item) != 2 or min(item) < 1 or item[0] > self.max_characters_per_token:
                raise ValueError(
                    f"`filters` must hold pairs [width, count] of positive numbers with a width of at most "
                    f"max_characters_per_token ({self.max_characters_per_token}), but holds {item}."
                )
        if not self.use_token_projection and self.num_filters != self.projection_size:
            raise ValueError(
                f"Without `use_token_projection` the number of filters ({self.num_filters}) must equal "
                f"`projection_size` ({self.projection_size})."
            )

    def validate_ranges(self) -> None:
        """Clips are positive, dropouts are probabilities, and the mix has a scalar for each layer."""
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            if clip is not None and not clip > 0:
                raise ValueError(f"`{name}` must be positive, or None for no clipping, but is {clip}.")
        for name in ("representation_dropout", "classifier_dropout", "bilm_dropout", "task_dropout"):
            dropout = getattr(self, name)
            if dropout is not None and not 0 <= dropout <= 1:
                raise ValueError(f"`{name}` must lie between 0 and 1, but is {dropout}.")
        if self.mix_parameters is not None and len(self.mix_parameters) != self.mix_size:
            raise ValueError(
                f"`mix_parameters` must hold a number for each of the {self.mix_size} layers (the token layer and "
                f"{self.num_hidden_layers} of the biLM), but holds {len(self.mix_parameters)}."
            )
        if not self.mix_l2 >= 0:
            raise ValueError(f"`mix_l2` must be 0 or more, but is {self.mix_l2}.")
        layers = range(-self.mix_size, self.mix_size)
        if self.mix_layers is not None and (
            not set(self.mix_layers) <= set(layers) or not self.mix_layers or self.has_layer_twice()
        ):
            raise ValueError(
                f"`mix_layers` must name some of the layers 0 (the token layer) to {self.num_hidden_layers}, or -1 "
                f"(the last) to {-self.mix_size}, each once, but is {self.mix_layers}."
            )

    def has_layer_twice(self) -> bool:
        """Whether `mix_layers` names a layer more than once."""
        return len(set(self.mixed_layers)) < len(self.mixed_layers)

    def validate_task(self) -> None:
        """A head has something to read, and settings that belong together are there together."""
        if self.task_embedding_size is not None and self.word_vocab_size is None:
            raise ValueError(
                "`task_embedding_size` needs `word_vocab_size`, the number of words in the tokenizer's vocabulary."
            )
        is_network = self.task_num_layers > 0 or self.classifier_pooling == "biattentive"
        if not (self.elmo_at_input or self.task_embedding_size or (self.elmo_at_output and not is_network)):
            raise ValueError(
                "With `elmo_at_input=False` the task network has nothing to read: set `task_embedding_size` for word "
                "vectors of its own" + (", or `task_num_layers=0` to go without it." if self.elmo_at_output else ".")
            )
        if self.frozen_bilm_dtype is not None and not self.freeze_bilm:
            raise ValueError("`frozen_bilm_dtype` is the precision of a frozen biLM: it needs `freeze_bilm=True`.")
        if self.label_scheme is not None and not self.use_crf:
            raise ValueError("`label_scheme` is for the transitions of a CRF: it needs `use_crf=True`.")


__all__ = ["ElmoConfig"]
