"""What a run of the benchmarks has at hand: weights, text, workers, and how much to measure."""

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import torch
from checkpoints import Checkpoint, make_checkpoint
from processes import Worker
from sentences import Sentence, Text, batches, count_words

OURS, BFLOAT16, INT8, CUDNN = "hf_elmo", "hf_elmo bfloat16", "hf_elmo int8", "torch.nn.LSTM"
ALLENNLP, SIMPLE_ELMO = "allennlp", "simple_elmo"
SETTINGS: dict[str, dict[str, Any]] = {BFLOAT16: {"precision": "bfloat16"}, INT8: {"precision": "int8"}}
OUR_SCRIPT = "worker_hf_elmo.py"


@dataclass(frozen=True)
class Workload:
    """How much is measured.

    Args:
        size: Size of the weights.
        small_size: Size of the second training step.
        repeats: Timed runs of each side, after one that is not timed.
        batched: Sentences of a run in batches of 32.
        single: Sentences of a run one at a time.
        corpus_words: Words of a run over a corpus.
        corpus_batch: Sentences of a batch there.
        embedded_words: Words of the corpus that goes into a file.
        tokenized_lines: Lines of text for the tokenizer.
        growth_words: Words for each run of the growth in words.
        growth_batches: Sentences a batch -> sentences, for the growth of batches.
        growth_lengths: Words of a sentence -> batches of 8 sentences, for the growth of sentences.
        tuned: Sentences of a training on a frozen biLM.
        tuned_epochs: Epochs of it with layers that were computed before; with the full forward it is one.
        gpu_sentences: Sentences of a run on a GPU.
    """

    size: str = "original"
    small_size: str = "small"
    repeats: int = 3
    batched: int = 64
    single: int = 16
    corpus_words: int = 10_000
    corpus_batch: int = 64
    embedded_words: int = 4_000
    tokenized_lines: int = 3_000
    growth_words: Sequence[int] = (1_000, 3_000, 10_000, 30_000, 100_000)
    growth_batches: Mapping[int, int] = field(default_factory=lambda: {1: 48, 4: 96, 16: 256, 64: 256, 256: 256})
    growth_lengths: Mapping[int, int] = field(
        default_factory=lambda: {10: 13, 30: 5, 100: 2, 300: 1, 1000: 1, 2000: 1}
    )
    tuned: int = 256
    tuned_epochs: int = 4
    gpu_sentences: int = 512


QUICK = Workload(
    size="small",
    small_size="tiny",
    repeats=1,
    batched=32,
    single=4,
    corpus_words=800,
    corpus_batch=16,
    embedded_words=300,
    tokenized_lines=50,
    growth_words=(200, 800),
    growth_batches={1: 8, 16: 32},
    growth_lengths={10: 2, 100: 1},
    tuned=32,
    tuned_epochs=2,
    gpu_sentences=16,
)
"""Tries everything; its figures mean little."""


class NotMeasured(Exception):
    """A measurement cannot be made here; the message says why."""


class TimeIsOver(Exception):
    """The rest of a measurement is left to another run."""


class Bench:
    """One run of the benchmarks.

    Args:
        workload: How much is measured.
        text: The sentences.
        work: Where checkpoints and logs are kept.
        threads: Threads of every side.
        device: "cpu" or "cuda".
        peers: Name -> Python of the environment of each peer that takes part.
        seconds: When `check_time` ends the run, or None for never.

    Attributes:
        earlier: What an earlier run, which was cut, found of the measurement that runs now.
        keep: Writes down what the measurement that runs now has found so far.
    """

    def __init__(
        self,
        workload: Workload,
        text: Text,
        work: Path,
        threads: int,
        device: str,
        peers: Mapping[str, Path],
        seconds: float | None = None,
    ) -> None:
        self.workload, self.text, self.work, self.threads, self.device = workload, text, work, threads, device
        self.peers, self.seconds = peers, seconds
        self.earlier: Mapping[str, Any] = {}
        self.keep: Callable[[Mapping[str, Any]], None] = lambda result: None
        self.versions: dict[str, str] = {}
        self._workers: dict[tuple[str, str, bool], Worker] = {}
        self._started = time.perf_counter()
        self.load = os.getloadavg()[0]

    def say(self, message: str) -> None:
        """A line of progress with the time since the start."""
        print(f"[{time.perf_counter() - self._started:5.0f} s] {message}", flush=True)

    def check_time(self) -> None:
        """Ends the run where its time is over.

        Raises:
            TimeIsOver: Then.
        """
        if self.seconds is not None and time.perf_counter() - self._started > self.seconds:
            raise TimeIsOver

    def checkpoint(self, size: str) -> Checkpoint:
        """The random weights of a size."""
        return make_checkpoint(self.work, size)

    def new_worker(self, side: str, size: str, training: bool = False) -> Worker:
        """A side in a new process.

        Raises:
            NotMeasured: When the side does not take part.
        """
        checkpoint = self.checkpoint(size)
        log = self.work / "logs" / f"{side.replace(' ', '-')}-{size}{'-training' if training else ''}.log"
        settings: dict[str, Any] = {}
        if side in (ALLENNLP, SIMPLE_ELMO):
            if side not in self.peers:
                raise NotMeasured(f"{side} does not take part")
            python, script, folder = str(self.peers[side]), f"worker_{side}.py", checkpoint.original
        else:
            python, script, folder = sys.executable, OUR_SCRIPT, checkpoint.converted
            settings = dict(SETTINGS.get(side, {}))
            if side == CUDNN:
                settings["lstm"] = "torch"
        if side != SIMPLE_ELMO:
            settings.update(device=self.device, training=training)
        worker = Worker(python, script, log, self.threads, folder=str(folder), **settings)
        self.versions.update(worker.start["versions"])
        return worker

    def worker(self, side: str, size: str | None = None, training: bool = False) -> Worker:
        """A side, started when it is first needed."""
        key = (side, size or self.workload.size, training)
        if key not in self._workers:
            self._workers[key] = self.new_worker(*key)
        return self._workers[key]

    def forget(self) -> None:
        """Empties the caches of words, so that a measurement does not depend on those before it."""
        for (side, _, _), worker in self._workers.items():
            if side not in (ALLENNLP, SIMPLE_ELMO):
                worker.ask("forget")

    def workers(self, *sides: str) -> dict[str, Worker]:
        """Ours, which comes first, and those of the others that take part."""
        present = [side for side in sides if side not in (ALLENNLP, SIMPLE_ELMO) or side in self.peers]
        return {side: self.worker(side) for side in present}

    def race(
        self, workers: Mapping[str, Worker], batch_size: int, count: int, sentences: list[Sentence] | None = None
    ) -> dict[str, Any]:
        """Embeds the same sentences on every side in turn, other sentences each time.

        Args:
            workers: The sides; ratios are those of the first.
            batch_size: Sentences in a batch.
            count: Sentences in a run.
            sentences: Where they come from; by default the lines of 8 to 60 words.

        Returns:
            Words and seconds of every run, medians of words a second, and medians of the ratios of each run.
        """
        runs = self.workload.repeats + 1
        sentences = self.text.short_lines(runs * count) if sentences is None else sentences
        slices = batches(sentences, count)[:runs]
        for worker in workers.values():
            worker.ask("time", sentences=slices[0], batch_size=batch_size)
        seconds: dict[str, list[float]] = {side: [] for side in workers}
        for index, part in enumerate(slices[1:]):
            for side in sorted(workers, reverse=bool(index % 2)):
                seconds[side].append(workers[side].ask("time", sentences=part, batch_size=batch_size)["seconds"])
        return compare([count_words(part) for part in slices[1:]], seconds)

    def environment(self) -> dict[str, Any]:
        """The machine and the versions, for the record."""
        return {
            "processor": processor(),
            "bfloat16 instructions": any(flag in processor("flags") for flag in ("avx512_bf16", "amx_bf16")),
            "cores": os.cpu_count(),
            "threads": self.threads,
            "load before": self.load,
            "device": self.device,
            "fast paths off": os.environ.get("HF_ELMO_DISABLE", ""),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "text": self.text.path.name,
            "versions": {"torch": torch.__version__, "transformers": version("transformers"), **self.versions},
        }

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def __enter__(self) -> "Bench":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def compare(words: list[int], seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    """Medians over alternating runs.

    Args:
        words: Words of each run.
        seconds: Side -> seconds of each run; the first side is compared with the others.
    """
    first = next(iter(seconds))
    return {
        "words": words,
        "seconds": dict(seconds),
        "words_per_second": {
            side: median(count / taken for count, taken in zip(words, runs, strict=True))
            for side, runs in seconds.items()
        },
        "ratios": {
            side: median(other / own for other, own in zip(runs, seconds[first], strict=True))
            for side, runs in seconds.items()
            if side != first
        },
    }


def processor(field: str = "model name") -> str:
    """A field of the first processor in /proc/cpuinfo, or what Python knows where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    values = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == field)
    return next(values, platform.processor() if field == "model name" else "")


def print_shares(seconds: dict[str, float], unit: str, scale: float) -> None:
    """Prints the machine and, as a table, how the time is divided.

    Args:
        seconds: Of each part.
        unit: What the table gives beside the shares.
        scale: Units in a second.
    """
    whole = sum(seconds.values())
    print(f"{processor()}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}\n")
    print(f"| part | share | {unit} |\n|---|---|---|")
    for part, taken in seconds.items():
        print(f"| {part} | {taken / whole:.1%} | {scale * taken:.0f} |")
    print(f"| all | | {scale * whole:.0f} |")
