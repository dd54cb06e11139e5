"""Where the time of a forward goes: `python benchmarks/profile_forward.py --help`."""

import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from bench import print_shares
from checkpoints import make_checkpoint
from run import SENTENCES, WORK
from sentences import Sentence, Text, batches, count_words
from torch.profiler import ProfilerActivity, profile, record_function
from worker_hf_elmo import HfElmo

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

TOKENIZER, TOKEN, INPUT, RECURRENT = "tokenizer", "token layer", "input products", "recurrent products"
PROJECTION, GATES, OTHER, REST = "projections", "gate arithmetic", "moving of vectors, checks", "mix and rest"
PYTHON = "Python between operators"
PARTS = (TOKENIZER, TOKEN, INPUT, RECURRENT, PROJECTION, GATES, OTHER, REST, PYTHON)

TOKEN_RANGE, LSTM_RANGE = "hf_elmo: token layer", "hf_elmo: layers"
# Name of an operator -> where its left and right factors are among its inputs, and the dimension of the outputs.
PRODUCTS = {
    "mkldnn::_linear_pointwise": (0, 1, 0),
    "aten::linear": (0, 1, 0),
    "aten::mm": (0, 1, 1),
    "aten::addmm": (1, 2, 1),
    "aten::_addmm_activation": (1, 2, 1),
}
ARITHMETIC = (
    "sigmoid",
    "tanh",
    "mul",
    "add",
    "clamp",
    "hardtanh",
    "to_mkldnn",
    "to_dense",
    "mkldnn",
    "lerp",
    "sub",
    "neg",
    "exp",
)


def in_range(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its operators marked as parts of a range."""

    @wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return function(*args, **kwargs)

    return marked


def ancestors(event: Any) -> list[Any]:
    """An operator and those that called it, from inside to outside."""
    found = []
    while event is not None:
        found.append(event)
        event = event.cpu_parent
    return found


def part_of(event: Any, config: Any, batch_size: int) -> str:
    """Which of `PARTS` an operator belongs to.

    Products of the gates are told apart by their rows: a step has at most one for each sentence of the batch.
    """
    line = ancestors(event)
    names = [step.name for step in line]
    if TOKEN_RANGE in names:
        return TOKEN
    if LSTM_RANGE not in names:
        return REST
    for step in line:
        if step.name in PRODUCTS:
            left, right, side = PRODUCTS[step.name]
            (rows, inputs), outputs = flat(step.input_shapes[left]), step.input_shapes[right][side]
            if (inputs, outputs) == (config.cell_size, config.projection_size):
                return PROJECTION
            return RECURRENT if rows <= batch_size else INPUT
    if any(word in step.name for step in line if step.name.startswith("aten::") for word in ARITHMETIC):
        return GATES
    return OTHER


def flat(shape: list[int]) -> tuple[int, int]:
    """Rows and columns of a factor."""
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows, shape[-1]


def profile_forwards(side: HfElmo, parts: list[list[Sentence]]) -> dict[str, float]:
    """Seconds of each part over all batches."""
    seconds = dict.fromkeys(PARTS, 0.0)
    model = side.model
    model._embed = in_range(TOKEN_RANGE, model._embed)
    model.encoder.forward = in_range(LSTM_RANGE, model.encoder.forward)
    for batch in parts:
        start = time.perf_counter()
        inputs = side.tokenize(batch)
        seconds[TOKENIZER] += time.perf_counter() - start
        with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            start = time.perf_counter()
            model(**inputs)
            whole = time.perf_counter() - start
        operators = [event for event in profiled.events() if event.name not in (TOKEN_RANGE, LSTM_RANGE)]
        for event in operators:
            seconds[part_of(event, model.config, len(batch))] += event.self_cpu_time_total / 1e6
        seconds[PYTHON] += max(0.0, whole - sum(event.self_cpu_time_total for event in operators) / 1e6)
    return seconds


@app.command()
def main(
    size: Annotated[str, typer.Option(help="Weights: original, medium, small or tiny.")] = "original",
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    batch_size: Annotated[int, typer.Option(min=1, help="Sentences in a batch.")] = 32,
    count: Annotated[int, typer.Option(min=1, help="Sentences in all.")] = 128,
    in_order: Annotated[
        bool, typer.Option("--file-order/--sorted", help="In file order, or sorted by length.")
    ] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default, all cores.")] = None,
    sentences: Annotated[Path, typer.Option(help="The text: a paragraph a line, words apart.")] = SENTENCES,
    work: Annotated[Path, typer.Option(help="Checkpoints are kept here.")] = WORK,
) -> None:
    """Prints the shares of the parts of a forward, from words to vectors, on the CPU.

    The profiler itself costs time, most of it between operators, so that the last share is too large where sizes are
    small; the line below the table has the time without it. Words that an earlier batch had may be in the cache.
    """
    try:
        text = Text(sentences)
        found = text.short_lines(2 * count + batch_size)
    except ValueError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    side = HfElmo(str(make_checkpoint(work, size).converted), threads or os.cpu_count() or 1, precision=precision)
    side.embed(found[2 * count :])
    # Other sentences for each: words that were seen before may be in a cache.
    chosen, others = (
        part if in_order else sorted(part, key=len) for part in (found[:count], found[count : 2 * count])
    )
    undisturbed = side.do_time(others, batch_size)["seconds"] / count_words(others)
    seconds = profile_forwards(side, batches(chosen, batch_size))
    words = count_words(chosen)
    order = "in file order" if in_order else "sorted by length"
    print(f"{size} size, {precision}, {words:,} words in batches of {batch_size} {order}")
    print_shares(seconds, "ms per 1,000 words", 1e6 / words)
    print(f"\nOther sentences without the profiler: {1e6 * undisturbed:.0f} ms per 1,000 words")


if __name__ == "__main__":
    app()
