"""The command line: `hf-elmo convert | export | demo`. Thin: each command calls one function and prints its report."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from ._version import __version__
from .conversion.errors import ConversionError

app = typer.Typer(
    help="ELMo for the Hugging Face ecosystem: convert original checkpoints, and export them back.",
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
    """ELMo for the Hugging Face ecosystem: convert original checkpoints, and export them back."""


@contextlib.contextmanager
def friendly_errors(*others: type[Exception]) -> Iterator[None]:
    """Errors as one message on stderr without a traceback; signals to end let cleaning up finish first.

    Args:
        *others: What a command raises for its user besides `ConversionError` and `OSError`.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)
    try:
        yield
    except (ConversionError, OSError, *others) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.echo("Interrupted; nothing was written.", err=True)
        raise typer.Exit(130) from None


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(help="The original weights file, or the folder with it.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Argument(help="The folder to write; it must not exist or be empty.", show_default=False)
    ],
    options: Annotated[
        Path | None,
        typer.Option(help="The original options file; looked for beside the weights.", show_default=False),
    ] = None,
    format: Annotated[str, typer.Option(help="The format of SOURCE: auto or allennlp.")] = "auto",
    word_splitter: Annotated[
        str,
        typer.Option(
            help="How the tokenizer finds words in text: whitespace (text is tokenized already), "
            "treebank (English, as in ELMo's training text) or punctuation (other languages)."
        ),
    ] = "whitespace",
) -> None:
    """Convert an original checkpoint into a folder for transformers, and compare the two.

    SOURCE is an HDF5 file of AllenNLP or bilm-tf with its options.json beside it. OUTPUT becomes a complete folder:
    configuration, weights, tokenizer, code for loading without this package, README. It appears only when the model
    in it has been loaded again and gives the original's numbers.

    **Examples**

    `hf-elmo convert downloads/elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5 elmo-original --word-splitter treebank`

    `hf-elmo convert weights.hdf5 elmo-mine --options other/options.json`

    **Then, in Python**

    `import hf_elmo; from transformers import AutoModel; model = AutoModel.from_pretrained("elmo-original")`
    """
    with friendly_errors():
        from .conversion import convert_checkpoint

        report = convert_checkpoint(source, output, options, format, word_splitter, progress=True)
        typer.echo(report.summary())


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="A folder with an ELMo model, with or without a head.")],
    output: Annotated[
        Path, typer.Argument(help="The folder to write; it must not exist or be empty.", show_default=False)
    ],
) -> None:
    """Write a model back as options.json and weights.hdf5, for AllenNLP and bilm-tf.

    **Example**

    `hf-elmo export elmo-original exported`
    """
    with friendly_errors():
        from .conversion import export_checkpoint

        report = export_checkpoint(folder, output, progress=True)
        typer.echo(report.summary())


@app.command()
def demo(
    output: Annotated[
        Path | None, typer.Argument(help="Where to keep what the demo writes; nowhere by default.", show_default=False)
    ] = None,
) -> None:
    """Make a small untrained checkpoint, convert it and use it, offline and in less than a minute."""
    with friendly_errors(ValueError):
        from .demo import run_demo

        run_demo(output)


if __name__ == "__main__":
    app()
