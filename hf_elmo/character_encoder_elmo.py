"""The token layer of ELMo: the characters of a word to a vector that knows no context."""

from typing import cast

import torch
from torch import nn
from transformers.activations import ACT2FN

from .configuration_elmo import ElmoConfig


class ElmoHighway(nn.Module):
    """One highway layer (Srivastava et al. 2015) with bilm-tf's names: the carry gate multiplies the transform."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.carry = nn.Linear(size, size)
        self.transform = nn.Linear(size, size)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Maps (words, size) to (words, size)."""
        carry = self.carry(features).sigmoid()
        return carry * self.transform(features).relu() + (1 - carry) * features


class ElmoCharacterEncoder(nn.Module):
    """The token layer: character vectors, convolutions with max pooling, highway layers, projection.

    With `config.word_embedding_size` the vector of the word stands before the features of its characters, ahead of
    the projection.

    Source: section 2.1 of Jozefowicz et al. 2016; `_build_word_char_embeddings` of bilm-tf's `training.py`;
    `ConvTokenEmbedder` of ELMoForManyLangs.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.output_size = config.projection_size
        self.widest_filter = max(width for width, _ in config.filters or [])
        self.character_embeddings = nn.Embedding(config.vocab_size, config.character_embedding_size, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.character_embedding_size, count, width) for width, count in config.filters or []
        )
        self.activation = ACT2FN[config.hidden_act]
        self.highways = nn.ModuleList(ElmoHighway(config.num_filters) for _ in range(config.num_highway_layers))
        self.word_embeddings = None
        if config.word_embedding_size is not None:
            rows = cast(int, config.word_vocab_size) + 1
            self.word_embeddings = nn.Embedding(rows, config.word_embedding_size, padding_idx=0)
        features = config.num_filters + (config.word_embedding_size or 0)
        self.projection = nn.Linear(features, config.projection_size) if config.use_token_projection else None

    def forward(self, character_ids: torch.Tensor, word_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Maps character ids (words, characters) and, where words have vectors, word ids (words,) to (words, P)."""
        characters = self.character_embeddings(character_ids).transpose(1, 2)
        pooled = [convolution(characters).amax(dim=-1) for convolution in self.convolutions]
        features = self.activation(torch.cat(pooled, dim=-1))
        for highway in self.highways:
            features = highway(features)
        if self.word_embeddings is not None:
            features = torch.cat([self.word_embeddings(word_ids), features], dim=-1)
        return features if self.projection is None else self.projection(features)

    def encode_words(self, character_ids: torch.Tensor, word_ids: torch.Tensor | None = None) -> torch.Tensor:
        """`forward`, computing each distinct word once and no more padding characters than it takes.

        Both are exact, for gradients too: equal words have equal vectors, and all windows that lie wholly in the
        padding have the same value, so that the maximum needs only one of them.
        """
        if not len(character_ids):
            return character_ids.new_zeros(0, self.output_size, dtype=self.character_embeddings.weight.dtype)
        if word_ids is None:
            words, occurrences = torch.unique(character_ids, dim=0, return_inverse=True)
        else:
            both = torch.cat([character_ids, word_ids[:, None]], dim=-1)
            distinct, occurrences = torch.unique(both, dim=0, return_inverse=True)
            words, word_ids = distinct[:, :-1], distinct[:, -1]
        varying = (words != words[:, -1:]).any(dim=0).nonzero()
        longest = int(varying[-1]) + 1 if len(varying) else 0
        return self(words[:, : longest + self.widest_filter], word_ids)[occurrences]


__all__ = ["ElmoCharacterEncoder", "ElmoHighway"]
