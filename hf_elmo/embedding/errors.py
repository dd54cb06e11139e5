"""What goes wrong while a corpus is embedded, each said in one clear sentence."""

from __future__ import annotations

import traceback

GUARD = 'A script has to call this under `if __name__ == "__main__":`, because each worker process imports the script.'


class SettingError(ValueError):
    """An option has a value that it cannot have, or does not go with another."""


class InputError(ValueError):
    """The input cannot be read, or a line of it cannot be embedded."""


class ChangedError(ValueError):
    """What is there was made from another model, another input or with other options."""


class OutputError(OSError):
    """The output cannot be written."""


class WorkerError(RuntimeError):
    """A process or machine that embeds cannot do its part.

    Args:
        message: One sentence.
        details: The traceback there, if that tells more.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message, details)
        self.details = details

    def __str__(self) -> str:
        return str(self.args[0])


# What is said to the user in its own words, also when it comes from another process.
SAID: tuple[type[Exception], ...] = (
    SettingError,
    InputError,
    ChangedError,
    OutputError,
    ValueError,
    MemoryError,
    WorkerError,
)


def told(error: Exception) -> Exception:
    """An error as it may travel from another process: one of `SAID`, with one sentence.

    What nobody expected becomes a `WorkerError` with the traceback as its details.
    """
    if isinstance(error, SAID) and not isinstance(error, UnicodeError):
        kind = next(known for known in SAID if isinstance(error, known))
        return kind(str(error))
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return WorkerError(f"A worker failed: {type(error).__name__}: {reason(error)}.", "".join(lines))


def reason(error: Exception) -> str:
    """What an error says, in one line."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).partition("\n")[0].rstrip(".")
