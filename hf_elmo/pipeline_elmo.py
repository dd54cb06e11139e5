"""Stock pipelines for a model that reads a row of character ids for each word and returns more than one tensor."""

import re
import warnings
from importlib import import_module
from typing import Any

import numpy as np
from transformers.modeling_outputs import BaseModelOutput
from transformers.pipelines import PIPELINE_REGISTRY, FeatureExtractionPipeline, TokenClassificationPipeline

BIOES_NAME = re.compile(r"O|[BIES](-.+)?")


class CharacterRowsMixin:
    """Lets token classification take `input_ids` of shape (seq, characters); one id a token passes as before.

    For ELMo it also reads BIOES label names, and the word of a group is the text as it was written.
    """

    knows_elmo = True

    def gather_pre_entities(self, sentence: str, input_ids: Any, *args: Any, **kwargs: Any) -> list[dict]:
        """As in transformers, where a token with the unknown id takes its word from the offsets: so does every row."""
        if input_ids.ndim < 2:
            return super().gather_pre_entities(sentence, input_ids, *args, **kwargs)  # type: ignore[misc]
        unknown = np.full(len(input_ids), self.tokenizer.unk_token_id)  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            # The warning is about pieces of words; here a token is a word.
            warnings.filterwarnings("ignore", message="Tokenizer does not support real words")
            return super().gather_pre_entities(sentence, unknown, *args, **kwargs)  # type: ignore[misc]

    def get_tag(self, entity_name: str) -> tuple[str, str]:
        """As in transformers, which knows B and I only; with BIOES labels S begins an entity and E goes on with it."""
        if self._has_bioes_labels():
            tag, _, kind = entity_name.partition("-")
            return ("B" if tag in "BS" else "I"), kind or entity_name
        return super().get_tag(entity_name)  # type: ignore[misc]

    def postprocess(self, model_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, which joins the words of a group with spaces whether there were any or not."""
        entities = super().postprocess(model_outputs, *args, **kwargs)  # type: ignore[misc]
        if self._is_elmo():
            sentence = model_outputs[0]["sentence"]
            for entity in entities:
                entity["word"] = sentence[entity["start"] : entity["end"]]
        return entities

    def _is_elmo(self) -> bool:
        return self.model.config.model_type == "elmo"  # type: ignore[attr-defined]

    def _has_bioes_labels(self) -> bool:
        if not self._is_elmo():
            return False
        names = self.model.config.id2label.values()  # type: ignore[attr-defined]
        return all(map(BIOES_NAME.fullmatch, names)) and any(name[0] in "ES" for name in names)


class FirstOutputMixin:
    """Lets a batch of ELMo's outputs be taken apart: the mixes and the states of all rows are no tensors by row."""

    knows_elmo = True

    def _forward(self, model_inputs: Any) -> Any:
        outputs = super()._forward(model_inputs)  # type: ignore[misc]
        if self.model.config.model_type != "elmo":  # type: ignore[attr-defined]
            return outputs
        return BaseModelOutput(last_hidden_state=outputs[0])


class ElmoTokenClassificationPipeline(CharacterRowsMixin, TokenClassificationPipeline):  # type: ignore[misc]
    """`TokenClassificationPipeline` for ELMo and, unchanged, for every other model."""


class ElmoFeatureExtractionPipeline(FirstOutputMixin, FeatureExtractionPipeline):  # type: ignore[misc]
    """`FeatureExtractionPipeline` for ELMo and, unchanged, for every other model."""


PIPELINES = {
    "token-classification": ElmoTokenClassificationPipeline,
    "feature-extraction": ElmoFeatureExtractionPipeline,
}


def install_pipelines() -> None:
    """Makes the stock pipelines take ELMo; calling it again changes nothing.

    A class that somebody else installed for a task stays the base of the new one. Copies of this module (the
    package's, a saved folder's) recognise each other by the attribute, not by identity.
    """
    for task, pipeline_class in PIPELINES.items():
        mixin, stock = pipeline_class.__bases__
        entry = PIPELINE_REGISTRY.supported_tasks[task]
        installed = entry["impl"]
        if isinstance(installed, str):
            module, _, name = installed.rpartition(".")
            installed = getattr(import_module(module), name)
        if getattr(installed, "knows_elmo", False):
            continue
        if installed is stock:
            entry["impl"] = pipeline_class
        else:
            entry["impl"] = type(installed.__name__, (mixin, installed), {"__doc__": installed.__doc__})


__all__ = ["ElmoFeatureExtractionPipeline", "ElmoTokenClassificationPipeline", "install_pipelines"]
