"""The README.md of a converted folder, which is its card on the Hub."""

import re
from typing import Any

import jinja2
from huggingface_hub import ModelCardData

from hf_elmo._version import __version__

from .catalog import CatalogEntry
from .facts import FOLDER, load_facts, load_references
from .report import ConversionReport
from .seal import seal
from .usage import language_model_usage, usage

TEMPLATE = "README.md.jinja"

FROM_PYTORCH = ("elmoformanylangs", "allennlp-archive")
"""Formats that PyTorch wrote; in the others the forget gate's bias lacks the 1 that TensorFlow adds."""

UNSTATED_LICENCE = "not-stated-by-the-source"


def model_card(report: ConversionReport) -> str:
    """The README.md of a converted folder, with the seal that tells an untouched card from an edited one."""
    return seal(render_card(report, report.catalog_entry))


def render_card(report: ConversionReport, entry: CatalogEntry | None = None) -> str:
    """A card with its block of metadata.

    Args:
        report: What was converted and how close it is.
        entry: The catalog's record of the checkpoint; without it nothing is said about origin, text and licence.

    Raises:
        ConversionError: When the facts about a checkpoint of the catalog cannot be read.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    facts = None if entry is None else load_facts(entry)
    references = load_references()
    folder_name = report.output_dir.absolute().name
    return environment.get_template(TEMPLATE).render(
        card_data=card_data(entry).to_yaml(),
        report=report,
        from_tensorflow=report.format not in FROM_PYTORCH,
        entry=entry,
        facts=facts,
        stated={name: escape(value) for name, value in report.stated.items()},
        notes=[*report.notes, *(entry.notes if entry else ())],
        citations=[] if facts is None else [references[key] for key in facts.citations],
        title=folder_name if entry is None else entry.title,
        version=__version__,
        code=usage(".", "Some words"),
        remote_code=usage(".", "Some words", trust_remote_code=True),
        language_model_code=language_model_usage(".", "Some words"),
    )


def escape(value: str) -> str:
    """Text from somebody else's file for a cell of a Markdown table."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", value)


def card_data(entry: CatalogEntry | None) -> ModelCardData:
    """The metadata that the Hub reads.

    A licence that nobody stated is not invented: the Hub then shows `other` with a name that says so.
    """
    licence: dict[str, Any] = {}
    if entry is not None:
        known = entry.licence is not None
        licence = {"license": entry.licence} if known else {"license": "other", "license_name": UNSTATED_LICENCE}
    return ModelCardData(
        language=list(entry.languages) or None if entry is not None else None,
        library_name="transformers",
        pipeline_tag="feature-extraction",
        tags=["elmo", *([] if entry is None or entry.languages else ["biology", "protein"])],
        **licence,
    )
