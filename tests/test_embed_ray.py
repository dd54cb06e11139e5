"""`hf-elmo embed --engine ray` on a local cluster: the same bytes, also when a worker is killed in the middle."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hf_elmo.embedding.errors import ChangedError, InputError, OutputError, SettingError, WorkerError
from hf_elmo.embedding.job import run_job
from hf_elmo.embedding.settings import JobSettings
from tests.embedding_jobs import contents, corpus_lines, model_folder, write_lines
from tests.shared_files import leave_out

try:
    import ray

    from hf_elmo.embedding.on_ray import RayData, check_machine
    from hf_elmo.embedding.worker import WorkerRecipe
except ImportError:
    leave_out("needs Ray: pip install 'hf-elmo[ray]'", whole_module=True)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "elmo")


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return corpus_lines(400)


@pytest.fixture(scope="module")
def expected(model, lines, tmp_path_factory) -> dict[str, bytes]:
    """What one process writes."""
    folder = tmp_path_factory.mktemp("expected")
    run_job(job(folder, model, lines))
    return written(folder)


def job(folder: Path, model: Path, lines: list[str], output: str = "v.hdf5", **changes) -> JobSettings:
    source = write_lines(folder / "in.txt", lines)
    settings = JobSettings(str(source), str(folder / output), str(model), shard_lines=20, threads=1, layers="all")
    return replace(settings, **changes)


def written(folder: Path) -> dict[str, bytes]:
    """All files; the manifests, which name the input, without its folder."""
    found = {name: data.replace(str(folder).encode(), b"") for name, data in contents(folder).items()}
    assert len(found) > 2
    return found


def descendants(pid: int) -> list[psutil.Process]:
    """The processes that one has started, and they; Ray's come and go."""
    while True:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).children(recursive=True)


def actors() -> list[psutil.Process]:
    """The processes of our cluster that embed, as Ray names them."""
    found = []
    for process in descendants(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith("ray::MapWorker(MapBatches(Actor))"):
                found.append(process)
    return found


def test_a_worker_killed_in_the_middle_changes_no_byte(model, lines, expected, tmp_path):
    killed: list[int] = []

    def kill_one(progress) -> None:
        if progress.new_words and not killed:
            victim = actors()[0]
            killed.append(victim.pid)
            victim.kill()

    context = ray.data.DataContext.get_current()
    before = (context.target_max_block_size, context.enable_progress_bars, logging.getLogger("ray.data").level)
    handler = signal.getsignal(signal.SIGTERM)
    report = run_job(job(tmp_path, model, lines), kill_one, engine=RayData(2))
    assert len(killed) == 1
    assert report.lines == len(lines)
    assert written(tmp_path) == expected
    # Nothing of the caller's is changed, and the cluster is gone.
    context = ray.data.DataContext.get_current()
    after = (context.target_max_block_size, context.enable_progress_bars, logging.getLogger("ray.data").level)
    assert after == before
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not ray.is_initialized()
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


@pytest.mark.long
def test_a_cluster_that_is_there_is_used_and_stays(model, lines, expected, tmp_path):
    ray.init(address="local", num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    try:
        settings = job(tmp_path, model, lines)
        with Path(settings.input).open("ab") as file:
            file.write(b"\xff\n")
        with pytest.raises(InputError, match=r"^Line 401 of .*in\.txt is not valid UTF-8 .* --on-error skip"):
            run_job(settings, engine=RayData(1))
        assert ray.is_initialized()
        # The first chunk again, and a changed one: what was done is compared with the input.
        changed = [*lines[:-1], "another line", ""]
        with pytest.raises(ChangedError, match="has changed since"):
            run_job(job(tmp_path, model, changed), engine=RayData(1))
        shard = tmp_path / "v.hdf5.unfinished" / "part-00000003.safetensors"
        shard.unlink()
        report = run_job(job(tmp_path, model, lines), engine=RayData(1))
        assert report.resumed_lines == 380
        assert written(tmp_path) == expected
        with pytest.raises(WorkerError, match=r"Each actor wants 64 CPU, and no machine .* more than 2"):
            run_job(job(tmp_path, model, lines, "w.hdf5", threads=64), engine=RayData(1))
        assert not (tmp_path / "w.hdf5.unfinished").exists()
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.long
def test_ctrl_c_ends_the_command_and_its_cluster(model, lines, expected, tmp_path):
    settings = job(tmp_path, model, lines)
    options = ["--shard-lines", "20", "--threads", "1", "--layers", "all", "--engine", "ray", "--num-proc", "2"]
    arguments = ["embed", settings.input, settings.output, "--model", str(model), *options]
    command = [sys.executable, "-m", "hf_elmo.cli", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and not list(tmp_path.glob("v.hdf5.unfinished/part-*.safetensors")):
        time.sleep(0.02)
    children = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    assert errors.splitlines() == ["Interrupted; what is done is kept, and the same command goes on from there."]
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert (len(gone) > 3, alive) == (True, [])
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "of the lines were done by an earlier run" in done.stdout
    assert written(tmp_path) == expected


@pytest.mark.long
def test_a_chunk_at_which_actors_keep_dying_ends_the_job(model, lines, tmp_path):
    ended = threading.Event()
    begun = threading.Event()

    def kill_all() -> None:
        seen: set[tuple[str, int]] = set()
        while begun.wait() and not ended.is_set():
            with contextlib.suppress(OSError):
                tries = {
                    (path.name, path.stat().st_size) for path in tmp_path.glob("v.hdf5.unfinished/attempts-*")
                } - seen
                if tries:  # something has begun to be loaded or embedded
                    seen |= tries
                    for actor in actors():
                        with contextlib.suppress(psutil.NoSuchProcess):
                            actor.kill()
            time.sleep(0.01)

    thread = threading.Thread(target=kill_all)
    thread.start()
    settings = job(tmp_path, model, lines)
    try:
        with pytest.raises(
            WorkerError, match=r"^Actors were ended .* times\. .* fewer actors .* lines are done and kept"
        ):
            run_job(settings, lambda progress: begun.set() if progress.new_words else None, engine=RayData(2))
    finally:
        begun.set()
        ended.set()
        thread.join()


class TestRefusals:
    def test_standard_input_is_not_for_other_processes(self, model, tmp_path):
        with pytest.raises(InputError, match="give it a file, not standard input"):
            run_job(job(tmp_path, model, ["a"], input="-", input_format="text"), engine=RayData(2))

    def test_gpus_are_not_for_a_job_on_the_processor(self, model, tmp_path):
        on_cpu = job(tmp_path, model, ["a"], device="cpu")
        with pytest.raises(SettingError, match="--gpus is for models on GPUs, and --device is cpu"):
            run_job(on_cpu, engine=RayData(1, gpus=1))
        with pytest.raises(SettingError, match=r"--gpus is 0\.5, and the Ray cluster has no GPU"):
            RayData(1, gpus=0.5).resources(on_cpu)  # as settled where nothing was said

    def test_a_cluster_that_is_not_there(self, model, tmp_path):
        with pytest.raises(WorkerError, match=r"No Ray cluster answers at auto"):
            run_job(job(tmp_path, model, ["a"]), engine=RayData(2, address="auto"))

    def test_a_machine_that_does_not_share_the_folder(self, model, tmp_path):
        recipe = WorkerRecipe(job(tmp_path, model, ["a"]), "job", tmp_path / "v.unfinished", ("in.txt", "line"), "")
        with pytest.raises(OutputError, match=r"does not see .*: give an OUTPUT in a folder that all machines"):
            check_machine(recipe)
