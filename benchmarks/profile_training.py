"""Where the time of a training step goes: `python benchmarks/profile_training.py --help`."""

import os
from pathlib import Path
from typing import Annotated

import typer
from bench import print_shares
from checkpoints import make_checkpoint
from run import SENTENCES, WORK
from sentences import Text
from torch.profiler import ProfilerActivity, profile
from worker_hf_elmo import HfElmo

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

SENTENCES_A_STEP, WORDS_A_SENTENCE = 32, 20
PRODUCTS, PACKING, COPIES, ARITHMETIC = "matrix products", "packing of weights", "copies", "arithmetic and the rest"
PYTHON = "Python between operators"
PARTS = (PRODUCTS, PACKING, COPIES, ARITHMETIC, PYTHON)
OPERATORS = {
    "aten::mm": PRODUCTS,
    "aten::addmm": PRODUCTS,
    "mkldnn::_linear_pointwise": PRODUCTS,
    "mkldnn::_reorder_linear_weight": PACKING,
    "aten::copy_": COPIES,
}


@app.command()
def main(
    size: Annotated[str, typer.Option(help="Weights: original, medium, small or tiny.")] = "original",
    steps: Annotated[int, typer.Option(min=1, help="Steps, after one that is not profiled.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default, all cores.")] = None,
    sentences: Annotated[Path, typer.Option(help="The text: a paragraph a line, words apart.")] = SENTENCES,
    work: Annotated[Path, typer.Option(help="Checkpoints are kept here.")] = WORK,
) -> None:
    """Prints the shares of the parts of a step of full fine-tuning without the optimizer, 32 x 20 words, on the CPU.

    Operators of Python's own backward passes count as Python where they call no other operator.
    """
    try:
        found = Text(sentences).stretches(WORDS_A_SENTENCE)[: SENTENCES_A_STEP * (2 * steps + 1)]
    except ValueError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    batches = [found[start : start + SENTENCES_A_STEP] for start in range(0, len(found), SENTENCES_A_STEP)]
    side = HfElmo(str(make_checkpoint(work, size).converted), threads or os.cpu_count() or 1, training=True)
    side.do_train(batches[0])
    undisturbed = sum(side.do_train(batch)["seconds"] for batch in batches[1 : steps + 1]) / steps
    seconds = dict.fromkeys(PARTS, 0.0)
    for batch in batches[steps + 1 :]:
        directions = side.directions(batch)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            whole = side.train_step(batch, directions)["seconds"]
        events = [event for event in profiled.events() if "::" in event.name and "FusedWalk" not in event.name]
        for event in events:
            seconds[OPERATORS.get(event.name, ARITHMETIC)] += event.self_cpu_time_total / 1e6
        seconds[PYTHON] += max(0.0, whole - sum(event.self_cpu_time_total for event in events) / 1e6)
    print(f"{size} size, float32, {SENTENCES_A_STEP} x {WORDS_A_SENTENCE} words a step")
    print_shares(seconds, "ms a step", 1e3 / steps)
    print(f"\nOther steps without the profiler: {1e3 * undisturbed:.0f} ms")


if __name__ == "__main__":
    app()
