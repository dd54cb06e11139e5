"""The benchmarks measure what they say, and the report shows it; their figures are nobody's business here."""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from hf_elmo.conversion.mapping import ALLENNLP_TASK_MODEL, expand
from hf_elmo.conversion.operations import OPERATIONS
from tests.shared_files import leave_out

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
README = "# Title\n<!-- benchmarks: begin -->\nold figures\n<!-- benchmarks: end -->\nThe rest.\n"


@pytest.fixture(scope="module", autouse=True)
def modules() -> Iterator[None]:
    """The benchmarks are scripts: their modules are found where they lie, and forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text of 300 lines, in which new words turn up to the end."""
    folder = tmp_path_factory.mktemp("benchmarks")
    numbers = random.Random(0)
    lines = [" ".join([*(new_word(numbers) for _ in range(numbers.randint(8, 40))), "."]) for _ in range(300)]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "README.md").write_text(README)
    return folder


def new_word(numbers: random.Random) -> str:
    return "".join(numbers.choices("abcdefgé", k=numbers.randint(1, 12)))


def run_benchmarks(work: Path, *arguments: str) -> Result:
    from run import app

    options = ["--work", str(work), "--sentences", str(work / "text.txt"), "--threads", "1", *arguments]
    return CliRunner().invoke(app, options)


def measure(work: Path, *names: str, peers: tuple[str, ...] = ("--peers", "none")) -> dict[str, Any]:
    done = run_benchmarks(work, "--size", "tiny", "--quick", "--only", ",".join(names), *peers)
    assert done.exit_code == 0, done.output
    return json.loads((work / "results.json").read_text())["measurements"]


def report(work: Path) -> Result:
    return run_benchmarks(work, "--report", "--readme", str(work / "README.md"), "--pictures", str(work / "docs"))


def assert_fails(done: Result, message: str) -> None:
    assert done.exit_code != 0
    assert message in " ".join(done.output.replace("│", " ").split())


@pytest.fixture(scope="module")
def measured(work: Path) -> dict[str, Any]:
    return measure(work, "float32", "one", "corpus", "tokenizer", "growth", "int8")


def test_a_run_writes_speeds_and_the_machine(measured: dict[str, Any]) -> None:
    for name in ("float32", "one", "corpus", "tokenizer"):
        assert measured[name]["words_per_second"]["hf_elmo"] > 0
        assert measured[name]["size"] == "tiny"
        assert measured[name]["quick"]
        assert measured[name]["environment"]["threads"] == 1
        assert measured[name]["environment"]["versions"]["torch"] == torch.__version__
    assert measured["int8"]["cosine"]["worst"] > 0.9


def test_the_matrix_products_are_a_part_of_the_whole(measured: dict[str, Any]) -> None:
    shares = measured["corpus"]["product_shares"]
    assert min(shares.values()) > 0
    assert sum(shares.values()) == pytest.approx(measured["corpus"]["product_share"])
    assert measured["corpus"]["product_share"] < 1


def test_growth_has_a_point_for_every_size(measured: dict[str, Any]) -> None:
    assert [point["about"] for point in measured["growth"]["words"]] == [200, 800]
    assert [point["sentences_a_batch"] for point in measured["growth"]["batches"]] == [1, 16]
    assert [point["words_a_sentence"] for point in measured["growth"]["lengths"]] == [10, 100]
    assert [point["words"] for point in measured["growth"]["lengths"]] == [160, 800]


def test_the_report_writes_between_its_marks(work: Path, measured: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, the extra plot")
    done = report(work)
    assert done.exit_code == 0, done.output
    text = (work / "README.md").read_text()
    assert text.startswith("# Title\n<!-- benchmarks: begin -->\n")
    assert text.endswith("\n<!-- benchmarks: end -->\nThe rest.\n")
    assert "old figures" not in text
    assert "| float32, 32 sentences a batch |" in text
    assert "A quick run, which shows that the benchmarks work and nothing more." in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
    assert "(docs/growth.svg)" in text
    assert "docs/speed.svg" not in text  # no peer took part
    assert (work / "docs" / "growth.svg").read_text().startswith("<?xml")


def test_the_same_results_give_the_same_report(work: Path, measured: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, the extra plot")
    contents = []
    for _ in range(2):
        assert report(work).exit_code == 0
        contents.append([(work / name).read_bytes() for name in ("README.md", "docs/growth.svg")])
    assert contents[0] == contents[1]


def test_a_picture_of_speeds_needs_the_peer(work: Path, measured: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, the extra plot")
    from report import draw, render

    speeds = {"hf_elmo": 900.0, "allennlp": 150.0, "simple_elmo": 350.0}
    entry = {
        **measured["float32"],
        "words_per_second": speeds,
        "ratios": {"allennlp": 6.0, "simple_elmo": 2.5},
        "differences": {"allennlp": [1e-7, 3e-7], "simple_elmo": [2e-7, 1e-7]},
        "quick": False,
    }
    results = {"measurements": {"float32": entry}}
    assert [path.name for path in draw(results, work / "drawn")] == ["speed.svg"]
    text = render(results, "drawn")
    assert "| float32, 32 sentences a batch | 900 | 150 | 350 | 6.0, 2.5 |" in text
    assert "3.0e-07 from AllenNLP 2.10.1 and 2.0e-07 from simple_elmo 0.9.2" in " ".join(text.split())
    assert "A quick run" not in text


def test_mistakes_are_told_in_a_sentence(work: Path, tmp_path: Path, measured: dict[str, Any]) -> None:
    assert_fails(run_benchmarks(work, "--only", "speed"), "there is no speed; choose from float32, one,")
    assert_fails(run_benchmarks(work, "--peers", "flair"), "There is no peer 'flair'; --peers takes allennlp,")
    assert_fails(run_benchmarks(work, "--peer", "python"), "'python' is not NAME=PYTHON")
    nowhere = ["--peers", "none", "--sentences", str(tmp_path / "nowhere.txt")]
    assert_fails(run_benchmarks(work, *nowhere), "There is no text")
    assert_fails(run_benchmarks(tmp_path, "--report"), "run the benchmarks first")
    (tmp_path / "README.md").write_text("No marks.\n")
    unmarked = run_benchmarks(work, "--report", "--readme", str(tmp_path / "README.md"))
    assert_fails(unmarked, "README.md needs the lines '<!-- benchmarks: begin -->'")
    assert (tmp_path / "README.md").read_text() == "No marks.\n"


def test_a_side_that_fails_says_why(tmp_path: Path) -> None:
    from processes import Worker

    with pytest.raises(
        RuntimeError, match=r"(?s)worker_simple_elmo\.py failed: it ended without an answer.*No module"
    ):
        Worker(sys.executable, "worker_simple_elmo.py", tmp_path / "log", threads=1, folder="none")


def test_sentences_are_cut_after_full_stops(tmp_path: Path) -> None:
    from sentences import Text

    lines = [[f"w{index}" for index in range(count)] for count in (7, 8, 61)]
    lines.append([*(["a"] * 9), ".", *(["b"] * 8), "?", "c"])
    (tmp_path / "text.txt").write_text("\n".join(" ".join(line) for line in lines))
    text = Text(tmp_path / "text.txt")
    assert [len(line) for line in text.short_lines(2)] == [8, 20]
    assert [len(sentence) for sentence in text.sentences()] == [8, 10, 9]
    assert [len(stretch) for stretch in text.stretches(40)] == [40, 40]
    with pytest.raises(ValueError, match="only 2 lines of 8 to 60 words; 3 are needed"):
        text.short_lines(3)


def test_the_products_of_a_batch_are_counted() -> None:
    from checkpoints import make_config
    from products import INPUT, PROJECTION, RECURRENT, lstm_products

    products = lstm_products(make_config("tiny"), [5, 3, 3], distinct=7)
    rows = {kind: [product.rows for product in products if product.kind == kind] for kind in (INPUT, RECURRENT)}
    assert rows == {INPUT: [7, 7, 11, 11], RECURRENT: 4 * [3, 3, 1, 1]}
    assert sum(product.rows for product in products if product.kind == PROJECTION) == 4 * 11
    assert {(product.inputs, product.outputs) for product in products} == {(16, 128), (32, 16)}


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_the_kernels_give_the_product(rows: int) -> None:
    from products import KERNELS

    weight, factor = torch.randn(63, 33), torch.randn(rows, 33)
    for make in KERNELS.values():
        torch.testing.assert_close(make(weight)(factor), factor @ weight.T, rtol=1e-5, atol=1e-5)


def test_gradients_are_compared_through_the_conversion() -> None:
    from checkpoints import make_config
    from gradients import EMBEDDER, largest_relative_differences

    config = make_config("tiny")
    numbers = np.random.default_rng(0)
    ours, theirs = {}, {}
    for step in expand(ALLENNLP_TASK_MODEL.rules, config, characters=config.vocab_size):
        if step.source.startswith(EMBEDDER):
            gradient = numbers.standard_normal(step.shape).astype(np.float32)
            theirs[step.source.removeprefix(EMBEDDER)] = gradient
            ours.update(zip(step.targets, OPERATIONS[step.operation].convert(gradient), strict=True))
    assert set(largest_relative_differences(ours, theirs, config).values()) == {0.0}
    name = "encoder.layers.1.backward_lstm.projection.weight"
    largest = np.abs(ours[name]).max()
    ours[name] = ours[name] + 0.5 * largest
    assert largest_relative_differences(ours, theirs, config)[name] == pytest.approx(0.5)
    del ours[name]
    with pytest.raises(ValueError, match=f"Only one side has gradients of {name}"):
        largest_relative_differences(ours, theirs, config)


@pytest.mark.long
@pytest.mark.slow
def test_every_measurement_runs(work: Path) -> None:
    found = measure(work, "bfloat16", "training", "training-small", "loading", "memory", "gpu-32", "gpu-training")
    assert 0.99 < found["bfloat16"]["cosine"]["worst"] <= found["bfloat16"]["cosine"]["mean"] <= 1 + 1e-9
    assert found["training"]["words_per_second"]["hf_elmo"] > 0
    assert found["loading"]["sides"]["hf_elmo"]["seconds"] > 0
    assert found["memory"]["sides"]["hf_elmo"]["in_all"] > 0
    assert max(found["gpu-32"]["differences"]["torch.nn.LSTM"]) < 1e-5


@pytest.mark.slow
def test_the_profile_has_every_part(work: Path) -> None:
    from profile_forward import PARTS, app

    arguments = ["--size", "tiny", "--count", "16", "--batch-size", "8", "--threads", str(torch.get_num_threads())]
    done = CliRunner().invoke(app, [*arguments, "--work", str(work), "--sentences", str(work / "text.txt")])
    assert done.exit_code == 0, done.output
    assert [part for part in PARTS if f"| {part} |" not in done.output] == []


@pytest.mark.slow
def test_beside_allennlp_vectors_and_gradients_are_the_same(work: Path) -> None:
    python = os.environ.get("HF_ELMO_PEER_ALLENNLP")
    if python is None:
        leave_out("needs HF_ELMO_PEER_ALLENNLP, the Python of an environment with AllenNLP 2.10.1")
    peers = ("--peers", "allennlp", "--peer", f"allennlp={python}")
    found = measure(work, "float32", "training", peers=peers)
    assert max(found["float32"]["differences"]["allennlp"]) < 5e-5
    gradients = found["training"]["gradient_differences"]
    assert gradients["float64"]["largest"] < 1e-9
    assert gradients["float32"]["median"] < 1e-4
    assert gradients["float32"]["parameters"] == len(gradients["float32"]["all"]) == 29


def test_a_training_with_layers_computed_once_is_measured_beside_the_full_one(work: Path, tmp_path: Path) -> None:
    from report import notes

    entry = measure(work, "precomputed")["precomputed"]
    for speeds in (entry["words_per_second"], entry["heads"]["linear"]["words_per_second"]):
        assert speeds.keys() == {"precomputed", "full forward"}
        assert min(speeds.values()) > 0
    assert entry["reading_words_per_second"] > 0
    # P + 2PL numbers of two bytes for a tiny model, and little more.
    config = json.loads((work / "checkpoints" / "tiny" / "converted" / "config.json").read_text())
    size = 2 * config["projection_size"] * (1 + 2 * config["num_hidden_layers"])
    assert size < entry["bytes_a_word"] < size + 50
    assert "A tagger with a BiLSTM on a frozen biLM trains on" in " ".join(notes({"precomputed": entry}))
