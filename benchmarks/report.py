"""The README's tables and the pictures, from the results of a run."""

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import ALLENNLP, BFLOAT16, CUDNN, OURS, SIMPLE_ELMO
from environments import PEERS

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
SPEED_PICTURE, GROWTH_PICTURE = "speed.svg", "growth.svg"
MEGABYTE = 1024**2
WIDTH = 120
# Load average before a measurement from which on the machine was not free.
BUSY = 1.5

Results = dict[str, Any]

SPEEDS = ("float32", "one", "bfloat16", "int8", "corpus", "embedding", "training-small", "training", "tokenizer")
GPU_SPEEDS = ("gpu-32", "gpu-256", "gpu-training")
PICTURED = ("float32", "one", "bfloat16", "training-small", "training")
TITLES = {OURS: "hf_elmo", CUDNN: "torch.nn.LSTM", **{name: peer.title for name, peer in PEERS.items()}}


def row(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table; nothing when there are no rows."""
    head, rows = list(head), [list(cells) for cells in rows]
    return [row(*head), "|" + "---|" * len(head), *(row(*cells) for cells in rows)] if rows else []


def number(value: float | None) -> str:
    """A figure with as many digits as it deserves."""
    if value is None:
        return ""
    if value >= 1_000_000:
        return f"{value / 1e6:.1f} million"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def times(values: Iterable[float | None]) -> str:
    """Ratios, in the order of the columns of the peers."""
    return ", ".join(f"{value:.1f}" for value in values if value is not None)


def title(name: str, measurement: Results) -> str:
    """What a row is called."""
    if name.startswith("training"):
        return f"training step, {measurement['size']} size, 32 x 20 words"
    if name == "corpus":
        return f"float32, a corpus in sorted batches of {measurement['batch_size']}"
    return str(measurement["title"])


def speed_rows(measured: Results, names: Iterable[str], peers: tuple[str, ...]) -> list[list[str]]:
    """Words a second of every side, and how many times those of each peer ours are."""
    rows = []
    for name in names:
        if name not in measured:
            continue
        speeds = measured[name]["words_per_second"]
        ours = next(iter(speeds.values()))
        ratios = measured[name].get("ratios", {})
        rows.append(
            [
                title(name, measured[name]),
                number(ours),
                *(number(speeds.get(peer)) for peer in peers),
                times(ratios.get(peer) for peer in peers),
            ]
        )
    return rows


def other_rows(measured: Results, peers: tuple[str, ...]) -> list[list[str]]:
    """Loading and memory, where less is better."""
    rows = []

    def add(label: str, values: dict[str, float], unit: str) -> None:
        cells = [f"{number(values[side])} {unit}" if side in values else "" for side in (OURS, *peers)]
        rows.append([label, *cells, times(values[peer] / values[OURS] for peer in peers if peer in values)])

    if "loading" in measured:
        sides = measured["loading"]["sides"]
        add("loading", {side: values["seconds"] for side, values in sides.items()}, "s")
        add("loading, imports included", {side: values["seconds_with_import"] for side, values in sides.items()}, "s")
    if "memory" in measured:
        sides = measured["memory"]["sides"]
        for title, figure in (
            ("memory of a first forward, 32 sentences", "first_growth"),
            ("memory of a second forward, 32 sentences", "second_growth"),
            ("memory of the process at its peak", "in_all"),
        ):
            add(title, {side: values[figure] / MEGABYTE for side, values in sides.items()}, "MiB")
    return rows


def notes(measured: Results) -> list[str]:
    """Sentences on exactness and on what the tables leave out."""
    lines = []
    busy = [name for name, entry in measured.items() if entry["environment"].get("load before", 0) > BUSY]
    if busy:
        names = ", ".join(f"`{name}`" for name in sorted(busy))
        lines.append(
            f"Other work ran on the machine during {names}: words a second are too low there, for all sides, and "
            "ratios less certain."
        )
    if any(name in measured for name in ("float32", "one", "bfloat16")):
        lines.append(
            "hf_elmo keeps the vectors of words that it has met, so that only new words of a run cost all of it."
        )
    if "float32" in measured and measured["float32"]["differences"]:
        worst = {side: max(layers) for side, layers in measured["float32"]["differences"].items()}
        found = " and ".join(f"{value:.1e} from {TITLES[side]}" for side, value in worst.items())
        lines.append(f"Largest difference of any layer over {measured['float32']['compared_words']} words: {found}.")
    for name, label in (("bfloat16", "bfloat16"), ("int8", "int8")):
        if name in measured:
            cosine = measured[name]["cosine"]
            lines.append(
                f"{label}: cosine of the top layer with float32 {cosine['mean']:.5f} in the mean, "
                f"{cosine['worst']:.5f} for the worst of {cosine['words']:,} words; AllenNLP is in float32."
            )
    for name in ("training-small", "training"):
        if "gradient_differences" in measured.get(name, {}):
            single, double = (measured[name]["gradient_differences"][dtype] for dtype in ("float32", "float64"))
            lines.append(
                f"Gradients of all {double['parameters']} parameters, {measured[name]['size']} size: the largest "
                "difference from AllenNLP's, over the largest gradient of the parameter, is "
                f"{double['largest']:.1e} in float64; in float32 {single['median']:.1e} for the median parameter, "
                f"{single['largest']:.1e} for the worst."
            )
    if "corpus" in measured:
        lines.append(
            f"In sorted batches the matrix products alone, with PyTorch's fastest kernels, take "
            f"{measured['corpus']['product_share']:.0%} of the time."
        )
    if "embedding" in measured:
        lines.append(
            f"A corpus to a file, {number(measured['embedding']['words'][0])} words in file order, all layers into "
            "HDF5, one run, loading apart: `hf-elmo embed` in its own batches, AllenNLP in batches of 64 sentences as "
            "`allennlp elmo` took them, simple_elmo of 32."
        )
    if "precomputed" in measured:
        stored = measured["precomputed"]
        speeds = stored["words_per_second"]
        lines.append(
            f"A tagger with a {stored['head']} on a frozen biLM trains on {number(speeds['full forward'])} words a "
            f"second, and on {number(speeds['precomputed'])} with layers that were computed once "
            f"({stored['ratios']['full forward']:.1f} times as many)."
        )
    if "loading" in measured and "peak_over_weights" in measured["loading"]["sides"][OURS]:
        ours = measured["loading"]["sides"][OURS]
        lines.append(
            f"Loading takes {ours['peak_over_weights']:.2f} times the bytes of the weights at its peak, "
            f"{ours['after_over_weights']:.2f} times afterwards; weights that "
            "are mapped count as soon as they are read."
        )
    if "memory" in measured and BFLOAT16 in measured["memory"]["sides"]:
        memory = measured["memory"]["sides"][BFLOAT16]
        lines.append(
            f"In bfloat16 a forward takes {number(memory['first_growth'] / MEGABYTE)} MiB, the process "
            f"{number(memory['in_all'] / MEGABYTE)} MiB at its peak."
        )
    return lines


def growth_tables(growth: Results) -> list[str]:
    """Words a second as words, batches and sentences grow."""
    lines = []
    for part, label, key in (
        ("words", f"words, about ({growth['batch_size']} sentences a batch)", "about"),
        ("batches", "sentences a batch", "sentences_a_batch"),
        ("lengths", f"words a sentence ({growth['long_batch_size']} sentences a batch)", "words_a_sentence"),
    ):
        points = growth[part]
        lines += [*table([label, *(number(point[key]) for point in points)], [words_row(points)]), ""]
    return [*lines, f"Seconds grow as words to the power {growth['exponent']:.2f}."]


def words_row(points: list[Results]) -> list[str]:
    """Words a second of each point."""
    return ["words a second", *(number(point["words_per_second"]) for point in points)]


def complete(results: Results) -> Results:
    """The measurements that were not cut."""
    return {name: entry for name, entry in results["measurements"].items() if not entry.get("is_cut")}


def caption(results: Results, names: Iterable[str]) -> str:
    """Where and how the figures were taken."""
    measured = complete(results)
    present = [measured[name] for name in names if name in measured]
    machine = present[0]["environment"]
    versions = machine["versions"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    places = sorted({f"{entry['environment']['processor']}, {threads}" for entry in present})
    if machine["device"] != "cpu":
        places = sorted({entry["environment"]["versions"].get("device", "a GPU") for entry in present})
    fewest, most = (choose(entry["repeats"] for entry in present) for choose in (min, max))
    count = str(fewest) if fewest == most else f"{fewest} to {most}"
    runs = "one run" if most == 1 else f"medians of {count} alternating runs"
    text = (
        f"Random weights of the {present[0]['size']} size, {' and '.join(places)}, PyTorch {versions['torch']}; "
        f"sentences of {machine['text']}, {runs}, each with sentences of its own; words a second, and the "
        "ratios to each peer:"
    )
    if any(entry["quick"] for entry in present):
        text = f"A quick run, which shows that the benchmarks work and nothing more. {text}"
    return text


def render(results: Results, pictures: str | None) -> str:
    """The section of the README.

    Args:
        results: What a run has written.
        pictures: The folder of the pictures as the README links to it, None without pictures.

    Raises:
        ValueError: When there is nothing to show.
    """
    measured = complete(results)
    if not measured:
        raise ValueError("The results hold no measurement yet; run the benchmarks first.")
    peers = (ALLENNLP, SIMPLE_ELMO)
    head = ["", TITLES[OURS], *(TITLES[peer] for peer in peers), "ratio"]
    lines: list[str] = []
    rows = speed_rows(measured, SPEEDS, peers) + other_rows(measured, peers)
    if rows:
        lines += [caption(results, [*SPEEDS, "loading", "memory"]), "", *table(head, rows), ""]
        if pictures and pictured(measured):
            lines += [f"![Speed beside AllenNLP and simple_elmo]({pictures}/{SPEED_PICTURE})", ""]
        lines += [*(f"- {note}" for note in notes(measured)), ""]
    if "growth" in measured:
        lines += [f"hf_elmo alone as work grows, {measured['growth']['size']} size, float32:", ""]
        lines += [*growth_tables(measured["growth"]), ""]
        if pictures:
            lines += [f"![Words a second as work grows]({pictures}/{GROWTH_PICTURE})", ""]
    rows = speed_rows(measured, GPU_SPEEDS, (ALLENNLP, CUDNN))
    if rows:
        lines += [caption(results, GPU_SPEEDS), ""]
        lines += [*table(["", TITLES[OURS], TITLES[ALLENNLP], TITLES[CUDNN], "ratio"], rows), ""]
    return "\n".join(wrapped for line in lines for wrapped in wrap(line)).strip()


def wrap(line: str) -> list[str]:
    """A line of prose in lines of the README's width; tables and pictures stay whole."""
    if not line or line.startswith(("|", "![")):
        return [line]
    return textwrap.wrap(line, WIDTH, subsequent_indent="  " if line.startswith("- ") else "", break_on_hyphens=False)


def write_section(readme: Path, section: str) -> None:
    """Puts the section between the marks in a README.

    Raises:
        ValueError: When the marks are not there, once each and in order.
    """
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"{readme} needs the lines {BEGIN!r} and {END!r}, once each, where the tables go.")
    readme.write_text(f"{before}{BEGIN}\n{section}\n{END}{after}", encoding="utf-8")


def pictured(measured: Results) -> list[str]:
    """What the picture of speeds shows: measurements that AllenNLP took part in."""
    return [name for name in PICTURED if ALLENNLP in measured.get(name, {}).get("words_per_second", {})]


def draw(results: Results, folder: Path) -> list[Path]:
    """Draws what there is to draw.

    Raises:
        ValueError: When matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("The pictures need matplotlib: pip install 'hf-elmo[plot]', or leave them out.") from error
    # The same results give the same file.
    matplotlib.rcParams.update({"svg.hashsalt": "hf_elmo", "font.size": 9})
    folder.mkdir(parents=True, exist_ok=True)
    measured = complete(results)
    drawn: dict[str, Any] = {}
    if pictured(measured):
        drawn[SPEED_PICTURE] = draw_speeds(Figure(figsize=(7.5, 4.2), layout="constrained"), measured)
    if "growth" in measured:
        drawn[GROWTH_PICTURE] = draw_growth(Figure(figsize=(7.5, 2.8), layout="constrained"), measured["growth"])
    for name, figure in drawn.items():
        figure.savefig(folder / name, metadata={"Date": None})
    return [folder / name for name in drawn]


COLORS = {OURS: "#1f6f8b", ALLENNLP: "#e08e45", SIMPLE_ELMO: "#9a9a9a"}


def draw_speeds(figure: Any, measured: Results) -> Any:
    """Bars of speed, a group for each measurement: how many times AllenNLP's."""
    axes = figure.subplots()
    names = pictured(measured)
    used: set[str] = set()
    for group, name in enumerate(names):
        speeds = measured[name]["words_per_second"]
        first = next(iter(speeds))
        sides = {OURS: speeds[first], **{side: speeds[side] for side in (SIMPLE_ELMO, ALLENNLP) if side in speeds}}
        for index, (side, value) in enumerate(sides.items()):
            place = group + 0.27 * (index - (len(sides) - 1) / 2)
            length = value / speeds[ALLENNLP]
            label = None if side in used else TITLES[side]
            axes.barh(place, length, height=0.25, color=COLORS[side], label=label)
            axes.text(length, place, f" {number(value)} words/s", va="center", fontsize=8)
            used.add(side)
    axes.set_yticks(range(len(names)), [title(name, measured[name]).replace(", ", "\n", 1) for name in names])
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlabel(f"speed, {TITLES[ALLENNLP]} = 1")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def draw_growth(figure: Any, growth: Results) -> Any:
    """Seconds over words, and words a second over sizes of batches and sentences."""
    panels = figure.subplots(1, 3)
    curves = (
        ("words", "about", "seconds", "words"),
        ("batches", "sentences_a_batch", "words_per_second", "sentences a batch"),
        ("lengths", "words_a_sentence", "words_per_second", "words a sentence"),
    )
    for axes, (part, x, y, label) in zip(panels, curves, strict=True):
        places = [point[x] for point in growth[part]]
        axes.plot(places, [point[y] for point in growth[part]], "o-", color=COLORS[OURS], markersize=4)
        axes.set_xscale("log")
        axes.set_xticks(places, [number(place) for place in places], rotation=45)
        axes.minorticks_off()
        axes.set_xlabel(label)
        axes.set_ylabel(y.replace("_per_", " a ").replace("_", " "))
        axes.spines[["top", "right"]].set_visible(False)
        if y == "seconds":
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    return figure
