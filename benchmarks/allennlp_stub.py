"""Import this before `allennlp.modules.elmo`: stands in for packages that AllenNLP imports and its ELMo never uses.

AllenNLP 2.10.1 asks for releases that no longer install together. A package named here that is absent becomes an
empty one, any attribute of which is an empty class; one that is installed is used as it is.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

UNUSED = {
    "_jsonnet",
    "base58",
    "boto3",
    "botocore",
    "cached_path",
    "checklist",
    "conllu",
    "datasets",
    "dill",
    "fairscale",
    "filelock",
    "google",
    "jsonnet",
    "lmdb",
    "more_itertools",
    "nltk",
    "rich",
    "sklearn",
    "spacy",
    "sqlitedict",
    "tensorboardX",
    "termcolor",
    "torchvision",
    "traitlets",
    "wandb",
    "xxhash",
}


class EmptyClass:
    """Takes any arguments and any subscript, and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> type:
        return cls


class EmptyPackage(ModuleType):
    """Every attribute is an empty class of its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = type(name, (EmptyClass,), {})
        setattr(self, name, attribute)
        return attribute


class EmptyPackages(MetaPathFinder, Loader):
    """Finds the packages in `UNUSED`, after everything else has looked for them."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """A package that is empty, or None for a name that is not in the list."""
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in UNUSED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The empty package."""
        return EmptyPackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run; `cached_path`, which ELMo calls on the files it reads, leaves local paths as they are."""
        if module.__name__ == "cached_path":
            vars(module)["cached_path"] = lambda path, **_: path


sys.meta_path.append(EmptyPackages())
