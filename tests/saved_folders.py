"""Folders as users have them: a tiny model and its tokenizer, saved together."""

from pathlib import Path
from typing import Any

import torch

from hf_elmo import ElmoModel, ElmoPreTrainedModel, ElmoTokenizer
from tests.checkpoints import write_checkpoint
from tests.tiny_models import tiny_batch, tiny_model

TEXTS = ["Don't panic, naïve Мама.", "Yes", "The quick brown fox can't jump."]


def varied_model(model_class: type[ElmoPreTrainedModel] = ElmoModel, **overrides: Any) -> ElmoPreTrainedModel:
    """A tiny model whose words differ enough that a mistake, or another label of a head, shows."""
    model = tiny_model(model_class, **overrides)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "convolutions" in name or "lstm" in name:
                parameter.mul_(3.0)
        if hasattr(model, "classifier"):
            model.classifier.weight.mul_(50.0)
            logits = model(**tiny_batch()).logits
            model.classifier.bias.sub_(logits.flatten(0, -2).mean(dim=0))
    return model


def save_folder(folder: Path, model_class: type[ElmoPreTrainedModel] = ElmoModel, **overrides: Any) -> Path:
    """Saves `varied_model` and a tokenizer for English."""
    varied_model(model_class, **overrides).save_pretrained(folder)
    ElmoTokenizer(word_splitter="treebank").save_pretrained(folder)
    return folder


def convert_folder(folder: Path) -> Path:
    """Converts a tiny original checkpoint into a folder."""
    from hf_elmo.conversion import convert_checkpoint

    source = write_checkpoint(folder.with_name(folder.name + "-original"))
    convert_checkpoint(source, folder, word_splitter="treebank")
    return folder


def save_published_folder(folder: Path, model_class: type[ElmoPreTrainedModel] = ElmoModel, **overrides: Any) -> Path:
    """`save_folder` with a generated card: all that goes to the Hub."""
    from hf_elmo.conversion.seal import seal

    save_folder(folder, model_class, **overrides)
    (folder / "README.md").write_text(seal("---\nlibrary_name: transformers\ntags:\n- elmo\n---\n\n# Tiny ELMo\n"))
    return folder
