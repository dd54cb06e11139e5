"""ELMo (Peters et al. 2018): characters -> words -> a bidirectional language model -> mixes of its layers -> heads."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .character_encoder_elmo import ElmoCharacterEncoder, ElmoHighway
from .configuration_elmo import ElmoConfig
from .fast_paths_elmo import is_enabled
from .lstm_elmo import ElmoLstm, Packing, State, pack_words, run_lstm
from .softmax_elmo import ElmoSoftmax

# The label of a word that is no target, as everywhere in transformers.
NO_LABEL = -100


@dataclass
class ElmoModelOutput(ModelOutput):
    """What `ElmoModel` returns. P is the projection size, C the cell size, L the number of layers.

    Args:
        last_hidden_state: The first representation, shape (batch, seq, 2P), 0 at padding.
        representations: A mix of the layers for each of `num_output_representations`, each (batch, seq, 2P).
        states: The states after the last word of each row, for the next call: outputs (L, batch, 2P) and cells
            (L, batch, 2C).
        hidden_states: On request, L + 1 tensors (batch, seq, 2P): the token layer twice, then
            [forward; backward] of each biLM layer; 0 at padding.
    """

    last_hidden_state: torch.FloatTensor | None = None
    representations: tuple[torch.FloatTensor, ...] | None = None
    states: State | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None


@dataclass
class ElmoForPreTrainingOutput(ModelOutput):
    """What `ElmoForPreTraining` returns. V is the number of words; for the other letters see `ElmoModelOutput`.

    Args:
        loss: The mean of the losses of both directions.
        forward_loss: The mean negative log-likelihood (natural logarithm) of the words that the forward direction
            predicts; with `reduction="none"` that of each word, shape (batch, seq), 0 where there is no label.
        backward_loss: The same for the backward direction.
        forward_logits: On request, scores of the word after each, shape (batch, seq, V).
        backward_logits: On request, scores of the word before each, shape (batch, seq, V); with
            `backward_input_ids` in the order in which these are read.
        states: As in `ElmoModelOutput`.
        hidden_states: As in `ElmoModelOutput`; with `backward_input_ids` the backward half in the order of these.
    """

    loss: torch.Tensor | None = None
    forward_loss: torch.Tensor | None = None
    backward_loss: torch.Tensor | None = None
    forward_logits: torch.Tensor | None = None
    backward_logits: torch.Tensor | None = None
    states: State | None = None
    hidden_states: tuple[torch.Tensor | None, ...] | None = None


class LayerWeights(NamedTuple):
    """How each representation mixes the layers: gamma * sum_j weights_j h_j.

    Attributes:
        weights: The softmax of the scalar parameters, shape (representations, L + 1).
        gamma: The scale, shape (representations,).
    """

    weights: torch.Tensor
    gamma: torch.Tensor


class ElmoLayer(GradientCheckpointingLayer):
    """One layer of the biLM: a left-to-right and a right-to-left LSTM that know nothing of each other."""

    def __init__(self, config: ElmoConfig, layer_index: int) -> None:
        super().__init__()
        self.has_skip_connection = config.use_skip_connections and layer_index > 0
        sizes = (config.projection_size, config.cell_size, config.cell_clip, config.projection_clip)
        self.forward_lstm = ElmoLstm(*sizes)
        self.backward_lstm = ElmoLstm(*sizes)

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor,
        hidden: torch.Tensor,
        cell: torch.Tensor,
        packing: Packing | None,
        dropout: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Runs both directions.

        Args:
            hidden_states: [forward; backward] of the layer below, shape (batch, seq, 2P).
            mask: True at words, shape (batch, seq).
            hidden: Output that each row starts with, shape (batch, 2P).
            cell: Cell that each row starts with, shape (batch, 2C).
            packing: Where the words are, or None for the plain reference.
            dropout: Probability of dropout at the input in training; the skip connection lies behind it.

        Returns:
            [forward; backward] of this layer (batch, seq, 2P), and the final output and cell.
        """
        if dropout and self.training:
            hidden_states = nn.functional.dropout(hidden_states, dropout)
            packing = packing and packing.without_distinct_words()
        outputs: list[torch.Tensor] = []
        finals: list[State] = []
        parts = zip(hidden_states.chunk(2, -1), hidden.chunk(2, -1), cell.chunk(2, -1), strict=True)
        for lstm, (inputs, *state) in zip((self.forward_lstm, self.backward_lstm), parts, strict=True):
            output, final = run_lstm(
                lstm, inputs, mask, (state[0], state[1]), reverse=lstm is self.backward_lstm, packing=packing
            )
            outputs.append(output)
            finals.append(final)
        output = torch.cat(outputs, dim=-1)
        if self.has_skip_connection:
            output = output + hidden_states
        final_hidden, final_cell = (torch.cat(parts, dim=-1) for parts in zip(*finals, strict=True))
        return output, final_hidden, final_cell


class ElmoEncoder(nn.Module):
    """The layers of the biLM."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ElmoLayer(config, index) for index in range(config.num_hidden_layers))
        self.state_sizes = (config.hidden_size, 2 * config.cell_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor,
        states: State | None,
        packing: Packing | None,
        dropout: float = 0.0,
    ) -> tuple[list[torch.Tensor], State]:
        """Runs all layers.

        Args:
            hidden_states: The token layer twice, or that of other words for the backward direction in the second
                half, shape (batch, seq, 2P).
            mask: True at words, shape (batch, seq).
            states: Outputs (L, rows, 2P) and cells (L, rows, 2C) of the call before, or None for zeros.
            packing: Where the words are, or None for the plain reference.
            dropout: Probability of dropout at the input of each layer in training.

        Returns:
            All L + 1 layers (batch, seq, 2P), and the states for the next call.
        """
        layers = [hidden_states]
        finals: list[list[torch.Tensor]] = []
        batch = hidden_states.shape[0]
        first = self._initial_states(hidden_states, states)
        for layer, hidden, cell in zip(self.layers, *first, strict=True):
            output, *final = layer(layers[-1], mask, hidden[:batch], cell[:batch], packing, dropout)
            layers.append(output)
            packing = packing and packing.without_distinct_words()
            if states is not None:  # rows that this batch does not use keep their states
                unused = (state[batch:].to(output.device) for state in (hidden, cell))
                final = [torch.cat(parts) for parts in zip(final, unused, strict=True)]
            # The layers may lie on several devices.
            finals.append([state.to(hidden_states.device) for state in final])
        hidden, cell = (torch.stack(parts) for parts in zip(*finals, strict=True))
        return layers, (hidden, cell)

    def _initial_states(self, like: torch.Tensor, states: State | None) -> list[torch.Tensor]:
        """States for at least as many rows as the batch has: given rows first, then zeros."""
        initial = []
        for index, size in enumerate(self.state_sizes):
            if states is None:
                initial.append(like.new_zeros(len(self.layers), like.shape[0], size))
                continue
            given = states[index].to(like)
            if given.dim() != 3 or given.shape[0] != len(self.layers) or given.shape[2] != size:
                raise ValueError(
                    f"`states[{index}]` must have the shape ({len(self.layers)}, rows, {size}) of the `states` that "
                    f"the model returned, but has {tuple(given.shape)}."
                )
            missing = like.shape[0] - given.shape[1]
            initial.append(nn.functional.pad(given, (0, 0, 0, missing)) if missing > 0 else given)
        return initial


class ElmoScalarMix(nn.Module):
    """One representation: gamma * sum_j softmax(s)_j h_j over the token layer and the layers of the biLM.

    Source: equation 1 of Peters et al. 2018; `scalar_mix.py` of AllenNLP.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.layer_norm = config.mix_layer_norm
        self.initial_parameters = config.mix_parameters or [0.0] * config.mix_size
        self.initial_gamma = config.mix_gamma
        self.scalar_parameters = nn.Parameter(torch.empty(config.mix_size), requires_grad=config.mix_trainable)
        self.gamma = nn.Parameter(torch.empty(1), requires_grad=config.mix_trainable)

    def forward(self, layers: list[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
        """Mixes layers (batch, seq, 2P) to (batch, seq, 2P), 0 at padding."""
        mask = mask.unsqueeze(-1)
        if self.layer_norm:
            layers = [self._normalise(layer, mask) for layer in layers]
        weights = self.scalar_parameters.softmax(dim=0)
        mixed = sum(weight * layer for weight, layer in zip(weights, layers, strict=True))
        return self.gamma * mixed * mask

    @staticmethod
    def _normalise(layer: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """AllenNLP's layer norm: mean and variance over every number of every word of the batch."""
        count = (mask.sum() * layer.shape[-1]).clamp(min=1)
        precise = torch.promote_types(layer.dtype, torch.float32)  # the sums go beyond float16
        mean = (layer * mask).sum(dtype=precise) / count
        variance = (((layer - mean) * mask) ** 2).sum(dtype=precise) / count
        tiny = 1e-4 if layer.dtype == torch.float16 else 1e-13
        return (layer - mean) / (variance + tiny).sqrt()


class ElmoPreTrainedModel(PreTrainedModel):
    """Initialisation, loading and freezing, shared by the model and its heads."""

    config_class = ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ElmoCharacterEncoder", "ElmoLayer"]
    _input_embed_layer = "character_embeddings"
    _can_record_outputs = {"hidden_states": ElmoLayer}
    _keys_to_ignore_on_load_unexpected = [r"^softmax\."]  # a language model's, of no use to the others
    # A further representation starts from what the configuration says, not from random numbers.
    _keys_to_ignore_on_load_missing = [r"representations\.\d+\."]

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        """Character ids of one sentence of two words."""
        ids = torch.ones(1, 2, self.config.max_characters_per_token, dtype=torch.long, device=self.device)
        if self.config.word_embedding_size is None:
            return {"input_ids": ids}
        return {"input_ids": ids, "word_input_ids": ids[..., 0]}

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As `PreTrainedModel.from_pretrained`; loading makes every weight trainable, so that what the
        configuration freezes is frozen again.
        """
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.apply_freezing()
        return loaded

    def apply_freezing(self) -> None:
        """Makes trainable what `config.freeze_bilm` and `config.mix_trainable` say, and nothing else of ELMo."""
        elmo = self.base_model
        for bilm in (elmo.embeddings, elmo.encoder):
            bilm.requires_grad_(not self.config.freeze_bilm)
        elmo.representations.requires_grad_(self.config.mix_trainable)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """As for models of transformers itself: `_init_weights` spares loaded weights, so every module is visited."""
        super()._initialize_weights(module, is_custom_code=False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """The initialisation of bilm-tf (`training.py`) for the biLM, transformers' own for the rest."""
        super()._init_weights(module)
        if isinstance(module, ElmoCharacterEncoder):
            self._init_character_encoder(module)
        elif isinstance(module, ElmoHighway):
            for linear, bias in ((module.carry, -2.0), (module.transform, 0.0)):
                init.normal_(linear.weight, std=math.sqrt(1 / linear.in_features))
                init.constant_(linear.bias, bias)
        elif isinstance(module, ElmoLstm):
            for linear in (module.input_gates, module.recurrent_gates, module.projection):
                init.xavier_uniform_(linear.weight)
            forget_bias = torch.zeros_like(module.input_gates.bias)
            forget_bias.chunk(4)[1].fill_(1.0)
            init.copy_(module.input_gates.bias, forget_bias)
        elif isinstance(module, ElmoScalarMix):
            init.copy_(module.scalar_parameters, torch.tensor(module.initial_parameters, dtype=torch.float))
            init.constant_(module.gamma, module.initial_gamma)

        elif isinstance(module, ElmoSoftmax):
            init.normal_(module.weight, std=math.sqrt(1 / module.weight.shape[1]))
            init.zeros_(module.bias)

    def _init_character_encoder(self, module: ElmoCharacterEncoder) -> None:
        table = module.character_embeddings
        init.uniform_(table.weight, -1.0, 1.0)
        if not getattr(table.weight, "_is_hf_initialized", False):
            init.zeros_(table.weight[0])
        for convolution in cast(list[nn.Conv1d], list(module.convolutions)):
            if self.config.hidden_act == "relu":
                init.uniform_(convolution.weight, -0.05, 0.05)
            else:
                init.normal_(convolution.weight, std=math.sqrt(1 / convolution.weight[0].numel()))
        if module.word_embeddings is not None:
            words = module.word_embeddings.weight
            init.uniform_(words, -0.25, 0.25)
            if not getattr(words, "_is_hf_initialized", False):
                init.zeros_(words[0])
        if module.projection is not None:
            init.normal_(module.projection.weight, std=math.sqrt(1 / module.projection.in_features))


class ElmoModel(ElmoPreTrainedModel):
    """ELMo: character ids of words to contextual word vectors.

    The same sentence always gets the same vectors: LSTM states start at zero unless given, and padding, the other
    sentences of the batch and their order change nothing beyond float rounding (but see `mix_layer_norm`).

    Args:
        config: The architecture.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.embeddings = ElmoCharacterEncoder(config)
        self.encoder = ElmoEncoder(config)
        self.representations = nn.ModuleList(ElmoScalarMix(config) for _ in range(config.num_output_representations))
        self.dropout = nn.Dropout(config.representation_dropout)
        self.post_init()
        self.apply_freezing()

    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        states: State | None = None,
        word_input_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> ElmoModelOutput:
        """Computes the representations.

        Args:
            input_ids: Character ids as `ElmoTokenizer` gives them, shape (batch, seq, characters); rows of zeros are
                padding.
            attention_mask: 1 at words (boundaries included), 0 at padding, on either side, shape (batch, seq). By
                default every row that is not all zeros is a word.
            states: The `states` of the call before, to go on reading row r where row r ended, as the original
                implementations do silently. The batch may grow (new rows start at zero) and shrink (unused rows
                keep their states). By default every row starts at zero.
            word_input_ids: Word ids as `ElmoTokenizer` gives them, 0 at padding, shape (batch, seq). Read by models
                with `config.word_embedding_size`, which need it; others leave it aside.
            **kwargs: `output_hidden_states` for all layers, `return_dict`.

        Raises:
            ValueError: When a shape is not as described.
        """
        mask = self._word_mask(input_ids, attention_mask)
        token_layer, packing = self._embed(input_ids.long(), self._word_ids(word_input_ids, mask), mask)
        layers, states = self.encoder(torch.cat([token_layer, token_layer], dim=-1), mask, states, packing)
        representations = tuple(self.dropout(mix(layers, mask)) for mix in self.representations)
        return ElmoModelOutput(last_hidden_state=representations[0], representations=representations, states=states)

    def layer_weights(self) -> LayerWeights:
        """The mix that each representation has learned: softmax weights of the layers, and gamma."""
        mixes = cast(list[ElmoScalarMix], list(self.representations))
        weights = torch.stack([mix.scalar_parameters.softmax(dim=0) for mix in mixes])
        return LayerWeights(weights.detach(), torch.cat([mix.gamma for mix in mixes]).detach())

    def _word_mask(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        characters = self.config.max_characters_per_token
        if input_ids.dim() != 3 or input_ids.shape[-1] != characters or input_ids.is_floating_point():
            raise ValueError(
                f"`input_ids` must hold character ids of shape (batch, words, {characters}), as ElmoTokenizer gives "
                f"them, but has the shape {tuple(input_ids.shape)} and the type {input_ids.dtype}."
            )
        if attention_mask is None:
            return (input_ids != 0).any(dim=-1)
        if attention_mask.shape != input_ids.shape[:2]:
            raise ValueError(
                f"`attention_mask` must have the shape (batch, words) {tuple(input_ids.shape[:2])} of `input_ids`, "
                f"but has {tuple(attention_mask.shape)}."
            )
        return attention_mask.to(input_ids.device) != 0

    def _word_ids(self, word_input_ids: torch.Tensor | None, mask: torch.Tensor) -> torch.Tensor | None:
        if self.config.word_embedding_size is None:
            return None
        if word_input_ids is None or word_input_ids.shape != mask.shape:
            found = "missing" if word_input_ids is None else f"of the shape {tuple(word_input_ids.shape)}"
            raise ValueError(
                f"This model has vectors of words: `word_input_ids` must have the shape (batch, words) "
                f"{tuple(mask.shape)} of `input_ids`, as ElmoTokenizer gives it, but is {found}."
            )
        return word_input_ids.to(mask.device).long()

    def _embed(
        self, input_ids: torch.Tensor, word_ids: torch.Tensor | None, mask: torch.Tensor
    ) -> tuple[torch.Tensor, Packing | None]:
        """The token layer (batch, seq, P), 0 at padding; and where the words are, unless a graph is exported."""
        if torch.compiler.is_exporting():
            flat_ids = None if word_ids is None else word_ids.flatten()
            words = self.embeddings(input_ids.flatten(0, 1), flat_ids)
            return words.unflatten(0, mask.shape) * mask[..., None], None
        return self._embed_words(input_ids, word_ids, mask)

    @torch.compiler.disable
    def _embed_words(
        self, input_ids: torch.Tensor, word_ids: torch.Tensor | None, mask: torch.Tensor
    ) -> tuple[torch.Tensor, Packing]:
        vectors, occurrences = self.embeddings.encode_distinct_words(
            input_ids[mask], None if word_ids is None else word_ids[mask]
        )
        padded = vectors.new_zeros(*mask.shape, vectors.shape[-1])
        padded = padded.masked_scatter(mask[..., None], vectors[occurrences])
        packing = pack_words(mask)
        if 2 * len(vectors) <= len(occurrences) and self._may_repeat_words():
            numbers = occurrences.new_zeros(mask.shape).masked_scatter(mask, occurrences)
            packing = replace(packing, distinct_words=(vectors.detach(), numbers.flatten()))
        return padded, packing

    def _may_repeat_words(self) -> bool:
        """Whether the first layer reads the token layer as it is, so that equal words are equal there too."""
        hooks = (self.encoder._forward_pre_hooks, self.encoder.layers[0]._forward_pre_hooks)
        return is_enabled("distinct_words") and not any(hooks)


class ElmoForPreTraining(ElmoPreTrainedModel):
    """ELMo as a language model: each direction of the biLM predicts the word that it reads next.

    Both directions share the token layer and the softmax over the words of `config.word_vocab_size`. The biLM is
    trained whatever `config.freeze_bilm` says; the mixes of its layers have no part in it.

    Source: `LanguageModel` of bilm-tf's `training.py`.

    Args:
        config: The architecture, with `word_vocab_size`.

    Raises:
        ValueError: When the configuration does not say how many words there are.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        if config.word_vocab_size is None:
            raise ValueError(
                "A language model needs `word_vocab_size`, the number of words that its softmax predicts; pass "
                "`word_vocab_size=` with the length of the word vocabulary, to the configuration or to "
                "`from_pretrained`."
            )
        self.elmo = ElmoModel(config)
        self.softmax = ElmoSoftmax(config.word_vocab_size, config.projection_size)
        self.post_init()
        self.apply_freezing()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As `PreTrainedModel.from_pretrained`. Where the folder has no softmax, as after the conversion of an HDF5
        file, a new one is initialised, and a warning says so; `word_vocab_size=` then says for how many words.

        Raises:
            ValueError: When the folder has a softmax over another number of words.
        """
        try:
            return super().from_pretrained(*args, **kwargs)
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            raise ValueError(
                f"The weights in {args[0] if args else 'the checkpoint'} have other sizes than the configuration "
                "says; where it is the softmax, leave out `word_vocab_size=` to keep it with its vocabulary, or pass "
                "`ignore_mismatched_sizes=True` to begin with a new one for another vocabulary."
            ) from error

    def apply_freezing(self) -> None:
        """Makes everything trainable but the mixes of the layers."""
        self.requires_grad_(True)
        self.elmo.representations.requires_grad_(False)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        states: State | None = None,
        backward_input_ids: torch.Tensor | None = None,
        forward_labels: torch.Tensor | None = None,
        backward_labels: torch.Tensor | None = None,
        word_input_ids: torch.Tensor | None = None,
        output_logits: bool = False,
        reduction: str = "mean",
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> ElmoForPreTrainingOutput:
        """Predicts words from the left and from the right, in one of two ways.

        **Sentences**: `input_ids` are whole sentences with their boundaries, which both directions read, and `labels`
        the numbers of these words. The word at t is predicted by what the forward direction has read up to t - 1 and
        the backward direction down to t + 1.

        **Streams**, with `backward_input_ids`: the backward direction reads other words than the forward one. Rows go
        on from call to call with `states`. Everything of the backward direction is in the order in which it reads:
        its first word stands first. The labels say what comes next in each stream.

        Args:
            input_ids: Character ids, shape (batch, seq, characters).
            attention_mask: 1 at words, 0 at padding on either side, shape (batch, seq).
            labels: Numbers from 0 of the words themselves (`word_input_ids` of the tokenizer less 1), -100 where there
                is none, anything at padding; shape (batch, seq).
            states: As of `ElmoModel.forward`.
            backward_input_ids: Character ids for the backward direction, shape (batch, seq, characters), with padding
                where `input_ids` have it.
            forward_labels: Number of the next word of the forward stream at each word, -100 where there is none, shape
                (batch, seq).
            backward_labels: The same for the backward stream.
            word_input_ids: As of `ElmoModel.forward`.
            output_logits: Whether to return the scores of all words, which may take much memory.
            reduction: `"mean"` over the words with labels, or `"none"` for the loss of each word.
            num_items_in_batch: What to divide the sum of each direction's losses by in the place of the number of its
                labels: that of the labels of one direction in all the batches whose gradients are added up.
            **kwargs: `output_hidden_states` for all layers, or the numbers of some; `return_dict`.

        Raises:
            ValueError: When a shape is not as described, when a label is no word of the softmax, or when the two ways
                are mixed up.
        """
        if reduction not in ("mean", "none"):
            raise ValueError(f'`reduction` must be "mean" or "none", but is {reduction!r}.')
        elmo = self.elmo
        mask = elmo._word_mask(input_ids, attention_mask)
        targets = self._targets(mask, labels, forward_labels, backward_labels, backward_input_ids is not None)
        dropout = self.config.bilm_dropout
        if backward_input_ids is None:
            tokens, packing = elmo._embed(input_ids.long(), elmo._word_ids(word_input_ids, mask), mask)
            layers, states = elmo.encoder(torch.cat([tokens, tokens], dim=-1), mask, states, packing, dropout)
        else:
            layers, states = self._run_streams(input_ids, backward_input_ids, attention_mask, mask, states)
        forward_hidden, backward_hidden = nn.functional.dropout(layers[-1], dropout, self.training).chunk(2, dim=-1)
        output = ElmoForPreTrainingOutput(states=states)
        if targets is not None:
            losses = [
                self._loss(hidden, target, reduction, num_items_in_batch)
                for hidden, target in zip((forward_hidden, backward_hidden), targets, strict=True)
            ]
            output.loss = (losses[0] + losses[1]) / 2
            output.forward_loss, output.backward_loss = losses
        if output_logits:
            output.forward_logits, output.backward_logits = self.softmax(forward_hidden), self.softmax(backward_hidden)
        wanted = kwargs.get("output_hidden_states")
        if wanted := self.config.output_hidden_states if wanted is None else wanted:
            output.hidden_states = select_layers(layers, wanted)
        return output

    def _run_streams(
        self,
        input_ids: torch.Tensor,
        backward_input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        mask: torch.Tensor,
        states: State | None,
    ) -> tuple[list[torch.Tensor], State]:
        """All layers (batch, seq, 2P), the backward half in the order of its stream, and the new states."""
        elmo = self.elmo
        if self.config.word_embedding_size is not None:
            raise ValueError("A model with vectors of words reads sentences, not streams (`backward_input_ids`).")
        if input_ids.shape != backward_input_ids.shape or not mask.equal(
            elmo._word_mask(backward_input_ids, attention_mask)
        ):
            raise ValueError(
                f"`backward_input_ids` must have the shape {tuple(input_ids.shape)} of `input_ids` and padding in the "
                f"same places; its shape is {tuple(backward_input_ids.shape)}."
            )
        # The backward LSTMs walk from the right to the left: what they read first must stand last.
        turned = turn_words(mask)
        batch = len(input_ids)
        both = torch.cat([input_ids, gather_positions(backward_input_ids, turned)]).long()
        tokens, _ = elmo._embed(both, None, torch.cat([mask, mask]))
        packing = None if torch.compiler.is_exporting() else pack_words(mask)
        halves = torch.cat([tokens[:batch], tokens[batch:]], dim=-1)
        layers, states = elmo.encoder(halves, mask, states, packing, self.config.bilm_dropout)
        for index, layer in enumerate(layers):
            forward_half, backward_half = layer.chunk(2, dim=-1)
            turned = turned.to(layer.device)
            layers[index] = torch.cat([forward_half, gather_positions(backward_half, turned)], dim=-1)
        return layers, states

    def _targets(
        self,
        mask: torch.Tensor,
        labels: torch.Tensor | None,
        forward_labels: torch.Tensor | None,
        backward_labels: torch.Tensor | None,
        is_stream: bool,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What each direction predicts at each word (batch, seq), -100 for nothing; or None without labels."""
        given = {"labels": labels, "forward_labels": forward_labels, "backward_labels": backward_labels}
        names = [name for name, label in given.items() if label is not None]
        if not names:
            return None
        wanted = ["forward_labels", "backward_labels"] if is_stream else ["labels"]
        if names != wanted:
            raise ValueError(
                f"{'With' if is_stream else 'Without'} `backward_input_ids` the model takes {' and '.join(wanted)}, "
                f"but was given {' and '.join(names)}."
            )
        targets = [self._word_numbers(name, cast(torch.Tensor, given[name]), mask) for name in names]
        if is_stream:
            return targets[0], targets[1]
        forward_targets = nn.functional.pad(targets[0][:, 1:], (0, 1), value=NO_LABEL)
        backward_targets = nn.functional.pad(targets[0][:, :-1], (1, 0), value=NO_LABEL)
        # The padding beside a sentence has its first or last word as a neighbour, and predicts nothing.
        return forward_targets.masked_fill(~mask, NO_LABEL), backward_targets.masked_fill(~mask, NO_LABEL)

    def _word_numbers(self, name: str, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Labels (batch, seq) that were checked, -100 at padding."""
        if labels.shape != mask.shape:
            raise ValueError(
                f"`{name}` must have the shape (batch, words) {tuple(mask.shape)} of `input_ids`, but has "
                f"{tuple(labels.shape)}."
            )
        labels = labels.to(mask.device).long().masked_fill(~mask, NO_LABEL)
        if not ((labels == NO_LABEL) | ((labels >= 0) & (labels < self.num_words))).all():
            raise ValueError(
                f"`{name}` must hold numbers of words from 0 to {self.num_words - 1}, as the softmax has "
                f"{self.num_words} words (`word_vocab_size`), or {NO_LABEL}; but they reach from {int(labels.min())} "
                f"to {int(labels.max())}: is the word vocabulary the model's?"
            )
        return labels

    def _loss(
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        reduction: str,
        num_items_in_batch: torch.Tensor | int | None,
    ) -> torch.Tensor:
        """The loss of one direction from its vectors (batch, seq, P) and targets (batch, seq)."""
        hidden = hidden.to(targets.device)  # the layers may lie on several devices
        counted = targets != NO_LABEL
        losses = self.softmax(hidden[counted], targets[counted], self.num_sampled_words).to(targets.device)
        if reduction == "none":
            return losses.new_zeros(targets.shape).masked_scatter(counted, losses)
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        if isinstance(count, torch.Tensor):
            return losses.sum() / count.to(losses.device)
        return losses.sum() / max(count, 1)

    @property
    def num_words(self) -> int:
        """Words of the softmax."""
        return cast(int, self.config.word_vocab_size)

    @property
    def num_sampled_words(self) -> int | None:
        """How many words a loss draws now, or None for the whole vocabulary."""
        drawn = self.config.num_sampled_words
        return drawn if self.training and drawn is not None and 2 * drawn <= self.num_words else None


def select_layers(layers: list[torch.Tensor], wanted: bool | int | list[int]) -> tuple[torch.Tensor | None, ...]:
    """All layers, or None in the place of those that are not asked for; numbers below 0 count from the end."""
    if isinstance(wanted, bool):
        return tuple(layers)
    numbers = [wanted] if isinstance(wanted, int) else wanted
    count = len(layers)
    return tuple(layer if index in numbers or index - count in numbers else None for index, layer in enumerate(layers))


def turn_words(mask: torch.Tensor) -> torch.Tensor:
    """The positions (batch, seq) that turn the words of each row round, its padding staying where it is.

    Args:
        mask: True at words, shape (batch, seq).
    """
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    words_first = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    from_the_end = mask.sum(dim=1, keepdim=True) - mask.cumsum(dim=1)
    return torch.where(mask, words_first.gather(1, from_the_end.clamp(min=0)), positions)


def gather_positions(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Values (batch, seq, size) in another order of their positions (batch, seq)."""
    return values.gather(1, positions[..., None].expand_as(values))


class ElmoForSequenceClassification(ElmoPreTrainedModel):
    """ELMo with a linear classifier over the pooled words of a text, boundaries left out."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.elmo = ElmoModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout or 0.0)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()
        self.apply_freezing()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        word_input_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Scores the labels of each text.

        Args:
            input_ids: Character ids, shape (batch, seq, characters).
            attention_mask: 1 at words, 0 at padding, shape (batch, seq).
            labels: Classes (batch,), or targets (batch, num_labels) where `problem_type` says so.
            word_input_ids: As of `ElmoModel.forward`.
            **kwargs: As of `ElmoModel.forward`.
        """
        outputs = self.elmo(input_ids, attention_mask=attention_mask, word_input_ids=word_input_ids, **kwargs)
        logits = self.classifier(self.dropout(self._pool(outputs.last_hidden_state, input_ids, attention_mask)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)

    def _pool(self, words: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Mean or maximum over the words (batch, seq, 2P), boundaries left out; 0 for a text without words."""
        mark = input_ids[..., 1]
        is_boundary = (mark == self.config.begin_sentence_character_id) | (
            mark == self.config.end_sentence_character_id
        )
        is_padding = (input_ids == 0).all(dim=-1) if attention_mask is None else attention_mask == 0
        left_out = (is_boundary | is_padding)[..., None].to(words.device)
        count = (~left_out).sum(dim=1)
        if self.config.classifier_pooling == "max":
            lowest = torch.finfo(words.dtype).min
            # One position more, so that a batch without any has a maximum too.
            candidates = nn.functional.pad(words.masked_fill(left_out, lowest), (0, 0, 0, 1), value=lowest)
            return candidates.amax(dim=1) * (count > 0)
        return words.masked_fill(left_out, 0).sum(dim=1) / count.clamp(min=1)


class ElmoForTokenClassification(ElmoPreTrainedModel):
    """ELMo with a linear classifier over each word."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.elmo = ElmoModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout or 0.0)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()
        self.apply_freezing()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        word_input_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Scores the labels of each word.

        Args:
            input_ids: Character ids, shape (batch, seq, characters).
            attention_mask: 1 at words, 0 at padding, shape (batch, seq).
            labels: Classes, shape (batch, seq), -100 where there is none.
            word_input_ids: As of `ElmoModel.forward`.
            **kwargs: As of `ElmoModel.forward`.
        """
        outputs = self.elmo(input_ids, attention_mask=attention_mask, word_input_ids=word_input_ids, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


__all__ = [
    "ElmoForPreTraining",
    "ElmoForPreTrainingOutput",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoPreTrainedModel",
]
