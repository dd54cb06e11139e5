"""Makes transformers' Auto classes know ELMo, with this package (`register`) and for saved folders (remote code)."""

import transformers
from transformers import AutoConfig, AutoTokenizer

from .configuration_elmo import ElmoConfig
from .modeling_elmo import model_classes
from .tokenization_elmo import ElmoTokenizer


def register_auto_classes() -> None:
    """Registers configuration, tokenizer, model and heads, so that `AutoModel.from_pretrained` and its kin find them.

    `register_for_auto_class` lets `save_pretrained` and `push_to_hub` put the modelling files beside the weights.
    """
    AutoConfig.register(ElmoConfig.model_type, ElmoConfig, exist_ok=True)
    ElmoConfig.register_for_auto_class()
    for auto_name, model_class in model_classes().items():
        getattr(transformers, auto_name).register(ElmoConfig, model_class, exist_ok=True)
        model_class.register_for_auto_class(auto_name)
    AutoTokenizer.register(ElmoConfig, fast_tokenizer_class=ElmoTokenizer, exist_ok=True)
    ElmoTokenizer.register_for_auto_class("AutoTokenizer")


__all__ = ["register_auto_classes"]
