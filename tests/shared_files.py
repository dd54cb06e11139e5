"""Where the fixtures and data sets that are not part of the repository lie, when they are there."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("HF_ELMO_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def shared_path(*parts: str) -> Path:
    """The path below the shared folder; skips the test, saying so, where the folder is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(parts)} in the shared folder, absent here (set HF_ELMO_SHARED)")
    return path


def fixture_path(*parts: str) -> Path:
    """A path in `shared/fixtures`."""
    return shared_path("fixtures", *parts)


def data_path(*parts: str) -> Path:
    """A path in `shared/data`."""
    return shared_path("data", *parts)
