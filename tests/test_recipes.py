"""The recipes of `examples/` run from files to scores, predictions and a folder that says the same again."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModel, AutoModelForSequenceClassification, HfArgumentParser, pipeline

import hf_elmo
from tests.example_scripts import EXAMPLES, import_example, write_packed
from tests.shared_files import data_path

TABLE = import_example("run_table")
TINY = {
    "task_embedding_size": 8,
    "task_min_count": 1,
    "task_hidden_size": 8,
    "task_dropout": 0.0,
    "representation_dropout": 0.0,
    "learning_rate": 0.03,
    "per_device_train_batch_size": 4,
    "num_train_epochs": 6,
    "use_cpu": True,
    "disable_tqdm": True,
    "do_train": True,
    "do_eval": True,
    "do_predict": True,
}
# For what needs many epochs and no choice among them.
LAST = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False, "num_train_epochs": 20}
# A text is good or bad by one word; a pair says the same or not.
TEXTS = "".join(
    f"{label}\tthe {noun} was {word} .\n"
    for noun in ("cat", "dog", "film", "day")
    for label, words in (("good", ("fine", "great")), ("bad", ("awful", "poor")))
    for word in words
)
PAIRS = "a\tb\tsame\n" + "".join(
    f"the {first}\tthe {second}\t{'yes' if first == second else 'no'}\n"
    for first in ("cat", "dog", "film", "day")
    for second in ("cat", "dog", "cat", "dog")
)
PAIR_COLUMNS = {"text_column_names": "a,b", "label_column_name": "same"}
TAGS = "".join(
    f"{first}\tB-PER\n{last}\tI-PER\nsaw\tO\n{place}\tB-LOC\n.\tO\n\n"
    for first, last in (("Anna", "Lee"), ("Tom", "Hill"))
    for place in ("Paris", "Rome", "Oslo")
)
# Who does what depends on the predicate alone: without its mark the two examples of a sentence are the same.
ROLES = "".join(
    f"1\t{first}\tX\tX\t_\tB-ARG0\tO\n2\tmade\tX\tX\tmake.01\tB-V\tO\n3\t{second}\tX\tX\t_\tB-ARG1\tB-ARG0\n"
    f"4\tsing\tX\tX\tsing.01\tI-ARG1\tB-V\n\n"
    for first in ("Anna", "Tom")
    for second in ("Lee", "Hill")
)
UPOS = "".join(
    f"1\t{noun}\t_\tNOUN\t_\t_\t0\troot\t_\t_\n2\t{verb}\t_\tVERB\t_\t_\t1\tdep\t_\t_\n\n"
    for noun in ("мама", "рама")
    for verb in ("мыла", "была", "жила")
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Runs a recipe with arguments as keywords, and returns its output folder."""

    def run_recipe(name: str, output: str, **given: Any) -> Path:
        arguments = {"output_dir": tmp_path / output, "cache_dir": tmp_path / "cache", **TINY, **given}
        words = [part for key, value in arguments.items() for part in (f"--{key}", str(value))]
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        import_example(name).main()
        return arguments["output_dir"]

    return run_recipe


def scores_of(folder: Path) -> dict[str, float]:
    return json.loads((folder / "all_results.json").read_text())


def lines_of(folder: Path) -> list[str]:
    return (folder / "predictions.txt").read_text().splitlines()


def files(path: Path) -> dict[str, Any]:
    """The same examples for training and choosing, and some of them for testing."""
    return {"train_file": path, "validation_file": path, "test_file": f"{path}[:4]"}


def test_texts_are_learned_and_the_folder_says_the_same_again(tmp_path: Path, run: Callable[..., Path]) -> None:
    data = {**files(write_packed(tmp_path / "texts.tsv.gz", TEXTS)), "column_names": "label,text"}
    folder = run("text_classification", "texts", **data)
    assert scores_of(folder)["eval_accuracy"] == scores_of(folder)["predict_accuracy"] == 1
    assert lines_of(folder) == ["good", "good", "bad", "bad"]

    classify = pipeline("text-classification", str(folder))
    assert [found["label"] for found in classify(["the day was awful .", "the cat was fine ."])] == ["bad", "good"]
    again = run("text_classification", "again", do_train=False, model_name_or_path=folder, **data)
    assert scores_of(again)["eval_loss"] == pytest.approx(scores_of(folder)["eval_loss"], abs=1e-6)
    assert lines_of(again) == lines_of(folder)


def test_layers_computed_before_give_the_same_run(tmp_path: Path, run: Callable[..., Path]) -> None:
    data = {
        **files(write_packed(tmp_path / "pairs.tsv", PAIRS)),
        "text_column_names": "a,b",
        "label_column_name": "same",
    }
    data["num_train_epochs"] = 2
    plain = run("text_classification", "plain", **data)
    precomputed = run("text_classification", "precomputed", precompute_layers=tmp_path / "layers", **data)
    for name in ("train_loss", "eval_loss"):
        assert scores_of(precomputed)[name] == pytest.approx(scores_of(plain)[name], rel=2e-3)
    assert lines_of(precomputed) == lines_of(plain)


def test_the_baseline_learns_pairs_from_word_vectors_alone(tmp_path: Path, run: Callable[..., Path]) -> None:
    data = {
        **files(write_packed(tmp_path / "pairs.tsv", PAIRS)),
        "text_column_names": "a,b",
        "label_column_name": "same",
    }
    folder = run("text_classification", "pairs", elmo_at_input=False, **LAST, **data)
    assert scores_of(folder)["eval_accuracy"] == 1


def test_word_vectors_of_a_file_reach_words_that_training_has_not_seen(
    tmp_path: Path, run: Callable[..., Path]
) -> None:
    good, bad = "1 0 0 1 0 1 0 0", "0 1 0 0 1 0 1 0"
    vectors = {"fine": good, "great": good, "superb": good, "awful": bad, "poor": bad, "grim": bad}
    path = write_packed(tmp_path / "vectors.txt.gz", "".join(f"{word} {row}\n" for word, row in vectors.items()))
    data = files(write_packed(tmp_path / "texts.tsv", TEXTS))
    unseen = "good\tthe cat was superb .\nbad\tthe cat was grim .\ngood\tthe film was superb .\n"
    data.update(test_file=write_packed(tmp_path / "unseen.tsv", unseen), column_names="label,text")
    folder = run("text_classification", "vectors", elmo_at_input=False, word_vectors=path, **LAST, **data)
    assert lines_of(folder) == ["good", "bad", "good"]


def test_numbers_are_scored_as_a_regression_and_lists_as_several_labels(
    tmp_path: Path, run: Callable[..., Path]
) -> None:
    rows = [line.split("\t") for line in TEXTS.splitlines()]
    scores = "score\ttext\n" + "".join(f"{float(label == 'good') + 0.5}\t{text}\n" for label, text in rows)
    data = files(write_packed(tmp_path / "scores.tsv", scores))
    baseline = {"elmo_at_input": False, **LAST}
    folder = run("text_classification", "scores", label_column_name="score", **baseline, **data)
    assert scores_of(folder)["eval_pearson"] > 0.9
    assert [float(line) > 1 for line in lines_of(folder)] == [True, True, False, False]

    several = [{"text": text, "label": [label] + ["cat"] * ("cat" in text)} for label, text in rows]
    data = files(write_packed(tmp_path / "several.jsonl", "".join(f"{json.dumps(row)}\n" for row in several)))
    folder = run("text_classification", "several", **baseline, **data)
    assert scores_of(folder)["eval_f1"] == 1
    assert lines_of(folder) == ["cat good", "cat good", "bad cat", "bad cat"]


@pytest.mark.parametrize("crf", [{}, {"use_crf": True, "label_scheme": "BIO"}], ids=["softmax", "crf"])
def test_entities_are_learned_and_found_by_the_pipeline(
    tmp_path: Path, run: Callable[..., Path], crf: dict[str, Any]
) -> None:
    data = files(write_packed(tmp_path / "tags.conll.xz", TAGS))
    folder = run("token_classification", "tags", **LAST, **data, **crf)
    assert scores_of(folder)["eval_f1"] == scores_of(folder)["predict_f1"] == 1
    assert lines_of(folder) == ["B-PER I-PER O B-LOC O"] * 4

    tagger = pipeline("token-classification", str(folder), aggregation_strategy="simple")
    assert [(found["word"], found["entity_group"]) for found in tagger("Anna Hill saw Rome .")] == [
        ("Anna Hill", "PER"),
        ("Rome", "LOC"),
    ]


def test_semantic_roles_are_learned_by_the_mark_of_the_predicate(tmp_path: Path, run: Callable[..., Path]) -> None:
    data = {**files(write_packed(tmp_path / "roles.conll", ROLES)), "precompute_layers": tmp_path / "layers"}
    folder = run("token_classification", "roles", task_name="srl", **{**LAST, "num_train_epochs": 40}, **data)
    assert scores_of(folder)["eval_f1"] == 1
    assert lines_of(folder)[:2] == ["B-ARG0 B-V B-ARG1 I-ARG1", "O O B-ARG0 B-V"]


def test_an_unfrozen_bilm_is_trained_slower_than_the_task(tmp_path: Path, run: Callable[..., Path]) -> None:
    data = {**files(write_packed(tmp_path / "texts.tsv", TEXTS)), "column_names": "label,text"}
    rates = {"freeze_bilm": False, "bilm_learning_rate": 1e-6, "num_train_epochs": 1}
    folder = run("text_classification", "texts", **rates, **data)
    before = AutoModel.from_pretrained(hf_elmo.bundled_model("elmo-tiny-english")).state_dict()
    after = AutoModelForSequenceClassification.from_pretrained(folder).elmo.state_dict()
    moved = {name: (after[name] - weight).abs().max().item() for name, weight in before.items()}
    bilm = [value for name, value in moved.items() if not name.startswith("representations")]
    assert 0 < max(bilm) < 1e-5
    assert moved["representations.0.scalar_parameters"] > 1e-3


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_arguments_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    data = files(write_packed(tmp_path / "a.conllu", UPOS))
    arguments = {
        **TINY,
        **{name: str(path) for name, path in data.items()},
        "task_name": "pos",
        "model_name_or_path": "elmo-tiny-russian",
        "output_dir": str(tmp_path / "pos"),
        "cache_dir": str(tmp_path / "cache"),
    }
    path = tmp_path / f"arguments.{ending}"
    path.write_text(json.dumps(arguments) if ending == "json" else yaml.safe_dump(arguments))
    monkeypatch.setattr(sys, "argv", ["token_classification.py", str(path)])
    import_example("token_classification").main()
    assert scores_of(tmp_path / "pos")["eval_accuracy"] == 1
    assert lines_of(tmp_path / "pos") == ["NOUN VERB"] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"do_train": False, "do_eval": False, "do_predict": False}, "There is nothing to do"),
        ({"test_file": "nowhere.tsv"}, "There is no file nowhere.tsv"),
        ({"label_column_name": "class"}, "no column 'class', only label, text"),
        ({"text_column_names": "a,b,c"}, "names 3 columns"),
        ({"elmo_at_input": False, "task_embedding_size": 0}, "give --task_embedding_size"),
        ({"freeze_bilm": False, "precompute_layers": "layers"}, "for a frozen biLM only"),
        ({"validation_file": ""}, "Give --validation_file"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    tmp_path: Path, run: Callable[..., Path], arguments: dict[str, Any], message: str
) -> None:
    data = {**files(write_packed(tmp_path / "texts.tsv", TEXTS)), "column_names": "label,text"}
    with pytest.raises(SystemExit, match=f"^Error: .*{message}"):
        run("text_classification", "texts", **{**data, **arguments})


def test_a_label_that_the_model_does_not_have_is_named(tmp_path: Path, run: Callable[..., Path]) -> None:
    data = files(write_packed(tmp_path / "tags.conll", TAGS))
    folder = run("token_classification", "tags", num_train_epochs=1, **data)
    other = write_packed(tmp_path / "other.conll", "Rome\tB-CITY\n")
    with pytest.raises(SystemExit, match="the label 'B-CITY', which is none of the model's"):
        run("token_classification", "other", do_train=False, model_name_or_path=folder, **files(other))


@pytest.mark.parametrize("row", TABLE.ROWS)
@pytest.mark.parametrize("side", TABLE.SIDES)
def test_the_commands_of_the_table_are_understood_by_the_recipes(tmp_path: Path, row: str, side: str) -> None:
    _, script, *words = TABLE.command_of(row, side, 3, Path("data"), tmp_path)
    name = Path(script).stem
    module = import_example(name)
    kind = "Text" if name.startswith("text") else "Token"
    classes = [getattr(module, f"{kind}{part}Arguments") for part in ("Model", "Data")]
    parser = HfArgumentParser([*classes, module.TaskTrainingArguments])
    model, data, training = parser.parse_args_into_dataclasses(words, look_for_args_file=False)
    assert model.elmo_at_input == (side == TABLE.ELMO)
    assert bool(model.precompute_layers) == (side == TABLE.ELMO)
    assert model.task_embedding_size == TABLE.COMMON["task_embedding_size"]
    assert (training.seed, training.load_best_model_at_end) == (3, True)
    assert data.train_file.startswith("data/")


def test_the_sides_of_the_table_differ_in_elmo_alone(tmp_path: Path) -> None:
    for row in TABLE.ROWS:
        baseline, elmo = (set(TABLE.command_of(row, side, 1, Path("data"), tmp_path)) for side in TABLE.SIDES)
        assert baseline - elmo == {"--elmo_at_input", "False", str(tmp_path / row / "baseline-1")}
        assert elmo - baseline == {
            "--precompute_layers",
            str(tmp_path / "layers" / row),
            str(tmp_path / row / "elmo-1"),
        }


def finished_run(folder: Path, **scores: float) -> None:
    """What a run of the table leaves behind."""
    folder.mkdir(parents=True)
    (folder / "all_results.json").write_text(json.dumps(scores))
    (folder / "finished").write_text("12 s\n")


def test_the_table_has_means_spreads_and_the_seeds_that_both_sides_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, (without, with_elmo) in enumerate([(0.30, 0.40), (0.34, 0.43)], start=1):
        finished_run(tmp_path / "sst5" / f"baseline-{seed}", eval_accuracy=0.5, predict_accuracy=without)
        finished_run(tmp_path / "sst5" / f"elmo-{seed}", eval_accuracy=0.5, predict_accuracy=with_elmo)
    finished_run(tmp_path / "sst5" / "elmo-3", eval_accuracy=0.5, predict_accuracy=0.9)
    finished_run(tmp_path / "wnut17" / "elmo-1", eval_f1=0.5, predict_f1=0.9)
    finished_run(tmp_path / "sick" / "elmo-2", eval_accuracy=0.5, predict_accuracy=0.7)
    finished_run(tmp_path / "sick" / "baseline-2", eval_accuracy=0.5, predict_accuracy=0.75)
    picture = tmp_path / "table.svg"
    words = ["run_table.py", "--output", str(tmp_path), "--only_report", "--picture", str(picture)]
    monkeypatch.setattr(sys, "argv", words)
    assert TABLE.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "| SST-5, sentiment | accuracy | 32.0 ± 2.8 | 41.5 ± 2.1 | +9.5 | 2 |",
        "| SICK, entailment | accuracy | 75.0 | 70.0 | -5.0 | 1 |",
    ]
    assert json.loads((tmp_path / "results.json").read_text())["rows"]["sst5"]["elmo"]["test"] == [0.40, 0.43, 0.9]
    assert "baseline" in picture.read_text()


@pytest.mark.long
@pytest.mark.slow
def test_the_table_runs_what_is_missing_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data" / "sick"
    data.mkdir(parents=True)
    for name in ("train", "trial", "test"):
        content = PAIRS.replace("a\tb\tsame", "sentence_A\tsentence_B\tentailment_judgment")
        write_packed(data / f"{name}.tsv", content)
    words = ["run_table.py", "--data", str(data.parent), "--output", str(tmp_path / "out"), "--rows", "sick"]
    monkeypatch.setattr(sys, "argv", [*words, "--seeds", "1"])
    assert TABLE.main() == 0
    first = capsys.readouterr().out
    assert "sick, baseline, seed 1" in first
    assert TABLE.main() == 0
    assert capsys.readouterr().out == first[first.index("| task") :]

    write_packed(data / "test.tsv", "no such columns\n1\n")
    shutil.rmtree(tmp_path / "out" / "sick" / "elmo-1")
    assert TABLE.main() == 1
    assert "log.txt says why" in capsys.readouterr().err
    assert "no column" in (tmp_path / "out" / "sick" / "elmo-1" / "log.txt").read_text()


# Real data, a little of it: the least that each must reach, well above always giving the most frequent answer.
SAMPLES = {
    "sick": ("text_classification", 700, 0.58, {}),
    "ud_english_ewt": ("token_classification", 400, 0.6, {}),
    "ud_russian_gsd": ("token_classification", 200, 0.5, {}),
    "factrueval2016": ("token_classification", 400, 0.2, {}),
    "up_english_ewt_srl": ("token_classification", 1500, 0.15, {"num_train_epochs": 10}),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("row", SAMPLES)
def test_a_part_of_the_real_data_is_learned(tmp_path: Path, run: Callable[..., Path], row: str) -> None:
    name, count, least, settings = SAMPLES[row]
    task = TABLE.ROWS[row]
    data = dict(zip(("train_file", "validation_file", "test_file"), task.files, strict=True))
    data = {key: f"{data_path(*file.split('/')[:-1])}/{file.split('/')[-1]}" for key, file in data.items()}
    most = {"max_train_samples": count, "max_eval_samples": 200, "max_predict_samples": 200}
    arguments = {**TABLE.COMMON, **task.arguments, **data, **most, "num_train_epochs": 5, **settings}
    folder = run(name, row, model_name_or_path=task.model, precompute_layers=tmp_path / "layers", **arguments)
    assert scores_of(folder)[f"predict_{task.metric[0]}"] > least
    assert len(lines_of(folder)) <= 200


def test_help_names_every_option_with_its_meaning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("text_classification", "token_classification"):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
        with pytest.raises(SystemExit, match="0"):
            import_example(name).main()
        shown = capsys.readouterr().out
        assert "--precompute_layers" in shown
        assert f"python examples/{name}.py --" in shown
        assert (EXAMPLES / f"{name}.py").is_file()
