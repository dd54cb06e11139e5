"""Measures this package beside AllenNLP and simple_elmo: `python benchmarks/run.py --help`."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from bench import QUICK, Bench, NotMeasured, TimeIsOver, Workload
from environments import PEERS, set_up
from measurements import MEASUREMENTS, Measurement
from report import draw, render, write_section
from sentences import Text

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "benchmarks"
SENTENCES = ROOT.parent / "shared" / "data" / "wikitext2" / "valid.txt"
HELP = """
Measures this package beside AllenNLP 2.10.1 and simple_elmo 0.9.2, on the
same random weights and the same sentences.

Every side runs in a process and an environment of its own; the peers'
environments are made on the first run, from pinned versions. The sides take
turns, each turn with other sentences; medians of the turns and of their ratios
count. Results go to build/benchmarks/results.json, one entry a measurement,
which the next run of that measurement replaces.

\b
  python benchmarks/run.py                 all that runs on a CPU: 15 minutes
  python benchmarks/run.py --quick         a trial: two minutes, no figures
  python benchmarks/run.py --only one,int8 some of the measurements
  python benchmarks/run.py --report        README's tables and docs/*.svg from
                                           the results, without measuring
  python benchmarks/run.py --device cuda   the measurements of a GPU

A ratio counts only while nothing else runs on the machine, and without
variables such as OMP_NUM_THREADS in your shell, which change it.
"""
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
INFLUENCES = ("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "TF_NUM_", "TF_ENABLE_", "HF_ELMO_DISABLE")


def check_names(names: list[str] | None) -> list[str] | None:
    """Names of measurements, several in one word at commas."""
    split = [part for name in names or [] for part in name.split(",")]
    unknown = [name for name in split if name not in MEASUREMENTS]
    if unknown:
        raise typer.BadParameter(f"there is no {', '.join(unknown)}; choose from {', '.join(MEASUREMENTS)}")
    return split


def check_peers(values: list[str] | None) -> list[str] | None:
    """NAME=PYTHON pairs."""
    for value in values or []:
        name, _, python = value.partition("=")
        if name not in PEERS or not python:
            raise typer.BadParameter(f"{value!r} is not NAME=PYTHON with a NAME of {', '.join(PEERS)}")
    return values


@app.command(help=HELP)
def main(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Measure these alone, at commas or repeated: {', '.join(MEASUREMENTS)}.", callback=check_names
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small weights, few words, one run.")] = False,
    size: Annotated[str | None, typer.Option(help="Weights: original (the default), medium, small or tiny.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Timed runs of each side; 3 by default.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each side; by default, all cores.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="Start no further point of growth after so long; the next run goes on from there."),
    ] = None,
    sentences: Annotated[Path, typer.Option(help="The text: a paragraph a line, words apart.")] = SENTENCES,
    peers: Annotated[str, typer.Option(help="The peers that take part, at commas, or none.")] = ",".join(PEERS),
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PYTHON", help="The Python of an environment that is there.", callback=check_peers),
    ] = None,
    setup: Annotated[bool, typer.Option("--setup", help="Only make the peers' environments.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Only write README and pictures from the results.")] = False,
    results: Annotated[Path | None, typer.Option(help="The file of results; results.json in the work folder.")] = None,
    work: Annotated[Path, typer.Option(help="Checkpoints, environments, logs and results are kept here.")] = WORK,
    readme: Annotated[Path, typer.Option(help="The file that --report writes the tables into.")] = ROOT / "README.md",
    pictures: Annotated[Path, typer.Option(help="The folder that --report draws into.")] = ROOT / "docs",
) -> None:
    """Measures, or writes the report."""
    results = results or work / "results.json"
    try:
        if report:
            write_report(results, readme, pictures)
            return
        pythons = find_peers(peers, peer or [], work)
        if setup:
            return
        workload = QUICK if quick else Workload()
        workload = dataclasses.replace(workload, size=size or workload.size, repeats=repeats or workload.repeats)
        if size == "tiny":
            workload = dataclasses.replace(workload, small_size=size)
        names = only or [name for name, measurement in MEASUREMENTS.items() if measurement.device == device]
        cores = os.cpu_count() or 1
        with Bench(workload, Text(sentences), work, threads or cores, device, pythons, seconds) as bench:
            measure(bench, [MEASUREMENTS[name] for name in names], results, quick)
    except (ValueError, RuntimeError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None


def find_peers(names: str, given: list[str], work: Path) -> dict[str, Path]:
    """The Python of each peer's environment: one that is given, or ours, made where it is missing.

    Raises:
        ValueError: When there is no such peer.
    """
    chosen = [] if names == "none" else names.split(",")
    unknown = [name for name in chosen if name not in PEERS]
    if unknown:
        raise ValueError(f"There is no peer {unknown[0]!r}; --peers takes {', '.join(PEERS)}, or none.")
    pythons = {name: Path(python) for name, _, python in (pair.partition("=") for pair in given)}
    return {name: pythons.get(name) or set_up(PEERS[name], work / "peers") for name in chosen}


def measure(bench: Bench, chosen: list[Measurement], path: Path, quick: bool) -> None:
    """Measures one after the other; each is written down as soon as it is known."""
    warn_of_influences()
    results = read_results(path) if path.exists() else {"measurements": {}}
    for measurement in chosen:
        bench.say(f"{measurement.name}: {measurement.title}")
        bench.forget()
        bench.earlier, bench.keep = {}, keeper(bench, measurement, results, path, quick)
        cut = results["measurements"].get(measurement.name, {})
        if cut.get("is_cut") and (cut["size"], cut["quick"]) == (bench.workload.size, quick):
            bench.earlier = cut
        try:
            result = measurement.measure(bench)
        except NotMeasured as reason:
            bench.say(f"{measurement.name}: left out, {reason}")
            continue
        except TimeIsOver:
            bench.say(f"{measurement.name}: the time is over; the next run goes on from here")
            break
        write_down(bench, measurement, results, path, {"quick": quick, **result})
        for line in summary(measurement, result):
            bench.say(f"{measurement.name}: {line}")
    bench.say(f"Results: {path}")


def keeper(
    bench: Bench, measurement: Measurement, results: dict[str, Any], path: Path, quick: bool
) -> Callable[[Mapping[str, Any]], None]:
    """What writes down a measurement that is not done, so that another run can go on with it."""
    return lambda result: write_down(bench, measurement, results, path, {"quick": quick, "is_cut": True, **result})


def write_down(
    bench: Bench, measurement: Measurement, results: dict[str, Any], path: Path, result: Mapping[str, Any]
) -> None:
    """Puts a measurement into the file of results."""
    results["measurements"][measurement.name] = {
        "title": measurement.title,
        "size": bench.workload.size,
        "repeats": bench.workload.repeats,
        **result,
        "environment": bench.environment(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def warn_of_influences() -> None:
    """Says which variables of the shell change what is measured."""
    found = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(INFLUENCES)]
    if found:
        typer.echo(f"Note: these variables change the figures; unset them for a run that counts: {' '.join(found)}")


def read_results(path: Path) -> dict[str, Any]:
    """The results of the runs before.

    Raises:
        ValueError: When there are none.
    """
    if not path.is_file():
        raise ValueError(f"There are no results in {path}; run the benchmarks first.")
    return json.loads(path.read_text(encoding="utf-8"))


def summary(measurement: Measurement, result: Mapping[str, Any]) -> list[str]:
    """A few lines for the terminal: speeds, ratios and every single figure, beside the goals."""
    lines = []
    for name, value in flatten(result):
        wanted = ""
        if name in measurement.goals:
            wanted = f" (wanted: at least {measurement.goals[name]:,g})"
        elif name in measurement.limits:
            wanted = f" (wanted: at most {measurement.limits[name]:,g})"
        lines.append(f"{name} {value:,.4g}{wanted}")
    return lines


def flatten(result: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The single figures of a result with dotted names; of lists, those of differences count, by the largest."""
    left_out = ("all", "words", "runs")
    figures = []
    for name, value in result.items():
        if isinstance(value, Mapping) and name not in left_out:
            figures += flatten(value, f"{prefix}{name}.")
        elif isinstance(value, float) or (isinstance(value, int) and name not in left_out):
            figures.append((f"{prefix}{name}", float(value)))
        elif prefix == "differences.":
            figures.append((f"{prefix}{name}", max(value)))
    return figures


def write_report(results: Path, readme: Path, pictures: Path) -> None:
    """Tables into the README, pictures beside it."""
    found = read_results(results)
    write_section(readme, render(found, os.path.relpath(pictures, readme.parent)))
    drawn = draw(found, pictures)
    typer.echo(f"Wrote {', '.join(str(path) for path in [readme, *drawn])}")


if __name__ == "__main__":
    app()
