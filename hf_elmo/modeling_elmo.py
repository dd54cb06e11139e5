"""ELMo (Peters et al. 2018): characters -> words -> a bidirectional language model -> mixes of its layers."""

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput
from transformers.utils.output_capturing import capture_outputs

from .character_encoder_elmo import ElmoCharacterEncoder, ElmoHighway
from .configuration_elmo import ElmoConfig
from .dropout_elmo import ElmoDropout, apply_dropout
from .fast_paths_elmo import is_enabled
from .lstm_elmo import ElmoLstm, Packing, State, pack_words, run_lstms
from .shared_bilm_elmo import (
    BILM_PARTS,
    HUB_ARGUMENTS,
    LowPrecisionBilm,
    bilm_weights,
    check_same_bilm,
    fingerprint,
    load_shared_bilm,
    reference_of,
)
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
            hidden_states = apply_dropout(hidden_states, dropout)
            packing = packing and packing.without_distinct_words()
        states = list(zip(hidden.chunk(2, -1), cell.chunk(2, -1), strict=True))
        lstms = (self.forward_lstm, self.backward_lstm)
        outputs, finals = zip(*run_lstms(lstms, hidden_states.chunk(2, -1), mask, states, packing), strict=True)
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
        self.layers = config.mixed_layers
        self.layer_norm = config.mix_layer_norm
        self.initial_parameters = config.mix_parameters or [0.0] * config.mix_size
        self.initial_gamma = config.mix_gamma
        self.scalar_parameters = nn.Parameter(torch.empty(config.mix_size), requires_grad=config.mix_trainable)
        self.gamma = nn.Parameter(torch.empty(1), requires_grad=config.mix_trainable)

    def forward(self, layers: list[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
        """Mixes all L + 1 layers (batch, seq, 2P) to (batch, seq, 2P), 0 at padding."""
        mask = mask.unsqueeze(-1)
        layers = [layers[number] for number in self.layers]
        if self.layer_norm:
            layers = [self._normalise(layer, mask) for layer in layers]
        weights = self._scalars().softmax(dim=0)
        first, *others = (weight * layer for weight, layer in zip(weights, layers, strict=True))
        return sum(others, first) * (self.gamma * mask)

    def weights(self) -> torch.Tensor:
        """What each layer counts, shape (L + 1,): the softmax, and 0 for layers that take no part."""
        weights = torch.zeros_like(self.scalar_parameters)
        weights[self.layers] = self._scalars().softmax(dim=0)
        return weights

    def penalty(self) -> torch.Tensor:
        """The sum of the squares of the scalars of the layers that take part."""
        return self._scalars().square().sum()

    def _scalars(self) -> torch.Tensor:
        """The scalars of the layers that take part."""
        scalars = self.scalar_parameters
        if len(self.layers) == len(scalars):
            return scalars
        return torch.stack([scalars[number] for number in self.layers])

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

    def __init__(self, config: ElmoConfig, *args: Any, **kwargs: Any) -> None:
        # Fields that are passed to `from_pretrained` are set one by one, and nothing looks at them together.
        config.fill_in()
        config.validate()
        super().__init__(config, *args, **kwargs)
        if config.bilm_reference is not None:
            missing = self._keys_to_ignore_on_load_missing or []
            self._keys_to_ignore_on_load_missing = [*missing, rf"^(elmo\.)?({'|'.join(BILM_PARTS)})\."]

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        """Character ids of one sentence of two words."""
        ids = torch.ones(1, 2, self.config.max_characters_per_token, dtype=torch.long, device=self.device)
        inputs = {"input_ids": ids}
        if self.config.word_embedding_size is not None or self.config.task_embedding_size is not None:
            inputs["word_input_ids"] = ids[..., 0]
        if self.config.use_predicate_indicator:
            inputs["token_type_ids"] = ids[..., 0]
        return inputs

    @classmethod
    def from_pretrained(cls, *args: Any, bilm: str | os.PathLike[str] | None = None, **kwargs: Any) -> Any:
        """As `PreTrainedModel.from_pretrained`, also from a folder that holds the weights of a task only.

        Args:
            *args: As there.
            bilm: Folder or repository of the biLM, where it is no longer the one that such a folder refers to.
            **kwargs: As there.

        Raises:
            ValueError: When the biLM of such a folder is missing or is another one.
        """
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        config = model.config
        if config.bilm_reference is not None:
            config.bilm_reference = reference_of(config.bilm_reference if bilm is None else bilm)
            hub = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
            folder = str(config._name_or_path)
            weights = load_shared_bilm(ElmoModel, config.bilm_reference, folder, config.bilm_fingerprint, hub)
            if any(weight.is_meta for weight in bilm_weights(model.base_model).values()):
                raise ValueError(f"Parts of the biLM would lie on disk: save {folder} whole to load it so.")
            model.base_model.load_state_dict(weights, strict=False)
        model.apply_freezing()  # loading makes every weight trainable
        return loaded

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        *args: Any,
        task_only: bool = False,
        bilm: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """As `PreTrainedModel.save_pretrained`, the whole model or the weights of its task only.

        Args:
            save_directory: Where to save.
            *args: As there.
            task_only: Whether to leave out the biLM and refer to the folder or repository that has it:
                `from_pretrained` then takes it from there, and notices when it is missing or has changed.
            bilm: With `task_only` this folder or repository; by default the one that the model was loaded from.
            **kwargs: As there.

        Raises:
            ValueError: With `task_only` when the biLM is not the one that is referred to.
        """
        config, before = self.config, (self.config.bilm_reference, self.config.bilm_fingerprint)
        try:
            config.bilm_reference = config.bilm_fingerprint = None
            if task_only:
                reference = reference_of(bilm or before[0] or config._name_or_path)
                if reference == os.path.abspath(save_directory):
                    raise ValueError(f"{save_directory} holds the biLM: save the task's weights beside it, elsewhere.")
                theirs = load_shared_bilm(ElmoModel, reference, str(save_directory), None, {})
                check_same_bilm(bilm_weights(self.base_model), theirs, reference)
                config.bilm_reference, config.bilm_fingerprint = reference, fingerprint(theirs)
                state = kwargs.pop("state_dict", None) or self.state_dict()
                left_out = {f"elmo.{name}" for name in theirs} if self.base_model is not self else set(theirs)
                kwargs["state_dict"] = {name: tensor for name, tensor in state.items() if name not in left_out}
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            config.bilm_reference, config.bilm_fingerprint = before

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
        self.dropout = ElmoDropout(config.representation_dropout)
        self.low_precision = LowPrecisionBilm()
        self.post_init()
        self.apply_freezing()

    @property
    def is_bilm_frozen(self) -> bool:
        """Whether nothing of the biLM is trained: no weight of its own, and no adapter in it."""
        parts = (self.embeddings, self.encoder)
        return not any(parameter.requires_grad for part in parts for parameter in part.parameters())

    def train(self, mode: bool = True) -> "ElmoModel":
        """As of every module; a frozen biLM stays in evaluation mode."""
        super().train(mode)
        if mode and self.is_bilm_frozen:
            self.embeddings.eval()
            self.encoder.eval()
        return self

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
        word_ids = self._word_ids(word_input_ids, mask)
        bilm = self._bilm()
        with self._no_gradients(states):
            token_layer, packing = bilm._embed(input_ids.long(), word_ids, mask)
            layers, states = bilm.encoder(torch.cat([token_layer, token_layer], dim=-1), mask, states, packing)
        if bilm is not self:
            layers = [layer.to(self.dtype) for layer in layers]
        representations = self.represent(layers, mask)
        return ElmoModelOutput(last_hidden_state=representations[0], representations=representations, states=states)

    def _bilm(self) -> "ElmoModel":
        """The model whose biLM runs: this one, or its copy in less precision."""
        wanted = self.config.frozen_bilm_dtype
        if wanted is None or torch.compiler.is_exporting() or not self.is_bilm_frozen:
            return self
        return self._low_precision_bilm(getattr(torch, wanted))

    @torch.compiler.disable
    def _low_precision_bilm(self, dtype: torch.dtype) -> "ElmoModel":
        return cast(ElmoModel, self.low_precision.of(self, dtype))

    def _no_gradients(self, states: State | None) -> AbstractContextManager:
        """Nothing is kept for a backward pass through a frozen biLM, which takes its fast paths then."""
        wants_gradient = states is not None and any(state.requires_grad for state in states)
        if torch.compiler.is_exporting() or wants_gradient or not self.is_bilm_frozen:
            return nullcontext()
        return torch.no_grad()

    def represent(self, layers: list[torch.Tensor], mask: torch.Tensor) -> tuple[torch.FloatTensor, ...]:
        """The representations, with their dropout in training.

        Args:
            layers: All L + 1 layers, each (batch, seq, 2P).
            mask: True at words, shape (batch, seq).

        Returns:
            A mix for each of `num_output_representations`, each (batch, seq, 2P), 0 at padding.
        """
        return tuple(self.dropout(mix(layers, mask)) for mix in self.representations)

    def join_layers(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        """All layers of each word in one row, as they are stored: what repeats of the token layer is left out.

        Args:
            layers: L + 1 tensors (batch, seq, 2P), the `hidden_states` of the model.

        Returns:
            The token layer, then [forward; backward] of each biLM layer, shape (batch, seq, P + 2PL).
        """
        return torch.cat([layers[0][..., : self.config.projection_size], *layers[1:]], dim=-1)

    def split_layers(self, layers: torch.Tensor) -> list[torch.Tensor]:
        """What `join_layers` joined.

        Args:
            layers: Shape (batch, seq, P + 2PL).

        Returns:
            L + 1 tensors (batch, seq, 2P), of the model's type.

        Raises:
            ValueError: When the shape is another.
        """
        size = self.config.layers_size
        if layers.dim() != 3 or layers.shape[-1] != size or not layers.is_floating_point():
            raise ValueError(
                f"`layers` must have the shape (batch, words, {size}), as precompute_layers gives them for this model,"
                f" but has {tuple(layers.shape)} and the type {layers.dtype}: were they computed with another model?"
            )
        layers = layers.to(self.dtype)  # autocast cannot join float16
        token_layer = layers[..., : self.config.projection_size]
        others = layers[..., self.config.projection_size :].split(self.config.hidden_size, dim=-1)
        return [torch.cat([token_layer, token_layer], dim=-1), *others]

    def layer_weights(self) -> LayerWeights:
        """The mix that each representation has learned: softmax weights of the layers, and gamma."""
        mixes = cast(list[ElmoScalarMix], list(self.representations))
        weights = torch.stack([mix.weights() for mix in mixes])
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


def select_layers(layers: list[torch.Tensor], wanted: bool | int | list[int]) -> tuple[torch.Tensor | None, ...]:
    """All layers, or None in the place of those that are not asked for; numbers below 0 count from the end."""
    if isinstance(wanted, bool):
        return tuple(layers)
    numbers = [wanted] if isinstance(wanted, int) else wanted
    count = len(layers)
    return tuple(layer if index in numbers or index - count in numbers else None for index, layer in enumerate(layers))


def words_first(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Moves the words of each row to its front, in their order; what is none comes behind them.

    Args:
        mask: True at words, shape (batch, seq).

    Returns:
        Which position comes to each place, and to which place each position goes, both (batch, seq).
    """
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    count = mask.sum(dim=1, keepdim=True)
    places = torch.where(mask, mask.cumsum(dim=1) - 1, count + (~mask).cumsum(dim=1) - 1)
    return torch.zeros_like(places).scatter(1, places, positions), places


def turn_words(mask: torch.Tensor) -> torch.Tensor:
    """The positions (batch, seq) that turn the words of each row round, its padding staying where it is.

    Args:
        mask: True at words, shape (batch, seq).
    """
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    order, _ = words_first(mask)
    from_the_end = mask.sum(dim=1, keepdim=True) - mask.cumsum(dim=1)
    return torch.where(mask, order.gather(1, from_the_end.clamp(min=0)), positions)


def gather_positions(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The values (batch, seq, size) at positions (batch, n), shape (batch, n, size)."""
    return values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1]))


def model_classes() -> dict[str, type[ElmoPreTrainedModel]]:
    """The class that each Auto class of models finds, as `AUTO_MAP` says.

    The other files build on this one, so that their import waits until the call. That it stands here also makes each
    saved folder whole: transformers puts those files beside the weights that it finds in a saved class's imports.
    """
    from .heads_elmo import ElmoForSequenceClassification, ElmoForTokenClassification
    from .language_model_elmo import ElmoForPreTraining

    return {
        "AutoModel": ElmoModel,
        "AutoModelForPreTraining": ElmoForPreTraining,
        "AutoModelForSequenceClassification": ElmoForSequenceClassification,
        "AutoModelForTokenClassification": ElmoForTokenClassification,
    }


__all__ = ["ElmoModel", "ElmoModelOutput", "ElmoPreTrainedModel", "LayerWeights", "model_classes"]
