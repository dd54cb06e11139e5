"""ELMo with a head for a task: classes of texts, and of words."""

from typing import Any, cast

import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .modeling_elmo import ElmoModel, ElmoPreTrainedModel


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


__all__ = ["ElmoForSequenceClassification", "ElmoForTokenClassification"]
