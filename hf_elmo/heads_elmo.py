"""ELMo with a head for a task: classes of texts and pairs of texts, and labels of words.

A head is ELMo's mixes, a task network over them (`task_network_elmo`) and a classifier. What goes into it is either
`input_ids`, which the biLM reads, or `layers`, what the biLM gave for them before: training then runs without it.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .crf_elmo import LinearChainCrf, constraints
from .dropout_elmo import ElmoDropout
from .modeling_elmo import NO_LABEL, ElmoModel, ElmoPreTrainedModel, ElmoScalarMix, select_layers
from .task_network_elmo import ElmoPooling, ElmoTaskNetwork

logger = logging.get_logger(__name__)


class HeadInputs(NamedTuple):
    """What a head reads.

    Attributes:
        mask: True at words and boundaries, shape (batch, seq).
        input_ids: Character ids, shape (batch, seq, characters), or None.
        layers: All layers, each (batch, seq, 2P), or None.
        word_ids: Word ids, shape (batch, seq), or None.
    """

    mask: torch.Tensor
    input_ids: torch.Tensor | None
    layers: list[torch.Tensor] | None
    word_ids: torch.Tensor | None

    def take_apart(self, second: torch.Tensor) -> "HeadInputs":
        """The first texts of all rows, then the second ones, which are where `second` (batch, seq) is True."""
        return HeadInputs(
            torch.cat([self.mask & ~second, self.mask & second]),
            None if self.input_ids is None else torch.cat([self.input_ids, self.input_ids]),
            None if self.layers is None else [torch.cat([layer, layer]) for layer in self.layers],
            None if self.word_ids is None else torch.cat([self.word_ids, self.word_ids]),
        )


class ElmoHead(ElmoPreTrainedModel):
    """What the heads have in common: ELMo, the task network, the classifier.

    Args:
        config: The settings.
        is_biattentive: Whether the task network has attention.
    """

    def __init__(self, config: ElmoConfig, is_biattentive: bool = False) -> None:
        super().__init__(config)
        self.num_labels = cast(int, config.num_labels)
        self.elmo = ElmoModel(config)
        self.task_network = ElmoTaskNetwork(config, is_biattentive)
        dropout = config.classifier_dropout
        if dropout is None:
            dropout = config.task_dropout if config.task_num_layers or is_biattentive else 0.0
        self.dropout = ElmoDropout(dropout)

    def apply_freezing(self) -> None:
        """Makes trainable what the configuration says; mixes that the head does not read are not trained."""
        super().apply_freezing()
        used = int(self.config.elmo_at_input) + int(self.config.elmo_at_output)
        self.elmo.representations[used:].requires_grad_(False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.LSTM):
            # The second quarter of the gates is that of forgetting: at first nothing is forgotten.
            bias = cast(torch.Tensor, module.bias_ih_l0)
            remembering = torch.zeros_like(bias)
            remembering.chunk(4)[1].fill_(1.0)
            init.copy_(bias, remembering)
        elif isinstance(module, ElmoTaskNetwork) and module.embeddings is not None:
            table = module.embeddings.weight
            init.uniform_(table, -0.25, 0.25)
            if not getattr(table, "_is_hf_initialized", False):
                init.zeros_(table[0])
        elif isinstance(module, LinearChainCrf):
            for parameter in (module.transitions, module.start, module.end):
                init.zeros_(parameter)

    def _read_inputs(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        word_input_ids: torch.Tensor | None,
        layers: torch.Tensor | None,
    ) -> HeadInputs:
        """Checks what was given.

        Raises:
            ValueError: When something is missing or has another shape than the rest.
        """
        split = None
        if layers is not None:
            split = self.elmo.split_layers(layers)
            if self.training and not self.elmo.is_bilm_frozen:
                raise ValueError(
                    "This model trains its biLM, but `layers` were computed before and would not change with it: "
                    "leave the biLM frozen (`freeze_bilm=True`, no adapters in it), or give `input_ids`."
                )
            if input_ids is not None and input_ids.dim() == 2:
                input_ids = None  # the tokenizer's stand-ins, which hold no characters
            mask = self._mask_of_layers(layers, attention_mask)
        elif input_ids is not None:
            mask = self.elmo._word_mask(input_ids, attention_mask)
        else:
            raise ValueError("A head needs `input_ids`, or the `layers` that precompute_layers stored for them.")
        if self.task_network.embeddings is not None:
            word_input_ids = self._check_word_ids(word_input_ids, mask)
        return HeadInputs(mask, input_ids, split, word_input_ids)

    @staticmethod
    def _mask_of_layers(layers: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        if attention_mask is None:
            return torch.ones(layers.shape[:2], dtype=torch.bool, device=layers.device)
        if attention_mask.shape != layers.shape[:2]:
            raise ValueError(
                f"`attention_mask` must have the shape (batch, words) {tuple(layers.shape[:2])} of `layers`, but has "
                f"{tuple(attention_mask.shape)}."
            )
        return attention_mask.to(layers.device) != 0

    def _check_word_ids(self, word_input_ids: torch.Tensor | None, mask: torch.Tensor) -> torch.Tensor:
        if word_input_ids is None or word_input_ids.shape != mask.shape:
            found = "missing" if word_input_ids is None else f"of the shape {tuple(word_input_ids.shape)}"
            raise ValueError(
                f"This head has word vectors (`task_embedding_size`): `word_input_ids` must have the shape (batch, "
                f"words) {tuple(mask.shape)}, as an ElmoTokenizer with a word vocabulary gives it, but is {found}."
            )
        word_input_ids = word_input_ids.to(mask.device).long() * mask
        words = cast(int, self.config.word_vocab_size)
        if not torch.compiler.is_compiling() and word_input_ids.numel() and word_input_ids.max() > words:
            raise ValueError(
                f"`word_input_ids` has the id {int(word_input_ids.max())}, but the head has vectors of {words} words "
                "(`word_vocab_size`): is the tokenizer's word vocabulary the model's?"
            )
        return word_input_ids

    def _check_types(self, token_type_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Where `token_type_ids` are not 0, shape (batch, seq)."""
        if token_type_ids.shape != mask.shape:
            raise ValueError(
                f"`token_type_ids` must have the shape (batch, words) {tuple(mask.shape)}, but has "
                f"{tuple(token_type_ids.shape)}."
            )
        return (token_type_ids.to(mask.device) != 0) & mask

    def _boundaries(self, inputs: HeadInputs) -> torch.Tensor:
        """Where the words are that stand for the begin and the end of a text, shape (batch, seq)."""
        if inputs.input_ids is not None:
            mark = inputs.input_ids[..., 1]
            begin, end = self.config.begin_sentence_character_id, self.config.end_sentence_character_id
            return ((mark == begin) | (mark == end)).to(inputs.mask.device) & inputs.mask
        count = inputs.mask.cumsum(dim=1)
        first = (count == 1) & (self.config.bos_token_id is not None)
        last = (count == count[:, -1:]) & (self.config.eos_token_id is not None)
        return (first | last) & inputs.mask

    def _run_elmo(
        self, inputs: HeadInputs, **kwargs: Any
    ) -> tuple[list[torch.Tensor | None], tuple[torch.Tensor | None, ...] | None]:
        """ELMo at the input and at the output, each (batch, seq, 2P) or None; and the layers that were asked for."""
        places = [self.config.elmo_at_input, self.config.elmo_at_output]
        wanted = kwargs.get("output_hidden_states")
        wanted = self.config.output_hidden_states if wanted is None else wanted
        hidden_states = None
        representations: tuple[torch.Tensor, ...] = ()
        if inputs.layers is not None:
            representations = self.elmo.represent(inputs.layers, inputs.mask)
            if wanted:
                hidden_states = select_layers([layer * inputs.mask[..., None] for layer in inputs.layers], wanted)
        elif wanted or any(places):
            output = self.elmo(inputs.input_ids, attention_mask=inputs.mask, word_input_ids=inputs.word_ids, **kwargs)
            representations, hidden_states = output.representations, output.hidden_states
        mixes = iter(representations)
        return [next(mixes) if is_used else None for is_used in places], hidden_states

    def _finish_loss(
        self, loss: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
    ) -> torch.Tensor:
        """Adds the penalty of the mixes in training, and takes the part of this batch in several ones."""
        if self.training and self.config.mix_l2:
            mixes = cast(list[ElmoScalarMix], list(self.elmo.representations))
            for mix in mixes:
                if mix.scalar_parameters.requires_grad:
                    loss = loss + self.config.mix_l2 * mix.penalty().to(loss.device)
        if num_items_in_batch is None:
            return loss
        if isinstance(num_items_in_batch, torch.Tensor):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        return loss * (labels != NO_LABEL).sum() / num_items_in_batch


class ElmoForSequenceClassification(ElmoHead):
    """ELMo with a classifier of texts, or of pairs of texts.

    The words of a text, boundaries left out, go through the task network and are pooled to a vector u. A pair stands
    in one row, `<S> a </S> <S> b </S>`; the biLM and the network read each of its texts alone, and the classifier is
    given [u; v; |u - v|; u * v]. For a text alone all but u is 0.

    Args:
        config: The settings.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config, is_biattentive=config.classifier_pooling == "biattentive")
        self.pooling = ElmoPooling(config, self.task_network.parts)
        # What reads u is as large as the classifier of words, so that either head can be made of the other's folder.
        self.classifier = nn.Linear(self.pooling.size, self.num_labels)
        self.pair_classifier = nn.Linear(3 * self.pooling.size, self.num_labels, bias=False)
        self.post_init()
        self.apply_freezing()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        word_input_ids: torch.Tensor | None = None,
        layers: torch.Tensor | None = None,
        length: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Scores the labels of each text or pair.

        Args:
            input_ids: Character ids, shape (batch, seq, characters).
            attention_mask: 1 at words, 0 at padding, shape (batch, seq).
            token_type_ids: 1 at the second text of a pair, shape (batch, seq). By default it begins where the second
                `<S>` of `input_ids` is; but an exported graph reads pairs only where it was exported with these.
            labels: Classes (batch,), or targets (batch, num_labels) where `problem_type` says so.
            word_input_ids: Word ids, shape (batch, seq), for the word vectors of the head or of the model.
            layers: In the place of `input_ids` all layers of each word, as `precompute_layers` stores them, shape
                (batch, seq, P + 2PL). The first and the last word of each text are taken for its boundaries.
            length: Not read. `Trainer` drops the columns that are not named here before it groups rows by length.
            num_items_in_batch: How many labels there are in all batches whose gradients are added up.
            **kwargs: As of `ElmoModel.forward`.

        Raises:
            ValueError: When something is missing, or has another shape or other values than described.
        """
        inputs = self._read_inputs(input_ids, attention_mask, word_input_ids, layers)
        second = self._second_texts(inputs, token_type_ids)
        if second is not None:
            inputs = inputs.take_apart(second)
        words = inputs.mask & ~self._boundaries(inputs)
        (at_input, at_output), hidden_states = self._run_elmo(inputs, **kwargs)
        partners = None if second is None else self._partners(second)
        vectors = self.task_network(words, inputs.word_ids, at_input, at_output, partners=partners)
        pooled = self.pooling(vectors, words)
        if second is None:
            u, comparison = pooled, torch.zeros_like(pooled).repeat(1, 3)
        else:
            u, v = pooled.chunk(2)
            comparison = torch.cat([v, (u - v).abs(), u * v], dim=-1) * second.any(dim=1, keepdim=True)
            if hidden_states is not None:  # each text has zeros where the other one is
                hidden_states = tuple(
                    layer if layer is None else torch.add(*layer.chunk(2)) for layer in hidden_states
                )
        logits = self.classifier(self.dropout(u)) + self.pair_classifier(self.dropout(comparison))
        loss = None
        if labels is not None:
            labels = self._check_labels(labels, logits)
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
            if not torch.compiler.is_compiling() and not labels.is_floating_point() and (labels == NO_LABEL).all():
                loss = logits.sum() * 0  # a mean over nothing
            loss = self._finish_loss(loss, labels, num_items_in_batch)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=cast(Any, hidden_states))

    def _second_texts(self, inputs: HeadInputs, token_type_ids: torch.Tensor | None) -> torch.Tensor | None:
        """Where the second texts of pairs are, shape (batch, seq); None when all texts stand alone."""
        if token_type_ids is not None:
            second = self._check_types(token_type_ids, inputs.mask)
        elif inputs.input_ids is None or torch.compiler.is_exporting():
            return None
        else:
            begins = (inputs.input_ids[..., 1] == self.config.begin_sentence_character_id).to(inputs.mask.device)
            second = ((begins & inputs.mask).cumsum(dim=1) > 1) & inputs.mask
        return second if torch.compiler.is_exporting() or second.any() else None

    @staticmethod
    def _partners(second: torch.Tensor) -> torch.Tensor:
        """After `take_apart` the row of the other text of each row's pair, or its own, shape (2 batch,)."""
        rows = torch.arange(second.shape[0], device=second.device)
        return torch.cat([torch.where(second.any(dim=1), rows + second.shape[0], rows), rows])

    def _check_labels(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Labels of the type that the loss wants."""
        problem, count = self.config.problem_type, self.num_labels
        if problem is None:  # as the loss decides
            problem = "regression" if count == 1 else problem
            is_class = not labels.is_floating_point() and labels.dtype != torch.bool
        else:
            is_class = problem == "single_label_classification"
        if problem == "regression" or not is_class:
            if labels.numel() != logits.numel():
                raise ValueError(
                    f"`labels` must hold {count} numbers a text, shape {tuple(logits.shape)}, or a class each, whole "
                    f"numbers of shape ({len(logits)},), but has the shape {tuple(labels.shape)} and the type "
                    f"{labels.dtype}."
                )
            return labels.to(logits.dtype)
        if labels.numel() != len(logits):
            raise ValueError(
                f"`labels` must hold a class for each of the {len(logits)} texts, but has the shape "
                f"{tuple(labels.shape)}."
            )
        return check_classes(labels, count)


class ElmoForTokenClassification(ElmoHead):
    """ELMo with a classifier of words, or with a CRF over the labels of each text (`use_crf`).

    With a CRF the logits in training are its emissions. In evaluation they are logarithms of the probabilities of the
    labels of each word, exchanged where need be so that the largest is the label of the best sequence: their maximum
    is the Viterbi path and their softmax a confidence, wherever transformers looks.

    Args:
        config: The settings.

    Raises:
        ValueError: When the names of the labels are not of the `label_scheme`.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(self.task_network.size, self.num_labels)
        self.crf = None
        # With a CRF Trainer weighs accumulated batches by themselves, not by labels: the loss is a mean over texts.
        self.accepts_loss_kwargs = not config.use_crf
        if config.use_crf:
            names = cast(dict[int, str], config.id2label)
            allowed = None if config.label_scheme is None else constraints(names, config.label_scheme)
            self.crf = LinearChainCrf(self.num_labels, allowed, [names[number] for number in range(self.num_labels)])
        self.post_init()
        self.apply_freezing()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        word_input_ids: torch.Tensor | None = None,
        layers: torch.Tensor | None = None,
        length: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Scores the labels of each word.

        Args:
            input_ids: Character ids, shape (batch, seq, characters).
            attention_mask: 1 at words, 0 at padding, shape (batch, seq).
            token_type_ids: With `use_predicate_indicator` 1 at the words of the predicate, shape (batch, seq).
            labels: Classes, shape (batch, seq), -100 where there is none. Boundaries and padding never count.
            word_input_ids: Word ids, shape (batch, seq), for the word vectors of the head or of the model.
            layers: In the place of `input_ids` all layers of each word, as `precompute_layers` stores them, shape
                (batch, seq, P + 2PL). The first and the last word of each row are taken for its boundaries.
            length: Not read. `Trainer` drops the columns that are not named here before it groups rows by length.
            num_items_in_batch: How many labels there are in all batches whose gradients are added up.
            **kwargs: As of `ElmoModel.forward`.

        Raises:
            ValueError: When something is missing, or has another shape or other values than described.
        """
        inputs = self._read_inputs(input_ids, attention_mask, word_input_ids, layers)
        words = inputs.mask & ~self._boundaries(inputs)
        predicates = self._predicates(inputs, token_type_ids)
        (at_input, at_output), hidden_states = self._run_elmo(inputs, **kwargs)
        vectors = self.task_network(words, inputs.word_ids, at_input, at_output, predicates)
        logits = self.classifier(self.dropout(vectors))
        loss = None
        if labels is not None:
            labels = self._check_labels(labels, words)
            loss = self._finish_loss(self._loss(logits, labels), labels, num_items_in_batch)
        elif self.crf is not None and self.training:
            logger.warning_once(
                "A CRF in training mode was given no `labels`, so that it does not learn: its loss is the model's "
                "own. Trainer takes the labels away with `label_smoothing_factor`."
            )
        if self.crf is not None and not self.training:
            logits = self.crf(logits, words)  # in float32: rounded, the two largest could become equal
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=cast(Any, hidden_states))

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean over labelled words, or with a CRF over texts with a label."""
        counted = labels != NO_LABEL
        if self.crf is None:
            count = counted.sum().clamp(min=1)  # without a label the loss is 0
            return self.loss_function(logits=logits, labels=labels, config=self.config, num_items_in_batch=count)
        likelihoods = self.crf(logits, counted, labels.masked_fill(~counted, 0))
        return -likelihoods.sum() / counted.any(dim=1).sum().clamp(min=1)

    def _predicates(self, inputs: HeadInputs, token_type_ids: torch.Tensor | None) -> torch.Tensor | None:
        if not self.config.use_predicate_indicator:
            return None
        if token_type_ids is None:
            raise ValueError(
                "This head is told which word is the predicate (`use_predicate_indicator`): give `token_type_ids`, 1 "
                "at the predicate and 0 elsewhere."
            )
        return self._check_types(token_type_ids, inputs.mask)

    def _check_labels(self, labels: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Labels (batch, seq), -100 where there is no word."""
        if labels.shape != words.shape:
            raise ValueError(
                f"`labels` must have the shape (batch, words) {tuple(words.shape)} of the words, boundaries included, "
                f"but has {tuple(labels.shape)}."
            )
        return check_classes(labels, self.num_labels).to(words.device).masked_fill(~words, NO_LABEL)


def check_classes(labels: torch.Tensor, count: int) -> torch.Tensor:
    """Classes as int64.

    Raises:
        ValueError: When one is none of the `count` classes nor -100.
    """
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"`labels` must be whole numbers of classes, but has the type {labels.dtype}.")
    labels = labels.long()
    if torch.compiler.is_compiling() or ((labels == NO_LABEL) | ((labels >= 0) & (labels < count))).all():
        return labels
    raise ValueError(
        f"`labels` must be numbers from 0 to {count - 1}, as the model has {count} labels (`num_labels`), or "
        f"{NO_LABEL}; but they reach from {int(labels.min())} to {int(labels.max())}."
    )


__all__ = ["ElmoForSequenceClassification", "ElmoForTokenClassification", "ElmoHead"]
