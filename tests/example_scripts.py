"""The scripts of `examples/`, which are no package, as modules."""

from __future__ import annotations

import gzip
import importlib
import lzma
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[1] / "examples"


def import_example(name: str) -> ModuleType:
    """Imports a script; the scripts find each other as when they are run."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def write_packed(path: Path, content: str) -> Path:
    """A file of text, packed as its name says."""
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content.encode()))
    return path
