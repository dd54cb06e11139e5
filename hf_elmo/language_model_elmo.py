"""ELMo as a language model: each direction of the biLM predicts the next word that it reads."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .dropout_elmo import apply_dropout
from .lstm_elmo import State, pack_words
from .modeling_elmo import NO_LABEL, ElmoModel, ElmoPreTrainedModel, gather_positions, select_layers, turn_words
from .softmax_elmo import ElmoSoftmax


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
        forward_hidden, backward_hidden = apply_dropout(layers[-1], dropout, self.training).chunk(2, dim=-1)
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


__all__ = ["ElmoForPreTraining", "ElmoForPreTrainingOutput"]
