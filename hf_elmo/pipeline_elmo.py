"""The token-classification pipeline for models whose `input_ids` hold a row of character ids for each word."""

import warnings
from importlib import import_module
from typing import Any

import numpy as np
from transformers.pipelines import PIPELINE_REGISTRY, TokenClassificationPipeline

TASK = "token-classification"


class CharacterRowsMixin:
    """Lets `gather_pre_entities` take `input_ids` of shape (seq, characters); one id a token passes as before."""

    accepts_character_rows = True

    def gather_pre_entities(self, sentence: str, input_ids: Any, *args: Any, **kwargs: Any) -> list[dict]:
        """As in transformers, where a token with the unknown id takes its word from the offsets: so does every row."""
        if input_ids.ndim < 2:
            return super().gather_pre_entities(sentence, input_ids, *args, **kwargs)  # type: ignore[misc]
        unknown = np.full(len(input_ids), self.tokenizer.unk_token_id)  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            # The warning is about pieces of words; here a token is a word.
            warnings.filterwarnings("ignore", message="Tokenizer does not support real words")
            return super().gather_pre_entities(sentence, unknown, *args, **kwargs)  # type: ignore[misc]


class ElmoTokenClassificationPipeline(CharacterRowsMixin, TokenClassificationPipeline):
    """`TokenClassificationPipeline` for ELMo and, unchanged, for every other model."""


def install_token_classification_pipeline() -> None:
    """Makes `pipeline("token-classification")` accept rows of character ids; calling it again changes nothing.

    A class that somebody else installed for the task stays the base of the new one. Copies of this module (the
    package's, a saved folder's) recognise each other by the attribute, not by identity.
    """
    entry = PIPELINE_REGISTRY.supported_tasks[TASK]
    installed = entry["impl"]
    if isinstance(installed, str):
        module, _, name = installed.rpartition(".")
        installed = getattr(import_module(module), name)
    if getattr(installed, "accepts_character_rows", False):
        return
    if installed is TokenClassificationPipeline:
        entry["impl"] = ElmoTokenClassificationPipeline
    else:
        entry["impl"] = type(installed.__name__, (CharacterRowsMixin, installed), {"__doc__": installed.__doc__})


__all__ = ["ElmoTokenClassificationPipeline", "install_token_classification_pipeline"]
