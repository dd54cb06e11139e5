"""Tiny configurations, models and inputs: small enough for every test, awkward enough to tell the numbers apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.modeling_elmo import ElmoModel, ElmoPreTrainedModel
from tests.reference import characters_of_sentence

Model = TypeVar("Model", bound=ElmoPreTrainedModel)

# No two sizes are equal, so that no two can be taken for one another.
TINY_SIZES: dict[str, Any] = {
    "character_embedding_size": 5,
    "filters": [[1, 4], [2, 3], [3, 8]],
    "projection_size": 6,
    "cell_size": 11,
    "num_hidden_layers": 2,
    "num_highway_layers": 1,
    "task_hidden_size": 7,
}

SENTENCES = [
    ["Мама", "мыла", "раму", "."],
    ["Yes"],
    ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"],
    ["naïve", "café", "½"],
]


def tiny_config(**overrides: Any) -> ElmoConfig:
    """An ElmoConfig of a few thousand parameters; any field can be overridden."""
    return ElmoConfig(**{**TINY_SIZES, **overrides})


def tiny_model(model_class: type[Model] = ElmoModel, seed: int = 0, **overrides: Any) -> Model:  # type: ignore[assignment]
    """A model with random weights that are the same for the same seed, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model_class(tiny_config(**overrides)).eval()


def pad_rows(
    sentences: Sequence[Any], length: int | None = None, side: str = "right"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads sentences of character ids to one batch.

    Args:
        sentences: For each sentence an array (its length, max_characters).
        length: Length to pad to; the longest sentence by default.
        side: "right" or "left".

    Returns:
        input_ids (batch, length, max_characters) and attention_mask (batch, length), both int64.
    """
    lengths = [len(sentence) for sentence in sentences]
    length = max(lengths) if length is None else length
    input_ids = torch.zeros(len(sentences), length, sentences[0].shape[-1], dtype=torch.long)
    mask = torch.zeros(len(sentences), length, dtype=torch.long)
    for row, sentence in enumerate(sentences):
        where = slice(0, lengths[row]) if side == "right" else slice(length - lengths[row], length)
        input_ids[row, where] = torch.as_tensor(sentence, dtype=torch.long)
        mask[row, where] = 1
    return input_ids, mask


def tiny_batch(
    sentences: Sequence[Sequence[str]] = SENTENCES, side: str = "right", max_characters: int = 50
) -> dict[str, torch.Tensor]:
    """input_ids and attention_mask of tokenised sentences, boundaries included, without a tokenizer."""
    rows = [characters_of_sentence(words, max_characters) for words in sentences]
    input_ids, attention_mask = pad_rows(rows, side=side)
    return {"input_ids": input_ids, "attention_mask": attention_mask}
