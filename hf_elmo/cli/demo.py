"""The command that shows ELMo at work."""

from pathlib import Path
from typing import Annotated

import typer

from .main import app, friendly_errors


@app.command()
def demo(
    output: Annotated[
        Path | None, typer.Argument(help="Where to keep what the demo writes; nowhere by default.", show_default=False)
    ] = None,
) -> None:
    """Look at an ambiguous word with the trained model of the package, offline and in less than a minute."""
    with friendly_errors(ValueError):
        from ..demo import run_demo

        run_demo(output)
