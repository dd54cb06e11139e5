"""What a person wrote about a published checkpoint, one file each in `model_cards/`."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .catalog import CatalogEntry
from .errors import ConversionError

# Beside this package both in the repository and where it is installed.
FOLDER = Path(__file__).resolve().parent.parent / "model_cards"
REFERENCES = "references.bib"


@dataclass(frozen=True)
class Facts:
    """The prose of a card. What no source states is `None` or empty.

    Args:
        description: What the model is.
        training_text: What it was trained on.
        tokenization: How that text was cut into words.
        limits: Limits and biases, as the sources state them.
        citations: Keys in `references.bib`.
        sources: Where these facts are from.
    """

    description: str
    training_text: str | None = None
    tokenization: str | None = None
    limits: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def load_facts(entry: CatalogEntry, folder: Path = FOLDER) -> Facts:
    """The facts of a checkpoint: those it shares with others, then its own, which replace texts and add to lists.

    Raises:
        ConversionError: When there is no file, or one with unknown or unfit fields.
    """
    names = [name for name in (entry.facts, entry.name) if name]
    paths = [path for path in (folder / f"{name}.yaml" for name in dict.fromkeys(names)) if path.is_file()]
    if not paths:
        raise ConversionError(f"There are no facts about {entry.name}: {folder / entry.name}.yaml does not exist.")
    fields: dict[str, Any] = {}
    for path in paths:
        for name, value in read_fields(path).items():
            fields[name] = fields.get(name, ()) + value if isinstance(value, tuple) else value
    if "description" not in fields:
        raise ConversionError(f"{paths[-1]} has no description.")
    return Facts(**fields)


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of one file."""
    lists = {field.name for field in dataclasses.fields(Facts) if field.default == ()}
    texts = {field.name for field in dataclasses.fields(Facts)} - lists
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConversionError(f"The facts in {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path} must hold the fields {', '.join(sorted(lists | texts))}.")
    problems = [f"{name} is no field" for name in content if name not in lists | texts]
    problems += [f"{name} must be a text" for name in texts & set(content) if not isinstance(content[name], str)]
    problems += [
        f"{name} must be a list of texts"
        for name in lists & set(content)
        if not isinstance(content[name], list) or not all(isinstance(item, str) for item in content[name])
    ]
    if problems:
        raise ConversionError(f"The facts in {path} cannot be used:", sorted(problems))
    return {name: tuple(value) if name in lists else value.strip() for name, value in content.items()}


def load_references(folder: Path = FOLDER) -> dict[str, str]:
    """Key -> BibTeX entry as it stands in `references.bib`; entries are separated by blank lines."""
    text = (folder / REFERENCES).read_text(encoding="utf-8")
    return {match[1]: match[0].strip() for match in re.finditer(r"@\w+\{([^,\s]+),.*?\n\}", text, re.DOTALL)}
