"""The same job in several processes: the same bytes, whatever happens to a worker."""

import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from hf_elmo.cli.embed import engine_for
from hf_elmo.embedding.engines import ThisProcess
from hf_elmo.embedding.errors import InputError, OutputError, SettingError, WorkerError, told
from hf_elmo.embedding.job import run_job
from hf_elmo.embedding.processes import Processes, advice, cause_of_death, device_of
from hf_elmo.embedding.settings import JobSettings
from tests.embedding_jobs import contents, corpus_lines, model_folder, write_lines

WORKER = "hf-elmo embed"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "elmo")


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return corpus_lines(400)


@pytest.fixture(scope="module")
def expected(model, lines, tmp_path_factory) -> dict[str, dict[str, bytes]]:
    """What one process writes, by the name of the output."""
    folders = {name: tmp_path_factory.mktemp("expected") for name in ("v.hdf5", "v")}
    for name, folder in folders.items():
        run_job(job(folder, model, lines, name))
    return {name: written(folder) for name, folder in folders.items()}


def job(folder: Path, model: Path, lines: list[str], output: str = "v.hdf5", **changes) -> JobSettings:
    source = write_lines(folder / "in.txt", lines)
    settings = JobSettings(str(source), str(folder / output), str(model), shard_lines=20, threads=1, layers="all")
    return replace(settings, **changes)


def written(folder: Path) -> dict[str, bytes]:
    """All files; the manifests, which name the input, without its folder."""
    found = {name: data.replace(str(folder).encode(), b"") for name, data in contents(folder).items()}
    assert len(found) > 2
    return found


def workers() -> list[multiprocessing.process.BaseProcess]:
    return [child for child in multiprocessing.active_children() if child.name.startswith(WORKER)]


class TestProcesses:
    @pytest.mark.parametrize("output", ["v.hdf5", pytest.param("v", marks=[pytest.mark.slow, pytest.mark.long])])
    def test_a_killed_worker_is_replaced_and_the_bytes_are_the_same(
        self, output, model, lines, expected, tmp_path, caplog
    ):
        killed: list[int] = []

        def kill_one(progress) -> None:
            if progress.new_words and not killed:
                victim = workers()[0]
                assert victim.pid is not None
                killed.append(victim.pid)
                os.kill(victim.pid, signal.SIGKILL)

        threads = torch.get_num_threads()
        with caplog.at_level(logging.WARNING):
            report = run_job(job(tmp_path, model, lines, output), kill_one, engine=Processes(2))
        assert written(tmp_path) == expected[output]
        assert report.lines == len(lines)
        assert "ended by the signal SIGKILL; another one takes its place" in caplog.text
        assert workers() == []
        assert torch.get_num_threads() == threads

    def test_an_error_of_a_worker_is_one_sentence_and_stops_all(self, model, tmp_path):
        settings = job(tmp_path, model, ["good"] * 90)
        with Path(settings.input).open("ab") as file:
            file.write(b"\xff\n")
        with pytest.raises(InputError, match=r"^Line 91 of .*in\.txt is not valid UTF-8 .* --on-error skip") as caught:
            run_job(settings, engine=Processes(2))
        assert "\n" not in str(caught.value)
        assert workers() == []
        assert list(tmp_path.rglob("*.tmp")) == []
        report = run_job(replace(settings, on_error="skip"), engine=Processes(2))
        assert (report.lines, report.skipped_count) == (91, 1)

    @pytest.mark.long
    @pytest.mark.slow
    def test_workers_that_keep_dying_end_the_job_and_the_next_one_goes_on(self, model, lines, expected, tmp_path):
        ended = threading.Event()
        begun = threading.Event()

        def kill_all() -> None:
            while begun.wait() and not ended.is_set():
                for worker in workers():
                    worker.kill()
                time.sleep(0.02)

        thread = threading.Thread(target=kill_all)
        thread.start()
        settings = job(tmp_path, model, lines)
        message = "A worker process was ended .* 3 times, the last time by the signal SIGKILL.*fewer processes"
        with pytest.raises(WorkerError, match=message):
            run_job(settings, lambda progress: begun.set() if progress.new_words else None, engine=Processes(2))
        ended.set()
        thread.join()
        assert Path(settings.output + ".unfinished").is_dir()
        assert run_job(settings, engine=Processes(2)).resumed_lines > 0
        assert written(tmp_path) == expected["v.hdf5"]

    @pytest.mark.slow
    def test_fewer_chunks_than_processes(self, model, tmp_path):
        assert run_job(job(tmp_path, model, ["one", "", "three"]), engine=Processes(4)).lines == 3

    def test_threads_are_shared_out(self):
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(8)
            assert [engine.default_threads() for engine in (ThisProcess(), Processes(3), Processes(20))] == [8, 2, 1]
        finally:
            torch.set_num_threads(before)

    def test_threads_of_the_caller_stay(self, model, tmp_path):
        before = torch.get_num_threads()
        run_job(job(tmp_path, model, ["a b"], threads=before + 1))
        assert torch.get_num_threads() == before

    def test_gpus_are_taken_in_turn(self, monkeypatch):
        assert device_of("cpu", 3) == "cpu"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert [device_of("cuda", number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
        assert device_of("cuda:1", 0) == "cuda:1"


class TestEnds:
    """The command with two processes is ended from outside."""

    def start(self, folder: Path, model: Path, lines: list[str]) -> tuple[list[str], subprocess.Popen]:
        write_lines(folder / "in.txt", lines)
        options = ["--shard-lines", "20", "--threads", "1", "--layers", "all", "--num-proc", "2"]
        arguments = ["embed", str(folder / "in.txt"), str(folder / "v.hdf5"), "--model", str(model), *options]
        command = [sys.executable, "-m", "hf_elmo.cli", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        while process.poll() is None and not list(folder.glob("v.hdf5.unfinished/part-*.safetensors")):
            time.sleep(0.02)
        assert process.poll() is None
        return command, process

    def assert_goes_on(self, command: list[str], folder: Path, expected: dict[str, bytes]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert "of the lines were done by an earlier run" in done.stdout
        assert written(folder) == expected

    @pytest.mark.slow
    def test_ctrl_c_ends_all_processes_quietly(self, model, lines, expected, tmp_path):
        command, process = self.start(tmp_path, model, lines)
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert errors.splitlines() == ["Interrupted; what is done is kept, and the same command goes on from there."]
        gone, alive = psutil.wait_procs(children, timeout=10)
        assert (len(gone) >= 2, alive) == (True, [])
        assert list(tmp_path.rglob("*.tmp")) == []
        self.assert_goes_on(command, tmp_path, expected["v.hdf5"])

    @pytest.mark.long
    @pytest.mark.slow
    def test_workers_end_when_their_parent_is_killed(self, model, lines, expected, tmp_path):
        command, process = self.start(tmp_path, model, lines)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate(timeout=60)
        gone, alive = psutil.wait_procs(children, timeout=10)
        assert (len(gone) >= 2, alive) == (True, [])
        self.assert_goes_on(command, tmp_path, expected["v.hdf5"])


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (InputError("a"), InputError),
            (SettingError("a"), SettingError),
            (OutputError("a"), OutputError),
            (torch.OutOfMemoryError("a"), WorkerError),
            (MemoryError("a"), MemoryError),
        ],
    )
    def test_errors_travel(self, error, expected):
        there = pickle.loads(pickle.dumps(told(error)))
        assert type(there) is expected
        assert "a" in str(there)

    def test_what_nobody_expected_comes_with_its_traceback(self):
        def mistaken() -> None:
            raise KeyError("x")

        try:
            mistaken()
        except KeyError as error:
            there = pickle.loads(pickle.dumps(told(error)))
        assert str(there) == "A worker failed: KeyError: 'x'."
        assert "in mistaken" in there.details

    def test_how_a_process_ended(self):
        assert cause_of_death(-9) == "the signal SIGKILL"
        assert cause_of_death(3) == "the exit code 3"

    def test_only_a_worker_that_was_killed_makes_one_think_of_memory(self):
        assert "memory" in advice(-9)
        assert "memory" not in advice(1)

    def test_a_script_without_a_guard_is_told(self, model, tmp_path):
        settings = job(tmp_path, model, ["a b"])
        script = tmp_path / "script.py"
        script.write_text(
            "from hf_elmo.embedding.job import JobSettings, run_job\n"
            "from hf_elmo.embedding.processes import Processes\n"
            f"run_job({settings!r}, engine=Processes(1))\n"
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
        assert done.returncode == 1
        assert "ValueError: A script has to call this under `if __name__" in done.stderr
        last = done.stderr.splitlines()[-1]
        assert "A worker process ended before it was ready, by the exit code 1; what it said is above. A" in last

    def test_options_that_do_not_go_together(self, model, tmp_path):
        for options, message in (
            (("slurm", 1, None, None), "--engine must be local or ray"),
            (("local", 2, "auto", None), "--address and --gpus are for --engine ray"),
        ):
            with pytest.raises(ValueError, match=message):
                engine_for(*options)
        with pytest.raises(ValueError, match="--num-proc must be 1 or more, not 0"):
            run_job(job(tmp_path, model, ["a"]), engine=engine_for("local", 0, None, None))
