"""The application `hf-elmo`, and what its commands share."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, NoReturn

import typer

from .._version import __version__
from ..conversion.errors import ConversionError

app = typer.Typer(
    help="ELMo for the Hugging Face ecosystem: convert original checkpoints, train, and use them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    """Prints the version and ends."""
    if wanted:
        typer.echo(f"hf-elmo {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """ELMo for the Hugging Face ecosystem: convert original checkpoints, train, and use them."""


@contextlib.contextmanager
def friendly_errors(
    *others: type[Exception], interrupted: str = "Interrupted; nothing was written."
) -> Iterator[None]:
    """Errors as one message on stderr without a traceback; signals to end let cleaning up finish first.

    Args:
        *others: What a command raises for its user besides `ConversionError` and `OSError`.
        interrupted: What to say after Ctrl-C.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # `nohup` has hang-ups ignored
            signal.signal(number, stop)
    expected: tuple[type[Exception], ...] = (ConversionError, OSError, *others)
    try:
        yield
    except expected as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.echo(interrupted, err=True)
        raise typer.Exit(130) from None
