"""Reads the folders of NLPL, RusVectores and CLARIN: AllenNLP's files with a vocabulary and metadata beside them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import read_allennlp
from .checkpoint import SourceCheckpoint
from .read_allennlp import read_options

FORMAT = "nlpl"
METADATA_FILE = "meta.json"
VOCABULARIES = {"training_vocab.txt": "vocab.txt", "training_vocab.txt.gz": "vocab.txt.gz"}
"""Name in the converted folder, where vocab.txt would be the tokenizer's -> name in the source."""

LONGEST_FACT = 500

FACTS = (
    ("id", "Number in the repository"),
    ("handle", "Handle"),
    ("algorithm.name", "Algorithm"),
    ("algorithm.tool", "Tool"),
    ("algorithm.version", "Version of the tool"),
    ("algorithm.url", "Address of the tool"),
    ("corpus.description", "Corpus"),
    ("corpus.language", "Language"),
    ("corpus.tokens", "Tokens in the corpus"),
    ("corpus.url", "Address of the corpus"),
    ("corpus.public", "Corpus is public"),
    ("corpus.lemmatized", "Lemmatized"),
    ("corpus.case preserved", "Case preserved"),
    ("corpus.NER", "Named entities marked"),
    ("corpus.stop words removal", "Stop words removed"),
    ("corpus.tagger", "Tagger"),
    ("corpus.tagset", "Tag set"),
    ("corpus.tool", "Tool for the corpus"),
    ("creators.name", "Creator"),
    ("vocabulary size", "Size of the vocabulary"),
    ("iterations", "Iterations"),
)
"""Path in the metadata, lists on the way included, and what it is called in a README."""


def recognises(source: Path) -> bool:
    """Whether a path is such a folder."""
    return source.is_dir() and (source / METADATA_FILE).is_file() and read_allennlp.recognises(source)


def read(source: Path, options_file: Path | None = None) -> SourceCheckpoint:
    """Reads the options and the index of the tensors, and what the metadata say.

    Args:
        source: The folder.
        options_file: The options file; looked for beside the weights when it is `None`.

    Raises:
        ConversionError: When a file is missing, damaged, ambiguous or points outside itself.
    """
    checkpoint = read_allennlp.read(source, options_file)
    folder = checkpoint.weights_file.parent
    kept_files = {kept: folder / name for kept, name in VOCABULARIES.items() if (folder / name).is_file()}
    notes = tuple(f"The vocabulary of the training text is kept as {name}; vectors need none." for name in kept_files)
    metadata = folder / METADATA_FILE
    stated = dict(find_facts(read_options(metadata))) if metadata.is_file() else {}
    return replace(
        checkpoint,
        format=FORMAT,
        data_files=(metadata,) if metadata.is_file() else (),
        kept_files=kept_files,
        stated=stated,
        notes=notes,
    )


def find_facts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the metadata state, in words; what they leave open is left out."""
    for path, title in FACTS:
        values = [metadata]
        for key in path.split("."):
            values = [value[key] for value in values if isinstance(value, Mapping) and key in value]
            values = [item for value in values for item in (value if isinstance(value, list) else [value])]
        words = [in_words(value) for value in values if isinstance(value, str | int | float) and value != ""]
        if words:
            yield title, "; ".join(words)[:LONGEST_FACT]


def in_words(value: str | int | float) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else " ".join(str(value).split())
