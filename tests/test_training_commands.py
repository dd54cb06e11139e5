"""`hf-elmo pretrain`, `adapt` and `plot training`: from text files to a model, and one clear sentence otherwise."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import Result
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer
from typer.testing import CliRunner

from hf_elmo import ElmoForPreTraining, ElmoModel, ElmoTokenizer
from hf_elmo.cli import app
from hf_elmo.pretraining.curves import points, read_log
from hf_elmo.pretraining.pretrain import read_config
from tests.assertions import assert_identical
from tests.pretraining_runs import SETTINGS, weights, write_text
from tests.tiny_models import tiny_model

SMALL = [argument for name, value in SETTINGS.items() for argument in ("--set", f"{name}={json.dumps(value)}")]
SHORT = ["--steps", "6", "--batch-size", "4", "--unroll-steps", "5", "--save-every", "3", "--log-every", "2"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def assert_refused(result: Result, message: str) -> None:
    assert result.exit_code == 1, result.output
    lines = result.stderr.strip().splitlines()
    assert re.search(message, lines[-1]), result.stderr
    assert "Traceback" not in result.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    folder = tmp_path_factory.mktemp("pretrain")
    text = write_text(folder / "train.txt")
    valid = write_text(folder / "valid.txt", 20, seed=1)
    command = ["pretrain", "--train", text, "--valid", valid, "--config", "tiny", *SMALL, *SHORT]
    return text, folder / "run", assert_done(run(*command, "--output", folder / "run"))


def test_a_text_becomes_a_model_like_any_other(trained):
    text, output, said = trained
    assert re.search(r"words in 120 sentences, \d+ in the vocabulary; [\d,]+ parameters; \d+ steps an epoch\.", said)
    assert re.search(r"The trained model is in .*run \(6 steps\)\. Perplexity of the validation text: \d+\.\d\d", said)
    tokenizer = AutoTokenizer.from_pretrained(output, trust_remote_code=False)
    sentence = text.read_text().splitlines()[0]
    inputs = tokenizer([sentence], return_tensors="pt")
    model = AutoModelForPreTraining.from_pretrained(output)
    labels = inputs.pop("word_input_ids") - 1
    assert model(**inputs, labels=labels).loss < 5
    assert AutoModel.from_pretrained(output)(**inputs).last_hidden_state.shape[-1] == 12
    perplexity = json.loads(assert_done(run("perplexity", output, text, "--json")))
    assert 1 < perplexity["average"] < 60
    assert_done(run("predict", output, sentence))


def test_the_same_command_goes_on_and_another_is_refused(trained):
    text, output, _ = trained
    valid = text.with_name("valid.txt")
    command = ["pretrain", "--train", text, "--valid", valid, "--config", "tiny", *SMALL, *SHORT, "--output", output]
    before = weights(output)
    assert "Going on from" in assert_done(run(*command))
    for name, value in weights(output).items():
        assert_identical(value, before[name], name)
    assert_refused(run(*command, "--dropout", "0.3"), r"holds another run \(field bilm_dropout is 0.3, was 0.1\)")
    assert_refused(run(*command, "--optimizer", "adamw"), r"learning_rate is 0.002, was 0.2; .*optimizer")


def test_a_model_is_adapted_and_its_perplexity_told_before_and_after(trained, tmp_path, monkeypatch):
    _, output, _ = trained
    monkeypatch.chdir(tmp_path)
    domain = tmp_path / "domain.txt"
    domain.write_text("".join(f"Ann likes a letter {number % 7} .\n" for number in range(60)))
    command = ["adapt", output, "--train", domain, "--learning-rate", "0.02", *SHORT]
    said = assert_done(run(*command))
    before, after = (float(value) for value in re.findall(r"(\d+\.\d\d) (?:before|after)", said))
    assert after < 0.8 * before
    assert before == pytest.approx(float(re.search(r"text before: (\S+)\.\n", said).group(1)), abs=0.01)
    assert (tmp_path / "run-adapted" / "vocab.txt").read_bytes() == (output / "vocab.txt").read_bytes()
    again = assert_done(run(*command))
    assert "Going on from" in again
    assert f"{before:.2f} before, {after:.2f} after" in again
    assert_refused(run(*command, "--seed", "5"), r"holds another run \(seed is 5, was 0\)")


def test_a_model_without_a_softmax_gets_one_over_the_words_of_the_text(trained, tmp_path):
    text, _, _ = trained
    tiny_model(ElmoModel).save_pretrained(tmp_path / "bilm")
    ElmoTokenizer(word_splitter="punctuation").save_pretrained(tmp_path / "bilm")
    said = assert_done(run("adapt", tmp_path / "bilm", "--train", text, *SHORT, "--output", tmp_path / "adapted"))
    assert "its softmax starts anew" in said
    assert re.search(r"of the training text: none \(the model had no softmax\) before, \d+\.\d\d after", said)
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "adapted")
    assert tokenizer.word_splitter == "punctuation"
    assert len(tokenizer.word_vocabulary) == ElmoForPreTraining.from_pretrained(tmp_path / "adapted").num_words


class TestConfig:
    def test_sizes_have_the_parameters_that_the_help_states(self):
        counts = {}
        for name in ("tiny", "small", "medium", "original"):
            with torch.device("meta"):
                counts[name] = ElmoForPreTraining(read_config(name, 5000)).num_parameters() / 1e6
        assert counts["tiny"] == pytest.approx(1.3, abs=0.05)
        softmax = 5000 * 129 / 1e6
        assert counts["small"] == pytest.approx(13.6 + softmax, abs=0.05)
        assert counts["medium"] == pytest.approx(28.0 + 5000 * 257 / 1e6, abs=0.05)
        assert counts["original"] == pytest.approx(93.6 + 5000 * 513 / 1e6, abs=0.05)

    def test_files_of_this_package_and_of_bilm_tf_are_read(self, trained, tmp_path):
        _, output, _ = trained
        config = read_config(str(output / "config.json"), 77)
        assert (config.cell_size, config.word_vocab_size) == (11, 77)
        options = {
            "char_cnn": {
                "embedding": {"dim": 5},
                "filters": [[1, 4], [2, 6]],
                "n_highway": 1,
                "max_characters_per_token": 50,
                "n_characters": 261,
                "activation": "relu",
            },
            "lstm": {"cell_clip": 3, "dim": 11, "n_layers": 2, "proj_clip": 3, "projection_dim": 6},
        }
        (tmp_path / "options.json").write_text(json.dumps(options))
        assert read_config(str(tmp_path / "options.json"), 77).projection_size == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "huge"], r"--config must be one of tiny, small, medium, original, or a file"),
        (["--set", "layers=3"], r"--set takes FIELD=VALUE with a field of ElmoConfig, but was given 'layers=3'"),
        (["--set", "cell_size=0"], r"cell_size"),
        (["--protocol", "book"], r"--protocol must be one of stream, sentence, but is book"),
        (["--optimizer", "adam"], r"--optimizer must be one of adagrad, adamw"),
        (["--schedule", "up"], r"--schedule must be one of constant, linear, cosine"),
        (["--precision", "int8"], r"--precision must be one of float32, bf16, fp16"),
        (["--batch-size", "0"], r"--batch-size must be at least 1, but is 0"),
        (["--epochs", "-1"], r"--epochs must be above 0"),
        (["--warmup", "1.5"], r"--warmup is a share of the steps"),
        (["--max-words", "50"], r"--max-words is for whole sentences"),
        (["--vocabulary-size", "2"], r"vocabulary of 2 words"),
        (["--minimum-count", "1000"], r"No word of the text occurs 1000 times"),
        (["--word-splitter", "letters"], r"letters"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_leaves_nothing(arguments, message, trained, tmp_path):
    text, _, _ = trained
    command = ["pretrain", "--train", text, "--config", "tiny", *SMALL, *SHORT, "--output", tmp_path / "run"]
    assert_refused(run(*command, *arguments), message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, r"There is no file .*none.txt"),
        ("empty.txt", b"", r"empty.txt holds no sentence"),
        ("blank.txt", b"\n \n\n", r"blank.txt holds no sentence"),
        ("picture.txt", b"good\n\x89PNG\r\n\x1a\n\x00\x00", r"picture.txt, line 2, is no text"),
        ("latin.txt", "so\nnaïve\n".encode("latin-1"), r"latin.txt, line 2, is no text in UTF-8"),
    ],
)
def test_a_file_that_is_no_text_is_one_sentence_and_leaves_nothing(name, content, message, tmp_path):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    command = ["pretrain", "--train", file, "--config", "tiny", *SMALL, *SHORT, "--output", tmp_path / "run"]
    assert_refused(run(*command), message)
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_file_is_taken_or_refused(trained, tmp_path):
    text, _, _ = trained
    vocabulary = tmp_path / "words.txt"
    command = ["pretrain", "--train", text, "--config", "tiny", *SMALL, *SHORT, "--vocabulary", vocabulary]
    vocabulary.write_text("<S>\n</S>\n<UNK>\n.\nAnn\nAnn\n")
    assert_refused(run(*command, "--output", tmp_path / "run"), r"words.txt holds 'Ann' more than once")
    vocabulary.write_text(".\nAnn\n<UNK>\n")
    assert_refused(run(*command, "--output", tmp_path / "run"), r"words.txt lacks <S>, </S>")
    vocabulary.write_text("<S>\n</S>\n<UNK>\n.\nand\nAnn\n")
    assert_done(run(*command, "--output", tmp_path / "run"))
    assert (tmp_path / "run" / "vocab.txt").read_text() == vocabulary.read_text()


def test_a_vocabulary_that_does_not_fit_the_softmax_is_told(trained, tmp_path):
    text, output, _ = trained
    ElmoForPreTraining.from_pretrained(output).save_pretrained(tmp_path / "model")
    words = (output / "vocab.txt").read_text().splitlines()
    tokenizer = ElmoTokenizer.from_pretrained(output)
    tokenizer.word_vocabulary.words.pop()
    tokenizer.save_pretrained(tmp_path / "model")
    command = ["adapt", tmp_path / "model", "--train", text, *SHORT, "--output", tmp_path / "adapted"]
    assert_refused(run(*command), rf"has {len(words) - 1} words, but the model's softmax has {len(words)}")


def test_the_log_becomes_a_picture(trained, tmp_path):
    _, output, _ = trained
    log = read_log(output)
    words, perplexities = points(log, "perplexity")
    assert words == pytest.approx([40e-6, 80e-6, 120e-6])
    assert all(value > 1 for value in perplexities)
    assert len(points(log, "eval_perplexity")[0]) == 3
    pytest.importorskip("matplotlib")
    for name in ("curve.svg", "curve.png"):
        assert_done(run("plot", "training", output, "--output", tmp_path / name))
        assert (tmp_path / name).stat().st_size > 1000
    assert "validation" in (tmp_path / "curve.svg").read_text() or "<path" in (tmp_path / "curve.svg").read_text()
    assert_refused(run("plot", "training", tmp_path, "--output", tmp_path / "x.svg"), r"holds no trainer_state.json")


@pytest.mark.parametrize("command", ["pretrain", "adapt"])
def test_the_help_teaches(command):
    text = " ".join(re.sub(r"[^\w<>'./-]+", " ", assert_done(run(command, "--help"))).split())
    for told in ("one sentence a line", "goes on from the last checkpoint", "Examples", f"hf-elmo {command}"):
        assert told in text


@pytest.mark.slow
def test_the_example_in_code_trains_and_goes_on(trained, tmp_path):
    text, _, _ = trained
    example = Path(__file__).parents[1] / "examples" / "pretrain.py"
    command = [sys.executable, example, "--train", text, "--valid", text, "--output_dir", tmp_path / "run"]
    command += ["--vocabulary_size", "30", "--per_device_train_batch_size", "8", "--save_steps", "2"]
    for steps in ("2", "4"):
        done = subprocess.run([*map(str, command), "--max_steps", steps], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Perplexity of the validation text:" in done.stdout
    assert {path.name for path in (tmp_path / "run").glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    assert ElmoForPreTraining.from_pretrained(tmp_path / "run").num_words == 30


class TestBrokenNumbers:
    def test_a_model_in_half_precision_is_adapted_in_full(self, trained, tmp_path):
        text, output, _ = trained
        AutoModelForPreTraining.from_pretrained(output).half().save_pretrained(tmp_path / "half")
        AutoTokenizer.from_pretrained(output).save_pretrained(tmp_path / "half")
        run_folder = tmp_path / "run"
        said = assert_done(run("adapt", tmp_path / "half", "--train", text, *SHORT, "--output", run_folder))
        before, after = map(float, re.search(r"([\d.]+) before, ([\d.]+) after", said).groups())
        assert after < 1.2 * before
        assert {value.dtype for value in weights(run_folder).values()} == {torch.float32}

    def test_training_that_diverges_stops(self, trained, tmp_path):
        text, *_ = trained
        wild = ["--optimizer", "adamw", "--learning-rate", "1e30", "--clip", "1e30"]
        command = ["pretrain", "--train", text, "--config", "tiny", *SMALL, *SHORT, *wild]
        assert_refused(run(*command, "--output", tmp_path / "run"), "Training has diverged: the loss is not finite")
        assert not (tmp_path / "run" / "model.safetensors").exists()

    def test_a_model_of_no_numbers_has_no_perplexity(self, trained, tmp_path):
        text, output, _ = trained
        model = AutoModelForPreTraining.from_pretrained(output)
        with torch.no_grad():
            model.softmax.bias[3] = torch.nan
        model.save_pretrained(tmp_path / "broken")
        AutoTokenizer.from_pretrained(output).save_pretrained(tmp_path / "broken")
        assert_refused(run("perplexity", tmp_path / "broken", text, "--json"), "no finite perplexity")

    def test_nothing_is_written_beside_the_run(self, trained, tmp_path, monkeypatch):
        text, output, _ = trained
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        assert_done(run("adapt", output, "--train", text, *SHORT, "--output", tmp_path / "run"))
        assert list(tmp_path.rglob("here/*")) == []

    def test_adagrad_adapts_at_its_own_rate(self, trained, tmp_path):
        text, output, _ = trained
        command = ["adapt", output, "--train", text, *SHORT, "--optimizer", "adagrad", "--output", tmp_path / "run"]
        assert_done(run(*command))
        history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
        assert {entry["learning_rate"] for entry in history if "learning_rate" in entry} == {0.2}
