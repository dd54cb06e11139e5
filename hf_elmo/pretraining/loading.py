"""A saved language model with its tokenizer, ready to be asked."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig

from ..language_model_elmo import ElmoForPreTraining
from ..tokenization_elmo import ElmoTokenizer
from .vocabulary import check_language_model


def check_device(name: str) -> torch.device:
    """The device of this name.

    Raises:
        ValueError: There is none.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"There is no device {name} here: {str(error).splitlines()[0]}") from error
    return device


def load_language_model(
    name: str | Path, device: torch.device | str = "cpu"
) -> tuple[ElmoForPreTraining, ElmoTokenizer]:
    """Loads a model with its softmax, and its tokenizer with the words of the softmax.

    Args:
        name: A folder, or a repository of the Hub.
        device: Where the model shall compute.

    Raises:
        OSError: There is no such folder or repository.
        ValueError: It holds another model than ELMo, no softmax, or no vocabulary that fits the softmax.
    """
    name = str(name)
    config = AutoConfig.from_pretrained(name)
    if config.model_type != "elmo":
        raise ValueError(f"{name} holds a model of type {config.model_type}, not elmo.")
    no_softmax = (
        f"{name} holds no softmax over words, without which ELMo is no language model: an HDF5 file of weights never"
        " has one; convert the training checkpoint instead (bilm-tf, DeepPavlov), or train the softmax with `hf-elmo"
        " adapt`."
    )
    if config.word_vocab_size is None:
        raise ValueError(no_softmax)
    tokenizer = ElmoTokenizer.from_pretrained(name)
    # A folder in half precision is computed in float32 still, or its losses would overflow.
    model, report = ElmoForPreTraining.from_pretrained(
        name, config=config, output_loading_info=True, dtype=torch.float32
    )
    if any(key.startswith("softmax.") for key in report["missing_keys"]):
        raise ValueError(no_softmax)
    check_language_model(model, tokenizer)
    return model.to(torch.device(device)).eval(), tokenizer
