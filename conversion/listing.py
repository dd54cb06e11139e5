"""The catalog for people to read: a table of it, and one record in full."""

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .catalog import CatalogEntry
from .facts import load_facts

UNKNOWN = "not stated by the source"
ABSENT = {"urls": "no direct address known; see the page", "sizes": "not recorded here; read from the files"}
"""What is said of a field that the catalog leaves out though a source may state it."""

WIDE = 130
"""Columns of a terminal that show every column of the table without breaking lines."""

UNBROKEN = 10_000
"""Columns of a pipe or a file, where no line is cut."""


def open_console() -> Console:
    """The standard output; only a terminal, or COLUMNS, has a width to keep to."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=UNBROKEN)


def print_table(entries: Iterable[CatalogEntry]) -> None:
    """Prints a line for each checkpoint; a narrow terminal leaves out what the record says anyway."""
    console = open_console()
    entries = list(entries)
    columns: dict[str, Callable[[CatalogEntry], str]] = {
        "name": lambda entry: entry.name,
        "languages": lambda entry: " ".join(entry.languages) or "none",
        "what": lambda entry: escape(entry.title),
        "licence": lambda entry: entry.licence or "not stated",
        "format": lambda entry: entry.format,
        "files": lambda entry: "download" if entry.urls else "by hand",
    }
    shown = list(columns)[: None if console.width >= WIDE else 3]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        # A name is there to be typed again, so that it is never cut.
        widest = max(map(len, [column, *map(columns[column], entries)])) if column != "what" else None
        table.add_column(column, no_wrap=True, min_width=widest)
    for entry in entries:
        table.add_row(*(columns[column](entry) for column in shown))
    console.print(table)


def print_record(entry: CatalogEntry) -> None:
    """Prints everything that is known about a checkpoint, and what is not."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for field, value in record(entry).items():
        if field != "notes" or value:
            words = in_words(value) if value else ABSENT.get(field, UNKNOWN)
            table.add_row(field.replace("_", " "), escape(words))
    open_console().print(table)


def record(entry: CatalogEntry) -> dict[str, Any]:
    """A record with the facts of its card, for JSON; what is unknown is `None` or empty."""
    fields = dataclasses.asdict(entry) | dataclasses.asdict(load_facts(entry))
    del fields["facts"]
    fields["figures"] = dict(entry.figures)
    return fields


def in_words(value: Any) -> str:
    """A value of a record in words."""
    if isinstance(value, dict):
        return "\n".join(f"{key.replace('_', ' ')}: {in_words(item)}" for key, item in value.items()) or UNKNOWN
    if isinstance(value, (list, tuple)):
        return "\n".join(map(in_words, value)) or UNKNOWN
    return UNKNOWN if value is None else str(value)
