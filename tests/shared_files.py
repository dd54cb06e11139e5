"""Where the fixtures and data sets that are not part of the repository lie, when they are there."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

SHARED = Path(os.environ.get("HF_ELMO_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def shared_path(*parts: str) -> Path:
    """The path below the shared folder; skips the test, saying so, where the folder is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        leave_out(f"needs {'/'.join(parts)} in the shared folder, absent here (HF_ELMO_SHARED names the folder)")
    return path


def leave_out(reason: str, whole_module: bool = False) -> NoReturn:
    """Skips the test or its module, saying why; fails where HF_ELMO_REQUIRE_ALL says that nothing may be left out."""
    if os.environ.get("HF_ELMO_REQUIRE_ALL"):
        pytest.fail(f"HF_ELMO_REQUIRE_ALL is set, but this test {reason}")
    pytest.skip(reason, allow_module_level=whole_module)


def fixture_path(*parts: str) -> Path:
    """A path in `shared/fixtures`."""
    return shared_path("fixtures", *parts)


def data_path(*parts: str) -> Path:
    """A path in `shared/data`."""
    return shared_path("data", *parts)
