"""Several processes on this machine, each with a model of its own, and on GPUs each with a GPU of its own."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.connection
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import torch
import torch.multiprocessing

from .chunks import OpenChunks
from .embedder import ElmoEmbedder
from .engines import Engine, Records
from .errors import GUARD, SettingError, WorkerError, told
from .settings import JobSettings
from .shards import Chunk, ShardRecord
from .worker import ChunkEmbedder, WorkerRecipe

MOST_DEATHS = 3  # of workers with the same chunk, or before they were ready
SECONDS_TO_END = 5

logger = logging.getLogger(__name__)


class Processes(Engine):
    """Workers in processes that are started anew (spawned), so that they work with GPUs and threads.

    A worker gets a chunk when it has done the last, and a second one is at hand, so that memory does not grow with the
    input. One that dies is replaced, and its chunk is given again; a chunk at which workers keep dying ends the job.

    Args:
        count: How many. With the device `cuda` the i-th takes the GPU i, modulo those that there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def check(self, settings: JobSettings) -> None:
        """Refuses a number of processes that is none."""
        if self.count < 1:
            raise SettingError(f"--num-proc must be 1 or more, not {self.count}.")

    def default_threads(self) -> int:
        """The threads that PyTorch takes here, shared out."""
        return max(1, torch.get_num_threads() // self.count)

    def embed(self, recipe: WorkerRecipe, chunks: OpenChunks, embedder: ElmoEmbedder | None) -> Records:
        """Embeds the chunks; no worker is left when this ends, however it ends."""
        pool = Pool(recipe, self.count, iter(chunks))
        try:
            yield from pool.records()
        finally:
            pool.stop()


class Pool:
    """The workers of one job.

    Args:
        recipe: What they are made of.
        count: How many at most.
        chunks: What they are to do.
    """

    def __init__(self, recipe: WorkerRecipe, count: int, chunks: Iterator[Chunk]) -> None:
        self.recipe = recipe
        self.count = count
        self.chunks = chunks
        self.workers: list[WorkerProcess] = []
        self.waiting: deque[Chunk] = deque()  # read, and to be given next
        self.deaths: Counter[int | None] = Counter()  # by the index of the chunk; None before a worker was ready

    def records(self) -> Iterator[ShardRecord]:
        """Has everything done."""
        for number in range(self.count):
            # One is ready at once where another waits for the next chunk; fewer chunks need fewer workers.
            if not self._read_ahead(number + 1):
                break
            self.workers.append(WorkerProcess(self.recipe, number))
        while self.workers:
            ready = multiprocessing.connection.wait([worker.connection for worker in self.workers])
            for worker in [worker for worker in self.workers if worker.connection in ready]:
                record = self._hear(worker)
                if record is not None:
                    yield record

    def _hear(self, worker: WorkerProcess) -> ShardRecord | None:
        """Takes what a worker says, and gives it the next chunk."""
        try:
            answer = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return None
        if isinstance(answer, Exception):
            raise answer
        self.deaths.pop(None if answer is None else answer.index, None)
        worker.chunk = None
        if self._read_ahead(1):
            worker.give(self.waiting.popleft())
            self._read_ahead(1)
        else:
            self.workers.remove(worker)
            worker.stop()
        return answer

    def _read_ahead(self, count: int) -> bool:
        """Reads until so many chunks wait; whether there are as many."""
        while len(self.waiting) < count:
            chunk = next(self.chunks, None)
            if chunk is None:
                return False
            self.waiting.append(chunk)
        return True

    def _replace(self, worker: WorkerProcess) -> None:
        """Puts another in the place of a worker that has died.

        Raises:
            WorkerError: That has happened too often, or would again: it ended by itself before it was ready.
        """
        worker.stop()
        chunk = worker.chunk
        index = None if chunk is None else chunk.index
        self.deaths[index] += 1
        code = worker.process.exitcode
        how = cause_of_death(code)
        if chunk is None and code is not None and code >= 0:
            raise WorkerError(f"A worker process ended before it was ready, by {how}; what it said is above. {GUARD}")
        if self.deaths[index] == MOST_DEATHS:
            unit = self.recipe.source[1]
            where = "before it was ready" if chunk is None else f"at the {unit}s from {chunk.first_line + 1:,} on"
            what = f"A worker process was ended {where} {MOST_DEATHS} times, the last time by {how}."
            raise WorkerError(f"{what} {advice(code)}")
        logger.warning("Worker process %d was ended by %s; another one takes its place.", worker.number + 1, how)
        if chunk is not None:
            self.waiting.appendleft(chunk)
        self.workers[self.workers.index(worker)] = WorkerProcess(self.recipe, worker.number)

    def stop(self) -> None:
        """Ends all workers."""
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.stop()
        self.workers.clear()


class WorkerProcess:
    """A worker, and what it is doing.

    Args:
        recipe: What it is made of.
        number: Its number, from 0.
    """

    def __init__(self, recipe: WorkerRecipe, number: int) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.number = number
        self.chunk: Chunk | None = None
        self.connection, theirs = context.Pipe()
        recipe = recipe.on(device_of(recipe.settings.device or "cpu", number))
        self.process: Any = context.Process(
            target=serve, args=(recipe, theirs), name=f"hf-elmo embed {number + 1}", daemon=True
        )
        with interrupts_held():
            self.process.start()
        theirs.close()

    def give(self, chunk: Chunk) -> None:
        """Gives it a chunk, which it is waiting for."""
        self.chunk = chunk
        # Where it has died, the next thing heard of it is that.
        with contextlib.suppress(OSError):
            self.connection.send(chunk)

    def stop(self) -> None:
        """Ends it, and waits for that."""
        self.connection.close()
        self.process.terminate()
        self.process.join(SECONDS_TO_END)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def device_of(device: str, number: int) -> str:
    """The device of a worker: of `cuda` without a number, the GPUs in turn."""
    if device != "cuda" or not torch.cuda.is_available():
        return device
    return f"cuda:{number % torch.cuda.device_count()}"


def serve(recipe: WorkerRecipe, connection: Any) -> None:
    """A worker's whole life: says None when it is ready, then for each chunk its record, or an error and no more."""
    from transformers.utils.logging import disable_progress_bar

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first of them ends the others
    end_with_parent()
    disable_progress_bar()
    worker: ChunkEmbedder | None = None
    chunk: Chunk | None = None
    answer: ShardRecord | Exception | None = None
    with contextlib.suppress(EOFError, OSError):  # nobody wants more
        while not isinstance(answer, Exception):
            try:
                worker = worker or recipe.make()
                answer = None if chunk is None else worker(chunk)
            except Exception as error:
                answer = told(error)
            connection.send(answer)
            chunk = connection.recv()


def end_with_parent() -> None:
    """Ends this process at once when the one that started it has ended, however that happened."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Keeps Ctrl-C back for a moment, and from a process that is started meanwhile."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would let it through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def advice(code: int | None) -> str:
    """What to do about a worker that ended so."""
    if code is None or code < 0:
        return (
            "Where memory is short the system does this: take fewer processes (--num-proc), or fewer lines at a time "
            "(--shard-lines, with --overwrite)."
        )
    return "What it said is above."


def cause_of_death(code: int | None) -> str:
    """How a process ended: signals by their names."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"the signal {signal.Signals(-code).name}"
    return f"the exit code {code}"
