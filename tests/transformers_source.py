"""transformers' own common checks, which its source distribution has and its wheel has not."""

import importlib
import os
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import transformers

from tests.shared_files import leave_out

# Our tests are the package `tests` too: theirs go by another name.
PACKAGE = "transformers_tests"

# What its test files import from folders that the source distribution leaves out: two mixins, which are empty here,
# and settings that every configuration takes.
LEFT_OUT: dict[str, dict[str, Any]] = {
    "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
    "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
    "utils.test_configuration_utils": {
        "config_common_kwargs": {
            "return_dict": False,
            "output_hidden_states": True,
            "dtype": "float16",
            "architectures": ["Any"],
            "id2label": {0: "label"},
            "label2id": {"label": 0},
            "problem_type": "regression",
        }
    },
}


def transformers_tests(module_name: str) -> ModuleType:
    """Imports a module of transformers' tests folder, such as `test_tokenization_common`.

    The folder is that of `HF_ELMO_TRANSFORMERS_SOURCE` if this is set, else of the source distribution of the
    installed version, fetched once into the user's cache; the calling module is skipped, saying so, where neither is
    to be had.
    """
    if PACKAGE not in sys.modules:
        folder = find_tests_folder()
        if folder is None:
            leave_out(
                f"needs the source distribution of transformers {transformers.__version__}, which pip could not fetch"
                " (set HF_ELMO_TRANSFORMERS_SOURCE to its folder)",
                whole_module=True,
            )
        add_package(PACKAGE, [str(folder)])
        for name, contents in LEFT_OUT.items():
            parent, module = name.split(".")
            if not (folder / parent / f"{module}.py").is_file():
                add_package(f"{PACKAGE}.{parent}", [])
                vars(add_package(f"{PACKAGE}.{name}", [])).update(contents)
    # They import transformers from the folder of its sources, which may be absent; the installed one is the same.
    with patch("transformers.utils.direct_transformers_import", lambda *_: transformers):
        return importlib.import_module(f"{PACKAGE}.{module_name}")


def add_package(name: str, folders: list[str]) -> ModuleType:
    """Makes a package of folders that need no `__init__.py`."""
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = folders
    sys.modules[name] = module_from_spec(spec)
    return sys.modules[name]


@cache
def find_tests_folder() -> Path | None:
    """The tests folder of transformers' sources, fetched if need be; None where that fails."""
    given = os.environ.get("HF_ELMO_TRANSFORMERS_SOURCE")
    if given:
        return Path(given) / "tests"
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    cached = home / "hf_elmo_tests" / f"transformers-{transformers.__version__}"
    if not cached.is_dir():
        try:
            fetch_tests(cached)
        except (OSError, subprocess.SubprocessError, tarfile.TarError):
            return None
    return cached / "tests"


def fetch_tests(target: Path) -> None:
    """Fetches the source distribution with pip and keeps its tests; `target` appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    requirement = f"transformers=={transformers.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers"]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        subprocess.run([*command, "--dest", folder, requirement], check=True, timeout=600, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("transformers-*.tar.gz")
        with tarfile.open(archive) as sources:
            members = [member for member in sources.getmembers() if "/tests/" in member.name]
            sources.extractall(folder, members, filter="data")
        (extracted,) = (path for path in Path(folder).iterdir() if path.is_dir())
        try:
            extracted.rename(target)
        except OSError:
            # Another process was faster.
            if not target.is_dir():
                raise
