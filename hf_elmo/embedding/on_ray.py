"""Ray Data as the engine: input read, embedded by actors with a model each, and written, on one machine or many.

A read task on the machine of the driver cuts the input into chunks, one a block; each actor embeds chunks and writes
their shards into the folder that all machines share; what comes back to the driver is a record for each shard. An
actor that dies is started again by Ray, and its chunk is done again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import platform
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import ray
import ray.data
import ray.exceptions
import torch
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from .chunks import OpenChunks
from .embedder import ElmoEmbedder
from .engines import Engine, Records
from .errors import ChangedError, InputError, OutputError, SettingError, WorkerError, reason, told
from .formats import MANIFEST
from .manifest import model_fingerprint, read_manifest
from .readers import STANDARD_INPUT
from .settings import JobSettings
from .shards import UNFINISHED, Chunk, ShardRecord
from .worker import ChunkEmbedder, WorkerRecipe

OBJECT_STORE_BYTES = 128 << 20  # of a cluster of our own; it holds chunks of text and records alone
TASKS_IN_FLIGHT = 2
STARTS = 3
MOST_DEATHS = 3  # of actors with the same chunk, or before they were ready
CHUNK, RECORD, END, ERROR = "chunk", "record", "end", "error"
SCHEMA = pa.schema(
    [("kind", pa.string()), ("content", pa.binary()), ("count", pa.int64()), ("fraction", pa.float64())]
)


class RayData(Engine):
    """Actors on Ray.

    Args:
        count: How many actors.
        address: A running cluster, as `ray.init` takes it ("auto", "host:port"); by default the one of RAY_ADDRESS,
            and otherwise a new one on this machine, which ends with the job and leaves others alone.
        gpus: GPUs of each actor, also a part of one; by default 1 where the device is `cuda`.
    """

    def __init__(self, count: int, address: str | None = None, gpus: float | None = None) -> None:
        self.count = count
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.gpus = gpus
        self.own_connection = False
        self.while_connected = contextlib.ExitStack()

    def check(self, settings: JobSettings) -> None:
        """Refuses what cannot be before Ray is started."""
        if self.count < 1:
            raise SettingError(f"--num-proc must be 1 or more, not {self.count}.")
        if self.gpus is not None and self.gpus <= 0:
            raise SettingError(f"--gpus must be more than 0, not {self.gpus:g}.")
        if self.gpus is not None and settings.device is not None and torch.device(settings.device).type != "cuda":
            raise SettingError(f"--gpus is for models on GPUs, and --device is {settings.device}.")
        if settings.input == STANDARD_INPUT:
            raise InputError("Ray reads the input in a process of its own: give it a file, not standard input.")

    def __enter__(self) -> RayData:
        if ray.is_initialized():
            return self
        options: dict[str, Any] = {"address": self.address, "log_to_driver": False, "logging_level": logging.ERROR}
        if self.address == "local":
            options |= {"num_cpus": self.count, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
            self.while_connected.enter_context(environment(RAY_USAGE_STATS_ENABLED="0"))
        try:
            start(options, STARTS if self.address == "local" else 1)
        except Exception as error:  # Ray raises whatever it likes here
            self.while_connected.close()
            where = (
                "Ray does not start here" if self.address == "local" else f"No Ray cluster answers at {self.address}"
            )
            raise WorkerError(f"{where}: {reason(error)}.") from error
        self.while_connected.callback(ray.shutdown)
        self.own_connection = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.own_connection = False
        self.while_connected.close()

    @property
    def on_own_cluster(self) -> bool:
        """Whether the cluster was started here."""
        return self.own_connection and self.address == "local"

    def default_device(self) -> str:
        """A GPU where the cluster has some."""
        return "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"

    def default_threads(self) -> int:
        """The processors of the cluster, or PyTorch's threads on one of our own, shared out; no more than a node's."""
        if self.on_own_cluster:
            return max(1, torch.get_num_threads() // self.count)
        processors = node_resources("CPU")
        return max(1, int(min(max(processors, default=1), sum(processors) // self.count)))

    def resources(self, settings: JobSettings) -> dict[str, float]:
        """What Ray is to keep for each actor.

        Raises:
            SettingError: GPUs are asked for, and there are none.
            WorkerError: No node has as much.
        """
        assert settings.threads is not None
        on_gpu = torch.device(settings.device or "cpu").type == "cuda"
        if self.gpus is not None and not on_gpu:
            raise SettingError(f"--gpus is {self.gpus:g}, and the Ray cluster has no GPU.")
        wanted = {
            "num_cpus": 1 if self.on_own_cluster else settings.threads,
            "num_gpus": (self.gpus or 1) if on_gpu else 0,
        }
        for name, key in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
            most = max(node_resources(name), default=0)
            if wanted[key] > most:
                raise WorkerError(
                    f"Each actor wants {wanted[key]:g} {name}, and no machine of the Ray cluster has more than "
                    f"{most:g}: change --threads or --device."
                )
        return wanted

    def embed(self, recipe: WorkerRecipe, chunks: OpenChunks, embedder: ElmoEmbedder | None) -> Records:
        """Embeds the chunks."""
        resources = self.resources(recipe.settings)
        # Ray shows an actor its own GPUs alone.
        if torch.device(recipe.settings.device or "cpu").type == "cuda":
            recipe = recipe.on("cuda")
        with settings_of_ray_data():
            dataset = ray.data.read_datasource(
                ChunkSource(recipe.settings, chunks.done), override_num_blocks=1, num_cpus=0
            ).map_batches(
                Actor,
                fn_constructor_args=(recipe, self.count, not self.on_own_cluster),
                batch_size=1,
                batch_format="pyarrow",
                zero_copy_batch=True,
                compute=ray.data.ActorPoolStrategy(size=self.count, max_tasks_in_flight_per_actor=TASKS_IN_FLIGHT),
                **resources,
            )
            rows = dataset.iter_rows()
            try:
                yield from records_in(rows, chunks)
            except ray.exceptions.RayError as error:
                raise WorkerError(f"Ray could not go on: {reason(error)}.", str(error)) from error
            finally:
                rows.close() if hasattr(rows, "close") else None


def start(options: dict[str, Any], times: int) -> None:
    """Starts Ray or connects to it; a busy machine needs more than one try, for Ray waits 30 seconds and no longer."""
    for remaining in reversed(range(times)):
        try:
            with quiet_start():
                ray.init(**options)
            return
        except Exception:
            ray.shutdown()
            if not remaining:
                raise


def records_in(rows: Iterator[Mapping[str, Any]], chunks: OpenChunks) -> Iterator[ShardRecord]:
    """The records among what the actors give back; what is said of the input goes to `chunks`."""
    count, fraction = 0, 0.0
    for row in rows:
        count, fraction = max(count, row["count"]), max(fraction, row["fraction"])
        chunks.seen(count, fraction)
        if row["kind"] == END:
            continue
        content = pickle.loads(row["content"])
        if row["kind"] == ERROR:
            raise content
        yield content


def block(kind: str, content: Any = None, count: int = 0, fraction: float | None = 0.0) -> Any:
    """A block of one row."""
    row = {"kind": kind, "content": pickle.dumps(content), "count": count, "fraction": fraction or 0.0}
    return pa.Table.from_pylist([row], schema=SCHEMA)


class ChunkSource(Datasource):
    """The open chunks of an input, one a block, read by one task on the machine of the driver.

    Args:
        settings: The job.
        done: The shards that are there.
    """

    def __init__(self, settings: JobSettings, done: Mapping[int, ShardRecord]) -> None:
        super().__init__()
        # What skipped lines are said to be is long, and not needed to compare.
        self.settings = settings
        self.done = {index: replace(record, skipped=[]) for index, record in done.items()}

    @property
    def supports_distributed_reads(self) -> bool:
        """No: the input may be a file of the driver's machine."""
        return False

    def estimate_inmemory_data_size(self) -> int | None:
        """Not known before it is read."""
        return None

    def get_read_tasks(self, parallelism: int, *others: Any, **options: Any) -> list[ReadTask]:
        """One task: numbers of lines are counted from the beginning."""
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(partial(read_blocks, self.settings, self.done), metadata, schema=SCHEMA)]


def read_blocks(settings: JobSettings, done: Mapping[int, ShardRecord]) -> Iterator[Any]:
    """The open chunks, then how many chunks there are; or an error and no more."""
    try:
        with contextlib.closing(settings.open_reader()) as reader:
            chunks = OpenChunks(settings, reader, done)
            for chunk in chunks:
                yield block(CHUNK, chunk, chunks.count, chunks.fraction)
            yield block(END, None, chunks.count, 1.0)
    except Exception as error:
        yield block(ERROR, told(error))


class Actor:
    """A worker as an actor.

    Args:
        recipe: What it is made of.
        count: How many actors there are.
        elsewhere: Whether it may be on another machine, which has to be like the driver's.
    """

    def __init__(self, recipe: WorkerRecipe, count: int, elsewhere: bool) -> None:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        self.recipe = recipe
        self.worker: ChunkEmbedder | None = None
        self.failure: Exception | None = None
        try:
            check_machine(recipe)
            with attempt(recipe.folder, "start", MOST_DEATHS * count, "before they were ready"):
                self.worker = recipe.make()
                if elsewhere:
                    check_model(self.worker, recipe)
        except Exception as error:
            self.failure = told(error)

    def __call__(self, rows: Any) -> Any:
        """Embeds the chunk of a row; other rows go on as they are."""
        (row,) = rows.to_pylist()
        if self.failure is not None:
            return block(ERROR, self.failure)
        if row["kind"] != CHUNK:
            return rows
        assert self.worker is not None
        chunk: Chunk = pickle.loads(row["content"])
        where = f"at the {self.recipe.source[1]}s from {chunk.first_line + 1:,} on"
        try:
            with attempt(self.recipe.folder, str(chunk.index), MOST_DEATHS, where):
                return block(RECORD, self.worker(chunk), row["count"], row["fraction"])
        except Exception as error:
            return block(ERROR, told(error))


@contextlib.contextmanager
def attempt(folder: Path, name: str, most: int, where: str) -> Iterator[None]:
    """Something that Ray does again, and for ever, when it ends the process: counted in a file, up to a number.

    Raises:
        WorkerError: It has been tried too often.
    """
    count = folder / f"attempts-{name}{UNFINISHED}"
    with contextlib.suppress(FileNotFoundError):
        if count.stat().st_size >= most:
            raise WorkerError(
                f"Actors were ended {where} {most} times. Where memory is short Ray and the system do this: take "
                "fewer actors (--num-proc), or fewer lines at a time (--shard-lines, with --overwrite)."
            )
    with count.open("ab") as file:
        file.write(b".")
    try:
        yield
    finally:
        count.unlink(missing_ok=True)


def check_machine(recipe: WorkerRecipe) -> None:
    """Refuses a machine that does not see the folder of the shards, or that would compute otherwise.

    Raises:
        OutputError: It does not see the folder.
        WorkerError: It has another PyTorch.
    """
    machine = platform.node()
    manifest = read_manifest(recipe.folder / MANIFEST)
    if manifest is None or manifest["job"] != recipe.job:
        raise OutputError(
            f"The machine {machine} does not see {recipe.folder}: give an OUTPUT in a folder that all machines of the "
            "cluster share under the same name."
        )
    if manifest["torch"] != torch.__version__:
        raise WorkerError(
            f"The machine {machine} has PyTorch {torch.__version__}, and the output was begun with "
            f"{manifest['torch']}, which rounds otherwise: install the same on all machines."
        )


def check_model(worker: ChunkEmbedder, recipe: WorkerRecipe) -> None:
    """Refuses a machine whose model of that name is another one.

    Raises:
        ChangedError: It is.
    """
    embedder = worker.embedder
    if model_fingerprint(embedder.model, embedder.tokenizer) != recipe.model_fingerprint:
        raise ChangedError(
            f"On the machine {platform.node()} the model {recipe.settings.model} is another one than where the job "
            "was started: give a folder that all machines share, or a repository on the Hub."
        )


def node_resources(name: str) -> list[float]:
    """How much of something each machine of the cluster has."""
    return [float(node["Resources"].get(name, 0)) for node in ray.nodes() if node["Alive"]]


@contextlib.contextmanager
def environment(**wanted: str) -> Iterator[None]:
    """Variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Ray says nothing on stderr while it starts, and little later; signals stay with those who had them."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    errors = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere, environment(RAY_BACKEND_LOG_LEVEL="fatal"):
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def settings_of_ray_data() -> Iterator[None]:
    """Ray Data without progress bars, a chunk a block; the settings of the caller are afterwards as before."""
    context = ray.data.DataContext.get_current()
    wanted = {"enable_progress_bars": False, "print_on_execution_start": False, "target_max_block_size": 1}
    before = {name: getattr(context, name) for name in wanted}
    log = logging.getLogger("ray.data")
    level = log.level
    for name, value in wanted.items():
        setattr(context, name, value)
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        log.setLevel(level)
