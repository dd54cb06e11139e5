"""What goes wrong while a corpus is embedded, each said in one clear sentence."""

from __future__ import annotations


class InputError(ValueError):
    """The input cannot be read, or a line of it cannot be embedded."""


class ChangedError(ValueError):
    """What is there was made from another model, another input or with other options."""


class OutputError(OSError):
    """The output cannot be written."""


def reason(error: Exception) -> str:
    """What an error says, in one line."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).partition("\n")[0].rstrip(".")
