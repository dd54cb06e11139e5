"""The command that shows what runs here and why."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from .main import app, friendly_errors


@app.command()
def info(
    model: Annotated[
        str | None, typer.Argument(help="Also what this model runs through: a folder, or a name.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what makes ELMo fast on this machine: which paths run, and why.

    Every fast path gives the numbers of the plain one to float rounding. HF_ELMO_DISABLE=all switches all of them off,
    HF_ELMO_DISABLE=packed_weights,word_cache those that take memory.

    **Examples**

    `hf-elmo info`

    `hf-elmo info elmo-original`
    """
    with friendly_errors(ValueError):
        from rich.console import Console
        from rich.table import Table

        from ..bundled import resolve_model
        from ..info import environment_facts, fast_path_facts, model_facts

        parts = {"This machine": environment_facts(), "Fast paths": fast_path_facts()}
        if model is not None:
            from ..modeling_elmo import ElmoModel

            parts[f"The model {model}"] = model_facts(ElmoModel.from_pretrained(resolve_model(model)))
        if as_json:
            typer.echo(json.dumps({title: [asdict(fact) for fact in facts] for title, facts in parts.items()}))
            return
        console = Console()
        for title, facts in parts.items():
            table = Table(title=title, show_header=False, title_justify="left", expand=False)
            for fact in facts:
                table.add_row(fact.name, fact.value, fact.reason)
            console.print(table)
