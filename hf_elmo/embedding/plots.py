"""Plots: a word in context in two dimensions, layer by layer; and the weights of layers (figure 2 of the paper)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from .shards import written_aside

FORMATS = (".png", ".svg")
LISTED = 24


def check_plot_output(output: str | Path) -> None:
    """Refuses, before any work, what cannot be drawn.

    Raises:
        ValueError: The output is neither PNG nor SVG, or matplotlib is missing.
    """
    if Path(output).suffix.lower() not in FORMATS:
        raise ValueError(f"{output}: a plot is written as .png or .svg.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError("Plots need matplotlib: pip install 'hf-elmo[plot]'") from error


def layer_names(count: int) -> list[str]:
    """What the L + 1 layers are called."""
    return ["token layer", *(f"biLM layer {layer}" for layer in range(1, count))]


def two_dimensions(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """The two directions in which vectors (n, dim) differ most.

    Returns:
        Coordinates (n, 2), and the part of the variance that they show; the signs are fixed, so that a plot does not
        turn over.
    """
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(axis=0)
    total = float((centred**2).sum())
    # Equal vectors differ by nothing but rounding, which is not to be enlarged.
    if total <= 1e-12 * max(1.0, float((vectors.astype(np.float64) ** 2).sum())):
        return np.zeros((len(vectors), 2)), 1.0
    left, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    coordinates = np.zeros((len(vectors), 2))
    kept = min(2, len(sizes))
    coordinates[:, :kept] = (left * sizes * signs)[:, :kept]
    return coordinates, float((sizes[:2] ** 2).sum()) / total


def in_context(words: Sequence[str], position: int, around: int = 8) -> str:
    """A word with its neighbours, itself in brackets."""
    before, after = words[max(0, position - around) : position], words[position + 1 : position + 1 + around]
    parts = ["…"] * (position > around) + list(before) + [f"[{words[position]}]"] + list(after)
    return " ".join(parts + ["…"] * (position + 1 + around < len(words)))


def plot_word(
    vectors: np.ndarray, contexts: Sequence[str], word: str, output: str | Path, names: Sequence[str] | None = None
) -> None:
    """Draws the occurrences of a word, one panel a layer.

    A colour is one occurrence in every panel, by its place in the top layer; so what has one colour in the top layer
    can be followed down to the token layer, which knows no context and has all of them in one point.

    Args:
        vectors: Shape (occurrences, layers, dim).
        contexts: A short text for each occurrence.
        word: The word.
        output: A .png or .svg file.
        names: What the layers are called.

    Raises:
        ValueError: There are fewer than three occurrences, or the output cannot be drawn.
    """
    check_plot_output(output)
    if len(vectors) < 3:
        raise ValueError(f"The word {word!r} occurs {len(vectors)} times: a plot needs three occurrences.")
    from matplotlib.figure import Figure

    layers = vectors.shape[1]
    projections = [two_dimensions(vectors[:, layer]) for layer in range(layers)]
    order = projections[-1][0][:, 0].argsort(kind="stable")
    colours = np.empty(len(vectors))
    colours[order] = np.linspace(0, 1, len(vectors))
    figure = Figure(figsize=(3.6 * layers, 3.9 + 0.19 * min(len(contexts), LISTED)), layout="constrained")
    panels, below = cast(Any, figure).subfigures(2, 1, height_ratios=[3.9, 0.3 + 0.19 * min(len(contexts), LISTED)])
    axes: Any = panels.subplots(1, layers, squeeze=False)[0]
    for layer, (axis, (points, shown)) in enumerate(zip(axes, projections, strict=True)):
        axis.scatter(points[:, 0], points[:, 1], c=colours, cmap="turbo", s=36, alpha=0.8, linewidths=0)
        if points.any():
            for number, point in enumerate(points[:LISTED], start=1):
                axis.annotate(str(number), point, textcoords="offset points", xytext=(4, 3), fontsize=7)
        shares = f"{shown:.0%} of the variance" if points.any() else "all in one point"
        axis.set_title(f"{(names or layer_names(layers))[layer]} ({shares})", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    panels.suptitle(f"“{word}” in {len(vectors)} contexts", fontsize=11, parse_math=False)
    _list_contexts(below, contexts, colours)
    save_figure(figure, output)


def _list_contexts(figure: Any, contexts: Sequence[str], colours: np.ndarray) -> None:
    from matplotlib import colormaps

    axis = figure.subplots()
    axis.axis("off")
    # In the order of the colours, so that like contexts stand together.
    listed = sorted(range(min(len(contexts), LISTED)), key=lambda number: colours[number])
    for row, number in enumerate(listed):
        height = 1 - (row + 0.5) / len(listed)
        colour = colormaps["turbo"](colours[number])
        axis.plot([0.01], [height], "o", color=colour, markersize=5, transform=axis.transAxes)
        text = {"fontsize": 8, "va": "center", "transform": axis.transAxes, "parse_math": False}
        axis.text(0.03, height, f"{number + 1}  {contexts[number]}", **text)
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)


def plot_layer_weights(
    weights: Sequence[np.ndarray],
    models: Sequence[str],
    output: str | Path,
    gammas: Sequence[np.ndarray] | None = None,
) -> None:
    """Draws the weights that mixes have learned, as figure 2 of Peters et al. 2018.

    A block for each representation (of two, the input and the output of a task model), a row for each layer, the top
    one above, and a column for each model. Weights below the mean are hatched with lines, weights above twice the mean
    with dots: one third and two thirds for three layers, as in the paper.

    Args:
        weights: For each model, shape (representations, layers), each row with the sum 1.
        models: Their names.
        output: A .png or .svg file.
        gammas: For each model the scales, shape (representations,); shown below the columns.

    Raises:
        ValueError: The models have different numbers of layers or representations, or the output cannot be drawn.
    """
    check_plot_output(output)
    shapes = {one.shape for one in weights}
    if len(shapes) != 1:
        found = ", ".join(f"{name}: {one.shape}" for name, one in zip(models, weights, strict=True))
        raise ValueError(
            f"The models have different numbers of representations and layers and share no plot: {found}."
        )
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    ((blocks, layers),) = shapes
    titles = ["input", "output"] if blocks == 2 else [f"representation {number}" for number in range(1, blocks + 1)]
    size = (1.8 + 1.0 * len(models), 0.9 + blocks * (0.55 * layers + 0.75))
    figure = Figure(figsize=size, layout="constrained")
    axes: Any = figure.subplots(blocks, 1, squeeze=False)[:, 0]
    image: Any = None
    for block, axis in enumerate(axes):
        table = np.stack([one[block] for one in weights], axis=1)  # (layers, models)
        image = axis.imshow(table, cmap="Blues", vmin=0, vmax=1, origin="lower", aspect="auto")
        for layer, model in np.ndindex(table.shape):
            weight = float(table[layer, model])
            hatch = "---" if weight < 1 / layers else "..." if weight > 2 / layers else None
            if hatch:
                cell = Rectangle(
                    (model - 0.5, layer - 0.5), 1, 1, fill=False, hatch=hatch, edgecolor="0.55", linewidth=0
                )
                axis.add_patch(cell)
            box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5}
            axis.text(model, layer, f"{weight:.2f}", ha="center", va="center", fontsize=8, bbox=box)
        axis.set_yticks(range(layers), layer_names(layers), fontsize=8)
        labels = list(models)
        if gammas is not None:
            labels = [f"{name}\nγ = {float(gamma[block]):.2f}" for name, gamma in zip(models, gammas, strict=True)]
        axis.set_xticks(range(len(models)), labels, fontsize=8)
        for label in axis.get_xticklabels():
            label.set_parse_math(False)
        if blocks > 1:
            axis.set_title(titles[block], fontsize=9)
    figure.colorbar(image, ax=list(axes), label="weight")
    save_figure(figure, output)


def save_figure(figure: Any, output: str | Path) -> None:
    """Writes a figure; the same one gives the same bytes."""
    from matplotlib import rc_context

    kind = Path(output).suffix.lower().removeprefix(".")
    drawn = io.BytesIO()
    with rc_context({"svg.hashsalt": "hf_elmo"}):
        figure.savefig(drawn, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    with written_aside(Path(output)) as aside:
        aside.write_bytes(drawn.getvalue())
