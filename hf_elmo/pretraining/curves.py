"""Learning curves: the perplexities that a trainer logged, as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..embedding.plots import check_plot_output, save_figure
from .checkpoints import TRAINER_STATE, last_checkpoint

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")


def read_log(run: Path) -> list[dict[str, Any]]:
    """What the trainer logged in a run, finished or not.

    Args:
        run: The folder of a run, of a trained model, or of a checkpoint.

    Raises:
        ValueError: There is no log in it.
    """
    checkpoint = last_checkpoint(run) if run.is_dir() else None
    for folder in (run, checkpoint):
        if folder is not None and (folder / TRAINER_STATE).is_file():
            return json.loads((folder / TRAINER_STATE).read_text(encoding="utf-8"))["log_history"]
    raise ValueError(f"{run} holds no {TRAINER_STATE}: it is no folder of a training run.")


def points(log: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """The words read, in millions, and the values of one entry; entries without words take those of the entry before.

    Args:
        log: What `read_log` gave.
        name: Such as `perplexity` or `eval_perplexity`.
    """
    words, values = [], []
    seen = 0.0
    for entry in log:
        seen = entry.get("tokens", seen)
        if name in entry:
            words.append(seen / 1e6)
            values.append(entry[name])
    return words, values


def plot_training(runs: Sequence[Path], output: Path, names: Sequence[str] | None = None) -> None:
    """Draws perplexity over the words read: a thin line for the training text, dots for the validation text.

    Args:
        runs: Folders of runs, finished or not.
        output: A .png or .svg file.
        names: What to call them; by default their folders' names.

    Raises:
        ValueError: A folder holds no log, or the output cannot be drawn.
    """
    check_plot_output(output)
    logs = [read_log(run) for run in runs]
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, (log, name) in enumerate(zip(logs, names or [run.name for run in runs], strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        for entry, label in (("perplexity", "training"), ("sampled_perplexity", "training, among drawn words")):
            if points(log, entry)[0]:
                axes.plot(*points(log, entry), color=colour, linewidth=0.8, alpha=0.6, label=f"{name}, {label}")
        valid = points(log, "eval_perplexity")
        if valid[0]:
            axes.plot(*valid, color=colour, marker="o", markersize=3.5, linewidth=1.2, label=f"{name}, validation")
            axes.annotate(f"{valid[1][-1]:.1f}", (valid[0][-1], valid[1][-1]), (4, 4), textcoords="offset points")
    axes.margins(x=0.08)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([tick for tick in (20, 30, 50, 100, 200, 300, 500, 1000, 3000) if in_view(tick, axes.get_ylim())])
    axes.set_xlabel("words read, millions (each direction)")
    axes.set_ylabel("perplexity")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, output)


def in_view(value: float, limits: tuple[float, float]) -> bool:
    """Whether an axis with these limits shows a value."""
    return limits[0] <= value <= limits[1]
