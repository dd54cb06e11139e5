"""`ElmoPreTrainer`: what a step computes, what a run reaches, and that nothing is lost when it is interrupted."""

import copy
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_elmo.pretraining import trainer as trainer_module
from hf_elmo.pretraining.checkpoints import UNFINISHED, last_checkpoint
from hf_elmo.pretraining.corpus import Corpus
from hf_elmo.pretraining.perplexity import perplexity
from hf_elmo.pretraining.streams import StreamBatches
from hf_elmo.pretraining.survey import survey
from hf_elmo.pretraining.trainer import ElmoPreTrainer, TrainingBatches, scale_gradient
from tests.assertions import assert_close, assert_far, assert_identical
from tests.pretraining_runs import contents, make_trainer, short_run, weights, write_text


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "train.txt")


def assert_same_weights(folder: Path, other: Path) -> None:
    found, expected = weights(folder), weights(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert_identical(found[name], value, name)


def saved(file: Path) -> Any:
    return torch.load(file, weights_only=True)


def losses(trainer: Any) -> list[float]:
    return [logs["loss"] for logs in trainer.state.log_history if "loss" in logs]


class TestAStep:
    def test_the_loss_of_streams_is_that_of_the_model_with_the_states_of_the_step_before(self, text, tmp_path):
        trainer = make_trainer(text, tmp_path / "run", learning_rate=0.0)
        stream = StreamBatches(Corpus([text]), trainer.processing_class, 4, 5, epochs=None, seed=42)
        expected, states = [], None
        for batch in [next(iter(stream)) for _ in range(4)]:
            with torch.no_grad():
                output = trainer.model(**batch, states=states)
            states = output.states
            expected.append(float(output.loss))
        trainer.train()
        assert losses(trainer) == pytest.approx(expected, abs=1e-5)
        assert_far(states[1], 0, 1e-3)

    def test_adagrad_is_tensorflows_on_the_loss_times_the_unrolled_steps(self, text, tmp_path):
        """accumulator = 1 + the sum of g^2; weight -= 0.2 g / sqrt(accumulator)."""
        trainer = make_trainer(text, tmp_path / "run", max_steps=3)
        model = copy.deepcopy(trainer.model)
        batches = iter(StreamBatches(Corpus([text]), trainer.processing_class, 4, 5, epochs=None, seed=42))
        parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        sums = {name: torch.ones_like(value) for name, value in parameters.items()}
        states = None
        for _ in range(3):
            output = model(**next(batches), states=states)
            states = tuple(state.detach() for state in output.states)
            gradients = torch.autograd.grad(5 * output.loss, list(parameters.values()))
            with torch.no_grad():
                for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
                    sums[name] += gradient**2
                    value -= 0.2 * gradient / sums[name].sqrt()
        trainer.train()
        for name, value in parameters.items():
            assert_close(trainer.model.get_parameter(name), value, 1e-5, name)

    def test_a_scaled_gradient_leaves_the_value(self):
        value = torch.tensor(3.25, requires_grad=True)
        scaled = scale_gradient(value**2, 20.0)
        scaled.backward()
        assert scaled.item() == 3.25**2
        assert value.grad == 20 * 2 * 3.25

    @pytest.mark.parametrize("protocol", ["stream", "sentence"])
    def test_gradients_are_cut_to_a_norm(self, protocol, text, tmp_path):
        arguments = {"protocol": protocol, "optim": "sgd", "learning_rate": 1.0, "max_steps": 1}
        trainer = make_trainer(text, tmp_path / "run", max_grad_norm=0.01, **arguments)
        before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
        trainer.train()
        moved = [(value - before[name]).norm() for name, value in trainer.model.named_parameters()]
        assert torch.stack(moved).norm().item() == pytest.approx(0.01, rel=1e-3)

    def test_batches_that_are_added_up_are_one_large_batch(self, text, tmp_path):
        """Of whole sentences, each of which counts by its words."""
        changed = {}
        for accumulate, size in ((1, 12), (3, 4)):
            trainer = make_trainer(
                text,
                tmp_path / str(accumulate),
                protocol="sentence",
                per_device_train_batch_size=size,
                gradient_accumulation_steps=accumulate,
                max_steps=1,
                optim="sgd",
                learning_rate=1.0,
            )
            # The same sentences in the same order: twelve at a time, or three times four.
            trainer.train_dataset = RecordedBatches(text, trainer, accumulate, size)
            trainer.train()
            changed[accumulate] = trainer.model.state_dict()
        for name, value in changed[1].items():
            assert_close(changed[3][name], value, 1e-6, name)

    def test_bfloat16_on_a_cpu_learns_as_float32_does(self, text, tmp_path):
        reached = []
        for bf16 in (False, True):
            arguments = {"optim": "adamw_torch", "learning_rate": 0.02, "max_steps": 40, "bf16": bf16}
            trainer = make_trainer(text, tmp_path / str(bf16), **arguments)
            trainer.train()
            reached.append(losses(trainer))
            assert all(parameter.dtype == torch.float32 for parameter in trainer.model.parameters())
        assert sum(reached[1][-8:]) < sum(reached[1][:8]) - 2
        assert reached[1] == pytest.approx(reached[0], abs=0.1)
        assert reached[1] != reached[0]


class RecordedBatches(TrainingBatches):
    """Sentences in file order, so that small batches together are a large one."""

    def __init__(self, text: Path, trainer: Any, count: int, size: int) -> None:
        words = [line.split() for line in text.read_text().splitlines()[:12]]
        chunks = [words[start : start + size] for start in range(0, 12, size)]
        tokenizer = trainer.processing_class
        self.chunks = []
        for chunk in chunks:
            encoded = tokenizer(chunk, is_split_into_words=True, padding=True, return_tensors="pt")
            labels = (encoded["word_input_ids"] - 1).masked_fill(encoded["attention_mask"] == 0, -100)
            self.chunks.append(
                {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"], "labels": labels}
            )
        assert len(self.chunks) == count
        self.given, self.length = 0, count

    def __iter__(self):
        return iter(self.chunks)

    def restart(self) -> None:
        pass


class TestARun:
    def test_the_number_of_steps_follows_from_the_text(self, text, tmp_path):
        found = survey(Corpus([text]))
        lines = text.read_text().splitlines()
        assert (found.sentences, found.words) == (120, sum(len(line.split()) for line in lines))
        trainer = make_trainer(text, tmp_path / "run", max_steps=-1, num_train_epochs=2)
        trainer.train()
        expected = 2 * (found.targets // 20)
        assert trainer.state.global_step == expected
        assert trainer.state.num_input_tokens_seen == 20 * expected
        whole = make_trainer(text, tmp_path / "whole", max_steps=-1, num_train_epochs=2, protocol="sentence")
        whole.train()
        assert whole.state.global_step == 2 * 30
        assert whole.state.num_input_tokens_seen == 2 * found.targets

    def test_the_log_tells_perplexity_and_tokens_a_second(self, text, tmp_path):
        trainer = make_trainer(text, tmp_path / "run")
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert len(logs) == 4
        for step, entry in enumerate(logs, start=1):
            assert entry["perplexity"] == pytest.approx(math.exp(entry["loss"]))
            assert entry["tokens"] == 20 * step
            assert entry["tokens_per_second"] > 0

    def test_a_loss_among_drawn_words_is_not_called_the_perplexity(self, text, tmp_path, capsys):
        trainer = make_trainer(text, tmp_path / "run", settings={"num_sampled_words": 3})
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert logs
        for entry in logs:
            assert "perplexity" not in entry
            assert entry["sampled_perplexity"] == pytest.approx(math.exp(entry["loss"]))

    def test_tensorboard_gets_the_log_where_it_is_installed(self, text, tmp_path):
        pytest.importorskip("tensorboardX")
        short_run(text, tmp_path / "run")
        (events,) = (tmp_path / "run" / "runs").glob("*/events*")
        assert b"train/perplexity" in events.read_bytes()

    @pytest.mark.parametrize("protocol", ["stream", "sentence"])
    def test_evaluation_is_the_perplexity_of_the_text(self, protocol, text, tmp_path):
        trainer = make_trainer(text, tmp_path / "run", protocol=protocol, per_device_eval_batch_size=3)
        metrics = trainer.evaluate()
        corpus = Corpus([text])
        report = perplexity(trainer.model, trainer.processing_class, corpus, protocol, 3, keep_incomplete=True)
        assert metrics["eval_perplexity"] == pytest.approx(report.average)
        assert metrics["eval_forward_perplexity"] == pytest.approx(report.forward)
        assert metrics["eval_backward_perplexity"] == pytest.approx(report.backward)
        assert metrics["eval_loss"] == pytest.approx(math.log(report.average))
        assert metrics["eval_tokens"] == report.tokens

    @pytest.mark.slow
    @pytest.mark.parametrize("protocol", ["sentence", "stream"])
    @pytest.mark.long
    def test_two_hundred_sentences_are_learned_to_their_entropy(self, protocol, tmp_path):
        """No model can do better than log(200) nats a sentence of 200 that are equally likely, in either direction.

        The stream's states tell what sentences came before, from which an order that stays the same could be learned:
        the order is another in every epoch.
        """
        text = write_text(tmp_path / "text", 200)
        found = survey(Corpus([text]))
        entropy = found.sentences * math.log(found.sentences) / found.targets
        trainer = make_trainer(
            text,
            tmp_path / "run",
            {"projection_size": 64, "cell_size": 128, "filters": [[1, 8], [2, 16], [3, 24]]},
            protocol=protocol,
            optim="adamw_torch",
            learning_rate=0.02,
            lr_scheduler_type="linear",
            max_grad_norm=1.0,
            max_steps=1000,
            logging_steps=100,
            per_device_train_batch_size=40,
            per_device_eval_batch_size=4,
            unroll_steps=10,
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        reached = trainer.evaluate()["eval_loss"]
        assert before > 3 * entropy
        assert reached < entropy + 0.05
        if protocol == "sentence":
            assert reached > entropy - 1e-4


class TestResuming:
    @pytest.mark.parametrize(
        ("changes", "settings"),
        [
            ({}, {"num_sampled_words": 7}),
            ({"accumulate": 2, "optimizer": "adagrad", "learning_rate": None}, {}),
            ({"protocol": "sentence", "batch_size": 16}, {}),
            ({"protocol": "sentence", "batch_size": 16, "accumulate": 3}, {}),
            ({"batch_size": 40, "unroll_steps": 4, "save_every": 2, "schedule": "cosine", "warmup": 0.3}, {}),
            ({"precision": "bf16"}, {}),
        ],
        ids=["sampled", "accumulate", "sentence", "sentence-accumulate", "several-epochs", "bf16"],
    )
    def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(self, changes, settings, text, tmp_path):
        """From every checkpoint, also at the end of an epoch: weights, log and position."""
        whole, other = tmp_path / "whole", tmp_path / "other"
        assert short_run(text, whole, settings, **changes).steps == 12
        checkpoints = sorted(whole.glob("checkpoint-*"), key=lambda folder: int(folder.name[11:]))
        assert len(checkpoints) == 12 // changes.get("save_every", 3)
        for checkpoint in checkpoints[:-1]:
            shutil.rmtree(other, ignore_errors=True)
            other.mkdir()
            shutil.copy(whole / "run.json", other)
            shutil.copytree(checkpoint, other / checkpoint.name)
            report = short_run(text, other, settings, **changes)
            assert report.resumed_from == other / checkpoint.name
            assert_same_weights(other, whole)
            assert_same_weights(other / "checkpoint-12", whole / "checkpoint-12")
            found, expected = (saved(folder / "checkpoint-12" / "position_0.pt") for folder in (other, whole))
            assert found["data"] == expected["data"]
            for state, wanted in zip(found["states"] or (), expected["states"] or (), strict=True):
                assert_identical(state, wanted, "states")
            found, expected = (saved(folder / "checkpoint-12" / "optimizer.pt")["state"] for folder in (other, whole))
            torch.testing.assert_close(found, expected, rtol=0, atol=0)

    def test_without_the_states_resuming_would_be_another_training(self, text, tmp_path):
        short_run(text, tmp_path / "whole")
        other = tmp_path / "other"
        shutil.copytree(tmp_path / "whole", other)
        for step in (6, 9, 12):
            shutil.rmtree(other / f"checkpoint-{step}")
        position = saved(other / "checkpoint-3" / "position_0.pt")
        torch.save({**position, "states": None}, other / "checkpoint-3" / "position_0.pt")
        short_run(text, other)
        assert_far(weights(other)["softmax.weight"], weights(tmp_path / "whole")["softmax.weight"], 1e-4)

    def test_a_run_that_is_done_stays_as_it_is(self, text, tmp_path):
        short_run(text, tmp_path / "run")
        before = {name: value.clone() for name, value in weights(tmp_path / "run").items()}
        report = short_run(text, tmp_path / "run")
        assert report.steps == 12
        for name, value in weights(tmp_path / "run").items():
            assert_identical(value, before[name], name)

    def test_another_run_is_refused_with_what_differs(self, text, tmp_path):
        short_run(text, tmp_path / "run", save_every=6)
        names = sorted(path.name for path in (tmp_path / "run").iterdir())
        with pytest.raises(ValueError, match=r"holds another run \(learning_rate is 0.5, was 0.02\)"):
            short_run(text, tmp_path / "run", learning_rate=0.5)
        with pytest.raises(ValueError, match=r"field bilm_dropout is 0.3, was null"):
            short_run(text, tmp_path / "run", {"bilm_dropout": 0.3})
        other = write_text(tmp_path / "other.txt", seed=1)
        with pytest.raises(ValueError, match=r"train is .*other.txt"):
            short_run(other, tmp_path / "run")
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names
        # How often to save and to log is no matter.
        assert short_run(text, tmp_path / "run", save_every=4, log_every=1).steps == 12

    def test_a_folder_with_something_else_is_refused(self, text, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.tex").write_text("mine")
        with pytest.raises(ValueError, match=r"holds thesis.tex and no run.json"):
            short_run(text, tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]
        with pytest.raises(ValueError, match=r"is a file"):
            short_run(text, text)

    def test_a_checkpoint_of_more_processes_is_refused(self, text, tmp_path):
        trainer = make_trainer(text, tmp_path / "run", save_strategy="steps", save_steps=2)
        trainer.train()
        file = tmp_path / "run" / "checkpoint-2" / "position_0.pt"
        torch.save({**torch.load(file, weights_only=True), "processes": 2}, file)
        with pytest.raises(ValueError, match=r"written by 2 processes.*--nproc-per-node 2"):
            trainer.train(resume_from_checkpoint=str(file.parent))
        file.unlink()
        with pytest.raises(ValueError, match=r"does not say where its data stood"):
            trainer.train(resume_from_checkpoint=str(file.parent))


class TestInterruption:
    @pytest.mark.parametrize("limit", [0, 400, 12_000])
    def test_a_disk_that_is_full_costs_the_last_interval_only(self, limit, text, tmp_path, monkeypatch):
        """A limit on the size of files fails a write as a full disk does."""
        short_run(text, tmp_path / "whole")
        output = tmp_path / "run"
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        save = ElmoPreTrainer._save_checkpoint

        def fill_disk(trainer: Any, *arguments: Any) -> None:
            if trainer.state.global_step == 9:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            save(trainer, *arguments)

        monkeypatch.setattr(ElmoPreTrainer, "_save_checkpoint", fill_disk)
        try:
            with pytest.raises(OSError, match=r"Writing the checkpoint .*checkpoint-9 failed: .*go on from the last"):
                short_run(text, output)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        assert contents(output) == ["checkpoint-3", "checkpoint-6", "run.json"]
        monkeypatch.undo()
        assert short_run(text, output).resumed_from == output / "checkpoint-6"
        assert_same_weights(output, tmp_path / "whole")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
    def test_what_interrupts_a_checkpoint_leaves_none(self, error, text, tmp_path, monkeypatch):
        short_run(text, tmp_path / "whole")

        def interrupt(*arguments: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(trainer_module, "save_position", interrupt)
            with pytest.raises(error):
                short_run(text, tmp_path / "run")
        assert contents(tmp_path / "run") == ["run.json"]
        short_run(text, tmp_path / "run")
        assert_same_weights(tmp_path / "run", tmp_path / "whole")

    def test_what_a_kill_left_is_removed_and_never_resumed_from(self, text, tmp_path):
        short_run(text, tmp_path / "whole")
        output = tmp_path / "run"
        shutil.copytree(tmp_path / "whole", output)
        for step in (6, 9):
            shutil.rmtree(output / f"checkpoint-{step}")
        (output / UNFINISHED).mkdir()
        shutil.move(output / "checkpoint-12", output / UNFINISHED / "checkpoint-12")
        (output / UNFINISHED / "checkpoint-12" / "optimizer.pt").write_bytes(b"half")
        assert last_checkpoint(output) == output / "checkpoint-3"
        short_run(text, output)
        assert_same_weights(output, tmp_path / "whole")
        assert not (output / UNFINISHED).exists()

    @pytest.mark.long
    @pytest.mark.slow
    def test_twenty_kills_at_random_moments_lose_nothing_but_the_last_interval(self, tmp_path):
        """Each kill falls somewhere between the start of a step and the end of a checkpoint; the end is the same."""
        text = write_text(tmp_path / "train.txt", 400)
        changes = {"steps": 1000, "save_every": 10, "keep": 2}
        short_run(text, tmp_path / "whole", **changes)
        output, source = tmp_path / "run", random.Random(0)
        code = (
            "import sys; from pathlib import Path; from tests.pretraining_runs import short_run;"
            f"print('ready', flush=True); short_run(Path(sys.argv[1]), Path(sys.argv[2]), **{changes!r})"
        )
        command = [sys.executable, "-c", code, str(text), str(output)]
        kills = 0
        reached = [0]
        while kills < 20:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                assert process.stdout.readline() == "ready\n"
                # Some kills fall before the first checkpoint is there, most while checkpoints are being written.
                before = last_checkpoint(output) if output.exists() else None
                wait = time.monotonic() + 300
                while kills % 5 and (last_checkpoint(output) if output.exists() else None) == before:
                    assert process.poll() is None, process.stderr.read()
                    assert time.monotonic() < wait
                    time.sleep(0.002)
                time.sleep(source.uniform(0, 0.3))
                process.kill()
                process.wait()
                kills += 1
            checkpoint = last_checkpoint(output) if output.exists() else None
            step = 0 if checkpoint is None else int(checkpoint.name[11:])
            assert step >= reached[-1]
            reached.append(step)
        assert 0 < reached[-1] < 1000
        report = short_run(text, output, **changes)
        assert report.resumed_from == output / f"checkpoint-{reached[-1]}"
        assert report.steps == 1000
        assert_same_weights(output, tmp_path / "whole")
        assert contents(output) == contents(tmp_path / "whole")


RANKS = """
import sys
from pathlib import Path
from tests.pretraining_runs import make_trainer

protocol, text, output, resume = sys.argv[1:]
trainer = make_trainer(
    Path(text), Path(output), protocol=protocol, max_steps=8, per_device_train_batch_size=4, optim="adamw_torch",
    learning_rate=0.02, save_strategy="steps", save_steps=4, ddp_backend="gloo", gradient_accumulation_steps=2,
)
trainer.train(resume_from_checkpoint=resume or None)
metrics = trainer.evaluate()
if trainer.is_world_process_zero():
    print("perplexity", metrics["eval_perplexity"])
"""


def launch(count: int, *command: str) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    command = (sys.executable, *launcher, *command)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=Path.cwd())


def run_ranks(count: int, *arguments: str) -> str:
    script = Path(arguments[2]).parent / "ranks.py"
    script.write_text(RANKS)
    done = launch(count, str(script), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_text_that_one_process_cannot_read_ends_all_of_them_with_one_sentence(text, tmp_path):
    text.write_bytes(text.read_bytes() + b"caf\xe9 .\n")
    output = tmp_path / "run"
    done = launch(2, "-m", "hf_elmo.cli", "pretrain", "--train", str(text), "--output", str(output))
    assert done.returncode != 0
    assert done.stderr.count(f"Error: {text}, line ") == 2, done.stderr
    assert "AssertionError" not in done.stderr
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["stream", pytest.param("sentence", marks=pytest.mark.long)])
def test_two_processes_of_half_the_batch_are_one_of_the_whole(protocol, text, tmp_path):
    """Without dropout and with the full softmax, of which each process would draw its own numbers."""
    whole = make_trainer(
        text,
        tmp_path / "one",
        protocol=protocol,
        max_steps=8,
        per_device_train_batch_size=8,
        optim="adamw_torch",
        learning_rate=0.02,
        gradient_accumulation_steps=2,
    )
    whole.train()
    expected = whole.evaluate()["eval_perplexity"]
    output = run_ranks(2, protocol, str(text), str(tmp_path / "two"), "")
    assert float(output.split()[-1]) == pytest.approx(expected, rel=1e-4)
    found = weights(tmp_path / "two" / "checkpoint-8")
    for name, value in found.items():
        assert_close(value, whole.model.state_dict()[name], 2e-5, name)
    two = json.loads((tmp_path / "two" / "checkpoint-8" / "trainer_state.json").read_text())["log_history"]
    both = [[entry["loss"] for entry in history if "loss" in entry] for history in (two, whole.state.log_history)]
    assert both[0] == pytest.approx(both[1], abs=1e-5)

    # Each process goes on where it was: bit for bit, as one does.
    shutil.copytree(tmp_path / "two" / "checkpoint-4", tmp_path / "resumed" / "checkpoint-4")
    run_ranks(2, protocol, str(text), str(tmp_path / "resumed"), str(tmp_path / "resumed" / "checkpoint-4"))
    for name, value in weights(tmp_path / "resumed" / "checkpoint-8").items():
        assert_identical(value, found[name], name)
