"""Words a second of `hf-elmo embed` with one and with two workers of one thread each: processes, and actors on Ray.

python benchmarks/embedding_scaling.py
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import processor
from checkpoints import make_checkpoint
from run import SENTENCES, WORK
from sentences import Text, count_words, take_words

from hf_elmo.embedding.engines import Engine
from hf_elmo.embedding.job import Progress, run_job
from hf_elmo.embedding.processes import Processes
from hf_elmo.embedding.settings import JobSettings

# Of the words, the part that is timed: before it workers are still being started, after it some have no more to do.
FROM, TO = 0.25, 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small", help="weights: original, medium, small or tiny")
    parser.add_argument("--words", type=int, default=40_000)
    parser.add_argument("--engines", nargs="+", default=["processes", "ray"], choices=["processes", "ray"])
    options = parser.parse_args()
    model = make_checkpoint(WORK, options.size).converted
    sentences = take_words(Text(SENTENCES).sentences(), options.words)
    print(f"{count_words(sentences):,} words, {options.size} size, 1 thread a worker, {processor()}")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.txt"
        source.write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")
        for name in options.engines:
            speeds = []
            for count in (1, 2):
                settings = JobSettings(
                    str(source), f"{folder}/{name}-{count}.safetensors", str(model), pretokenized=True, shard_lines=20,
                    threads=1,
                )  # fmt: skip
                speeds.append(speed(settings, engine(name)(count), count_words(sentences)))
                print(f"{name:10} {count} {speeds[-1]:10,.0f} words/s", flush=True)
            print(f"{name:10} ratio {speeds[1] / speeds[0]:.2f}", flush=True)


def engine(name: str) -> Callable[[int], Engine]:
    """The engine of a name."""
    if name == "processes":
        return Processes
    from hf_elmo.embedding.on_ray import RayData

    return RayData


def speed(settings: JobSettings, where: Engine, words: int) -> float:
    """Words a second while all workers are at work."""
    moments: list[tuple[int, float]] = []

    def watch(progress: Progress) -> None:
        moments.append((progress.new_words, time.perf_counter()))

    run_job(settings, watch, engine=where)
    timed = [moment for moment in moments if FROM * words <= moment[0] <= TO * words]
    (first, start), (last, end) = timed[0], timed[-1]
    return (last - first) / (end - start)


if __name__ == "__main__":
    main()
