"""AllenNLP and this package side by side: the largest difference of any layer, and the ratio of speed.

Both sides run in processes of their own, on the same weights and sentences, in turn. Run it in the environment of
this package; --peer names the Python of an environment with AllenNLP 2.10.1, and --stub the folder of the module
`allennlp_stub` that lets its ELMo run without the rest.

    python benchmarks/against_allennlp.py --peer ../peer-allennlp/bin/python
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentences import read_sentences

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.conversion import convert_checkpoint, export_checkpoint

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[1] / "shared"


class Worker:
    """A side in a process of its own."""

    def __init__(self, python: str, script: str, folder: Path, path: Path = HERE) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(path)]), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [python, str(HERE / script), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.read()

    def read(self) -> dict[str, Any]:
        """The next answer; anything else that the side prints is passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{' '.join(map(str, self.process.args))} ended without an answer; see its messages above.")

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()


def prepare_checkpoint(work: Path, size: str) -> tuple[Path, Path]:
    """A random checkpoint of a published size in the original layout, and its conversion; kept for the next run."""
    original, converted = work / f"{size}-original", work / f"{size}-converted"
    if not original.exists():
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            ElmoModel(ElmoConfig.from_size(size)).save_pretrained(folder)
            ElmoTokenizer().save_pretrained(folder)
            export_checkpoint(folder, original)
    if not converted.exists():
        convert_checkpoint(original, converted)
    return original, converted


def largest_differences(ours: Worker, theirs: Worker, sentences: list[list[str]]) -> list[float]:
    """For each layer, the largest absolute difference over all words."""
    with tempfile.TemporaryDirectory() as folder:
        sides = []
        for name, worker in (("ours", ours), ("theirs", theirs)):
            path = f"{folder}/{name}.npz"
            worker.ask(do="layers", sentences=sentences, path=path)
            with np.load(path) as arrays:
                sides.append([arrays[f"arr_{index}"] for index in range(len(sentences))])
    differences = [np.abs(a - b).max(axis=(1, 2)) for a, b in zip(*sides, strict=True)]
    return np.max(differences, axis=0).tolist()


def main() -> None:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="Python of an environment with AllenNLP 2.10.1")
    parser.add_argument("--stub", type=Path, default=SHARED / "peers", help="folder with allennlp_stub.py")
    parser.add_argument("--text", type=Path, default=SHARED / "data/wikitext2/valid.txt", help="sentences, one a line")
    parser.add_argument("--size", default="original", help="small, medium or original")
    parser.add_argument(
        "--work", type=Path, default=HERE.parent / "build" / "benchmarks", help="checkpoints kept here"
    )
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each side, after one that is not timed")
    parser.add_argument("--words", type=int, default=2000, help="words a timed run, about")
    arguments = parser.parse_args()

    original, converted = prepare_checkpoint(arguments.work, arguments.size)
    ours = Worker(sys.executable, "worker_hf_elmo.py", converted)
    theirs = Worker(arguments.peer, "worker_allennlp.py", original, arguments.stub)

    compared = read_sentences(arguments.text, 32)
    layers = largest_differences(ours, theirs, compared)
    print(f"Largest difference over {sum(map(len, compared))} words, {arguments.size} size, float32:")
    print("  " + ", ".join(f"layer {index}: {value:.1e}" for index, value in enumerate(layers)))

    print(f"Words a second on {torch.get_num_threads()} threads, median of {arguments.repeat} alternating runs:")
    for batch_size in (32, 1):
        sentences = read_sentences(arguments.text, 128 if batch_size == 32 else 24)
        while batch_size < len(sentences) and sum(map(len, sentences)) > arguments.words:
            sentences = sentences[:-batch_size]
        words = sum(map(len, sentences))
        request = {"do": "time", "sentences": sentences, "batch_size": batch_size}
        runs = [[worker.ask(**request)["seconds"] for worker in (ours, theirs)] for _ in range(arguments.repeat + 1)][
            1:
        ]
        mine, peers = (words / statistics.median(run[side] for run in runs) for side in (0, 1))
        ratio = statistics.median(run[1] / run[0] for run in runs)
        print(f"  {batch_size:3} a batch: hf_elmo {mine:6.0f}, AllenNLP {peers:6.0f}, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
