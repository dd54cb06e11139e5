"""The trained models that come with the package, by name."""

from __future__ import annotations

import os
from pathlib import Path

MODELS = Path(__file__).parent / "models"


def bundled_models() -> list[str]:
    """The names of the models in the package."""
    return sorted(path.parent.name for path in MODELS.glob("*/config.json"))


def bundled_model(name: str) -> Path:
    """The folder of a model that comes with the package, for `from_pretrained`.

    Args:
        name: Such as `elmo-tiny-english`.

    Raises:
        ValueError: There is no such model.
    """
    if name not in bundled_models():
        raise ValueError(f"No model {name!r} comes with the package; there is {', '.join(bundled_models())}.")
    return MODELS / name


def resolve_model(name_or_path: str | os.PathLike[str]) -> str:
    """What `from_pretrained` takes for a name or a path that a person gives.

    A folder that is there comes first, then a model of the package; anything else is left as it is: a repository of
    the Hub.
    """
    name = os.fspath(name_or_path)
    if not Path(name).exists() and name in bundled_models():
        return str(bundled_model(name))
    return name


__all__ = ["bundled_model", "bundled_models", "resolve_model"]
