"""The table of the README: every task with and without ELMo, several seeds each.

    python examples/run_table.py --data ../shared/data --output runs/table
    python examples/run_table.py --data ../shared/data --output runs/table --rows sst5 sick --seeds 0 --show_commands
    python examples/run_table.py --output runs/table --only_report --picture docs/tasks.svg

Each run is a process of its own: a recipe with the arguments in `ROWS`, the same for both sides but for ELMo itself.
The baseline has trained word vectors x_k and the task network; the other side has ELMo beside the same x_k. Finished
runs are left as they are, so that the same command goes on where it was stopped. Seeds are the outer loop. The scores
are in OUTPUT/results.json, the log of each run beside its scores.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_elmo.embedding.plots import check_plot_output, save_figure

EXAMPLES = Path(__file__).parent
BASELINE, ELMO = "baseline", "elmo"
SIDES = (BASELINE, ELMO)
COLOURS = ("tab:gray", "tab:blue")
LEGEND = {BASELINE: "baseline: word vectors and BiLSTM", ELMO: "the same with ELMo"}
ALL_RESULTS = "all_results.json"

# The task network and its training: the same for every row and for both sides, unless a row says otherwise.
COMMON = {
    "task_embedding_size": 100,
    "task_hidden_size": 100,
    "task_dropout": 0.3,
    "representation_dropout": 0.3,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
}


@dataclass(frozen=True)
class Row:
    """One task.

    Attributes:
        title: What the table calls it.
        metric: The score that is reported, as the recipe calls it, and as the table does.
        recipe: The script.
        files: Training, validation and test data, in the folder of the data.
        model: The ELMo.
        arguments: Further arguments of the recipe.
    """

    title: str
    metric: tuple[str, str]
    recipe: str
    files: tuple[str, str, str]
    model: str = "elmo-tiny-english"
    arguments: dict[str, Any] = field(default_factory=dict)


def splits_in(folder: str, ending: str) -> tuple[str, str, str]:
    """The three files of a data set."""
    return f"{folder}/train{ending}", f"{folder}/dev{ending}", f"{folder}/test{ending}"


TEXTS, WORDS = "text_classification.py", "token_classification.py"
ACCURACY, ENTITY_F1, SPAN_F1 = ("accuracy", "accuracy"), ("f1", "entity F1"), ("f1", "span F1")
CRF = {"task_name": "ner", "use_crf": True, "label_scheme": "BIO"}
ROWS = {
    "sst5": Row(
        "SST-5, sentiment",
        ACCURACY,
        TEXTS,
        splits_in("sst5", ".tsv"),
        arguments={"column_names": "label,sentence", "word_splitter": "whitespace", "num_train_epochs": 3},
    ),
    "sick": Row(
        "SICK, entailment",
        ACCURACY,
        TEXTS,
        ("sick/train.tsv", "sick/trial.tsv", "sick/test.tsv"),
        arguments={
            "text_column_names": "sentence_A,sentence_B",
            "label_column_name": "entailment_judgment",
            "num_train_epochs": 5,
        },
    ),
    "wnut17": Row(
        "WNUT 2017, entities",
        ENTITY_F1,
        WORDS,
        splits_in("wnut17", ".conll"),
        arguments={**CRF, "num_train_epochs": 5, "learning_rate": 1e-2},
    ),
    "factrueval2016": Row(
        "factRuEval-2016, entities (Russian)",
        ENTITY_F1,
        WORDS,
        splits_in("factrueval2016", ".conll"),
        "elmo-tiny-russian",
        {**CRF, "num_train_epochs": 6, "learning_rate": 1e-2},
    ),
    "ud_english_ewt": Row(
        "UD English-EWT, UPOS",
        ACCURACY,
        WORDS,
        splits_in("ud_english_ewt", ".conllu.xz"),
        arguments={"task_name": "pos", "num_train_epochs": 3},
    ),
    "ud_russian_gsd": Row(
        "UD Russian-GSD, UPOS (519 sentences)",
        ACCURACY,
        WORDS,
        (
            "ud_russian_gsd/dev.conllu.xz[:-60]",
            "ud_russian_gsd/dev.conllu.xz[-60:]",
            "ud_russian_gsd/test.conllu.xz",
        ),
        "elmo-tiny-russian",
        {"task_name": "pos", "num_train_epochs": 15, "learning_rate": 1e-2},
    ),
    "up_english_ewt_srl": Row(
        "PropBank on English-EWT, semantic roles (6,000 predicates)",
        SPAN_F1,
        WORDS,
        splits_in("up_english_ewt_srl/span", ".conll.xz"),
        arguments={
            "task_name": "srl",
            "shuffle_train_dataset": True,
            "max_train_samples": 6000,
            "max_eval_samples": 1500,
            "num_train_epochs": 6,
            "learning_rate": 1e-2,
        },
    ),
}


def command_of(row: str, side: str, seed: int, data: Path, output: Path) -> list[str]:
    """The command of a run.

    Args:
        row: A name in `ROWS`.
        side: `baseline` or `elmo`.
        seed: The seed of the initial weights, of dropout and of the order of the examples.
        data: The folder of the data sets.
        output: The folder of the table.
    """
    task = ROWS[row]
    arguments: dict[str, Any] = {"model_name_or_path": task.model}
    for name, file in zip(("train_file", "validation_file", "test_file"), task.files, strict=True):
        arguments[name] = data / file
    arguments.update({**COMMON, **task.arguments})
    if side == BASELINE:
        arguments["elmo_at_input"] = False
    else:
        arguments["precompute_layers"] = output / "layers" / row
    arguments.update(seed=seed, output_dir=folder_of(row, side, seed, output))
    flags = ["--do_train", "--do_eval", "--do_predict", "--disable_tqdm", "true"]
    options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    return [sys.executable, str(EXAMPLES / task.recipe), *flags, *options]


def folder_of(row: str, side: str, seed: int, output: Path) -> Path:
    """The folder of a run."""
    return output / row / f"{side}-{seed}"


def is_finished(folder: Path, command: list[str]) -> bool:
    """Whether a run has ended well, with these very arguments."""
    if not all((folder / name).is_file() for name in (ALL_RESULTS, "finished", "log.txt")):
        return False
    with (folder / "log.txt").open(encoding="utf-8") as log:
        return shlex.split(log.readline())[1:] == command[1:]


def run(row: str, side: str, seed: int, data: Path, output: Path) -> None:
    """Runs one recipe, unless it is finished.

    Raises:
        RuntimeError: It failed.
    """
    folder = folder_of(row, side, seed, output)
    command = command_of(row, side, seed, data, output)
    if is_finished(folder, command):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"{time.strftime('%H:%M:%S')} {row}, {side}, seed {seed}", flush=True)
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        print(shlex.join(command), file=log, flush=True)
        started = time.monotonic()
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        raise RuntimeError(f"The run failed with exit code {code}; {folder / 'log.txt'} says why.")
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    (folder / "finished").write_text(f"{time.monotonic() - started:.0f} s\n", encoding="utf-8")


def collect(output: Path) -> dict[str, Any]:
    """The scores of all finished runs: for each row and side those on the validation and on the test data."""
    results: dict[str, Any] = {}
    for row, task in ROWS.items():
        for side in SIDES:
            scores: dict[str, Any] = {"seeds": [], "validation": [], "test": []}
            for folder in sorted((output / row).glob(f"{side}-*"), key=lambda path: int(path.name.split("-")[1])):
                if not (folder / "finished").is_file():
                    continue
                found = json.loads((folder / ALL_RESULTS).read_text(encoding="utf-8"))
                scores["seeds"].append(int(folder.name.split("-")[1]))
                scores["validation"].append(found[f"eval_{task.metric[0]}"])
                scores["test"].append(found[f"predict_{task.metric[0]}"])
            if scores["seeds"]:
                results.setdefault(row, {"metric": task.metric[1]})[side] = scores
    return results


def shown(values: list[float]) -> str:
    """Mean and standard deviation of the seeds, in percent; of one seed its score."""
    mean = f"{100 * statistics.mean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


def paired(scores: dict[str, Any]) -> list[list[float]]:
    """The test scores of the baseline and of ELMo, of the seeds that both have."""
    by_seed = [
        dict(zip(scores[side]["seeds"], scores[side]["test"], strict=True)) if side in scores else {} for side in SIDES
    ]
    seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
    return [[found[seed] for seed in seeds] for found in by_seed]


def table_of(results: dict[str, Any]) -> str:
    """The table in Markdown, with the rows of which both sides are there."""
    lines = ["| task | metric | baseline | + ELMo | difference | seeds |", "|---|---|---|---|---|---|"]
    for row, scores in results.items():
        without, with_elmo = paired(scores)
        if without:
            difference = 100 * (statistics.mean(with_elmo) - statistics.mean(without))
            means = [shown(without), shown(with_elmo), f"{difference:+.1f}"]
            lines.append(f"| {' | '.join([ROWS[row].title, scores['metric'], *means, str(len(without))])} |")
    return "\n".join(lines) + "\n"


def draw(results: dict[str, Any], picture: Path) -> None:
    """Draws the table: for each task the mean on the test data without and with ELMo, and each seed as a dot.

    Args:
        results: What `collect` gives.
        picture: A .svg or .png file.

    Raises:
        ValueError: matplotlib is missing, or the picture cannot be of that kind.
    """
    check_plot_output(picture)
    from matplotlib.figure import Figure

    names = [row for row, scores in results.items() if paired(scores)[0]][::-1]
    figure = Figure(figsize=(7.5, 0.55 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(names):
        tests_of_sides = [[100 * score for score in tests] for tests in paired(results[row])]
        means = [statistics.mean(tests) for tests in tests_of_sides]
        axes.plot(means, [place, place], color="0.75", linewidth=2, zorder=1)
        for side, tests, mean, colour in zip(SIDES, tests_of_sides, means, COLOURS, strict=True):
            axes.scatter(tests, [place] * len(tests), s=14, color=colour, alpha=0.5, linewidths=0, zorder=2)
            axes.scatter([mean], [place], s=46, color=colour, label=LEGEND[side] if not place else None, zorder=3)
            outside = mean < max(means) or (side == BASELINE and means[0] == means[1])
            axes.annotate(
                f"{mean:.1f}",
                (mean, place),
                (-8 if outside else 8, 0),
                textcoords="offset points",
                ha="right" if outside else "left",
                va="center",
                fontsize=8,
            )
    axes.set_yticks(range(len(names)), [f"{ROWS[row].title}\n{results[row]['metric']}" for row in names], fontsize=8)
    axes.set_xlabel("test score in percent: means, and each seed as a small dot", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.margins(x=0.12, y=0.08)
    axes.grid(axis="x", linewidth=0.4)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    save_figure(figure, picture)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="The folder of the data sets.")
    parser.add_argument("--output", type=Path, required=True, help="The folder of the runs.")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="Which tasks.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="Which seeds.")
    parser.add_argument("--picture", type=Path, help="Draw the table into this file (.svg or .png).")
    parser.add_argument("--show_commands", action="store_true", help="Show the commands of the runs; run nothing.")
    parser.add_argument("--only_report", action="store_true", help="Show the table of what is finished; run nothing.")
    return parser.parse_args()


def main() -> int:
    """Runs what is missing, then reports. Returns the exit code: 1 where a run failed."""
    arguments = parse_arguments()
    runs = [(row, side, seed) for seed in arguments.seeds for row in arguments.rows for side in SIDES]
    if arguments.show_commands:
        for row, side, seed in runs:
            print(shlex.join(command_of(row, side, seed, arguments.data, arguments.output)))
        return 0
    failed = False
    for row, side, seed in [] if arguments.only_report else runs:
        try:
            run(row, side, seed, arguments.data, arguments.output)
        except RuntimeError as error:
            failed = True
            print(f"Error: {error}", file=sys.stderr)
    results = collect(arguments.output)
    report = json.dumps({"settings": COMMON, "rows": results}, indent=1, ensure_ascii=False)
    (arguments.output / "results.json").write_text(f"{report}\n", encoding="utf-8")
    print(table_of(results), end="")
    if arguments.picture:
        draw(results, arguments.picture)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
