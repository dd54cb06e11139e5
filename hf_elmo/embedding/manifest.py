"""What an output was made of: the model, the options, and the input; so that nothing is mixed up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..modeling_elmo import ElmoModel
from ..tokenization_elmo import ElmoTokenizer
from .errors import ChangedError
from .shards import as_bytes, write_json

VERSION = 1
# Fields of a configuration that change no vector.
_INCIDENTAL = {"_name_or_path", "transformers_version", "architectures", "auto_map", "dtype", "torch_dtype"}


def digest(content: Any) -> str:
    """The SHA-256 of something that can be JSON."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def model_fingerprint(model: ElmoModel, tokenizer: ElmoTokenizer) -> str:
    """The SHA-256 of all that a sentence's vectors depend on: weights, configuration, tokenizer."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in _INCIDENTAL}
    pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
    lexicon, vocabulary = tokenizer.character_lexicon, tokenizer.word_vocabulary
    return digest(
        {
            "weights": weights_fingerprint(model.state_dict()),
            "config": json.loads(json.dumps(config, sort_keys=True, default=str)),
            "tokenizer": {**pipeline, "truncation": None, "padding": None},
            "characters": tokenizer.max_characters_per_token,
            "lexicon": None if lexicon is None else [lexicon.characters, lexicon.names],
            "words": None if vocabulary is None else [vocabulary.words, vocabulary.unknown_word],
        }
    )


def weights_fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """The SHA-256 of weights by their names."""
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        found.update(as_bytes(tensor.detach().cpu()))
    return found.hexdigest()


def new_manifest(model: str, model_print: str, options: dict[str, Any], threads: int) -> dict[str, Any]:
    """The manifest of a job that begins.

    Args:
        model: The name of the model, for people.
        model_print: Its fingerprint.
        options: All that decides the bytes of the output, besides model and input.
        threads: Threads of a worker; the same number rounds the same way.
    """
    return {
        "format": f"hf_elmo vectors {VERSION}",
        "job": digest([VERSION, model_print, options]),
        "model": model,
        "model_fingerprint": model_print,
        "options": options,
        "threads": threads,
        "torch": torch.__version__,
        "complete": False,
    }


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Reads a manifest; None where there is none.

    Raises:
        ChangedError: The file is no manifest of ours.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ChangedError(f"{path} is no manifest of this command; choose another output.") from error
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith("hf_elmo vectors"):
        raise ChangedError(f"{path} is no manifest of this command; choose another output.")
    return content


def option_name(field: str) -> str:
    """A field as the command line calls it."""
    return field.replace("_", "-")


def check_same(
    old: dict[str, Any],
    new: dict[str, Any],
    output: str,
    anew: str = "--overwrite",
    name_of: Callable[[str], str] = option_name,
) -> None:
    """Refuses to go on with another model or other options.

    Args:
        old: The manifest that is there.
        new: That of the job that is to be done.
        output: What messages call the output.
        anew: What to give to start anew.
        name_of: What messages call an option.

    Raises:
        ChangedError: They differ; the message names what differs.
    """
    if old["job"] == new["job"]:
        return
    again = f"use the same, another output, or {anew} to start anew"
    if old["format"] != new["format"]:
        raise ChangedError(f"{output} was begun by another version of this package: {again}.")
    if old["model_fingerprint"] != new["model_fingerprint"]:
        raise ChangedError(f"{output} was begun with another model ({old['model']}): {again}.")
    options = {**dict.fromkeys(new["options"]), **old["options"]}
    changed = [
        f"{name_of(name)} was {value!r} and is now {new['options'].get(name)!r}"
        for name, value in options.items()
        if value != new["options"].get(name)
    ]
    raise ChangedError(f"{output} was begun with other options ({'; '.join(changed)}): {again}.")


__all__ = [
    "check_same",
    "digest",
    "model_fingerprint",
    "new_manifest",
    "read_manifest",
    "weights_fingerprint",
    "write_json",
]
