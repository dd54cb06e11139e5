"""What makes two runs the same one: the record in a run's folder, by which a command knows what it may go on with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoints import UNFINISHED, last_checkpoint

RECORD = "run.json"
EDGE = 1 << 20


def open_run(output: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Looks whether a folder holds this run already.

    Args:
        output: The folder.
        settings: All that the numbers of the run depend on, as JSON has it.

    Returns:
        The facts that `record_run` was given, or None where the folder is new or empty.

    Raises:
        ValueError: The folder holds another run, or something else.
    """
    path = output / RECORD
    if path.is_file():
        return check_same(output, json.loads(path.read_text(encoding="utf-8")), settings)
    if output.exists() and not output.is_dir():
        raise ValueError(f"The output {output} is a file; name a folder.")
    left = [entry.name for entry in output.iterdir() if entry.name != UNFINISHED] if output.is_dir() else []
    if left:
        raise ValueError(
            f"The output folder {output} holds {sorted(left)[0]} and no {RECORD}, so that it is no run to go on with;"
            " name a new folder."
        )
    return None


def check_same(output: Path, record: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a recorded run, if its settings are the given ones.

    Raises:
        ValueError: A setting differs; the message names each one.
    """
    wanted = json.loads(json.dumps(settings))
    held = record["settings"]
    different = [name for name in sorted({*wanted, *held}) if wanted.get(name) != held.get(name)]
    if different:
        changes = "; ".join(f"{name} is {told(wanted.get(name))}, was {told(held.get(name))}" for name in different)
        raise ValueError(
            f"The output folder {output} holds another run ({changes}). Give the same options to go on with that run,"
            " or another folder for a new one."
        )
    return dict(record["facts"])


def told(value: Any) -> str:
    """A setting in a message, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def record_run(output: Path, settings: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Writes the record, whole or not at all.

    Args:
        output: The folder of the run.
        settings: All that the numbers of the run depend on.
        facts: What was found out about the run's data and need not be found out again.
    """
    output.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"settings": settings, "facts": facts}, ensure_ascii=False, indent=2)
    write_whole(output / RECORD, f"{content}\n")


def write_whole(path: Path, text: str) -> None:
    """Writes a text file that appears complete or not at all."""
    aside = path.with_name(f".{path.name}.unfinished")
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def fingerprint(path: Path) -> dict[str, Any]:
    """Name, size and checksum of the first and last megabyte of a file: enough to tell another text."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(EDGE))
        file.seek(max(size - EDGE, 0))
        digest.update(file.read(EDGE))
    return {"name": path.name, "bytes": size, "sha256 of the edges": digest.hexdigest()[:16]}


__all__ = ["RECORD", "fingerprint", "last_checkpoint", "open_run", "record_run", "write_whole"]
