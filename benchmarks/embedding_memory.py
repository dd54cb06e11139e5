"""Memory and time of `hf-elmo embed` for corpora of growing size, with a small model: memory is to stay flat.

python benchmarks/embedding_memory.py --lines 10000 100000 1000000
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

ENDINGS = (".hdf5", ".parquet", ".npz", ".safetensors")
WORDS = [
    f"{first}{second}" for first in ("ba", "be", "ri", "ver", "lo", "no", "mi") for second in ("nk", "t", "ss", "")
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--outputs", nargs="+", default=list(ENDINGS), help="endings of outputs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model)
        print(f"{'output':10} {'lines':>10} {'peak memory':>12} {'seconds':>8} {'size':>9}")
        for ending in options.outputs:
            for lines in options.lines:
                source, output = Path(folder) / "in.txt", Path(folder) / f"out{ending}"
                write_corpus(source, lines)
                peak, seconds = measure([str(source), str(output), "--model", str(model), "--quiet"])
                size = size_of(output)
                print(
                    f"{ending:10} {lines:10,} {peak / 2**20:8.0f} MiB {seconds:8.0f} {size / 2**20:5.0f} MiB",
                    flush=True,
                )
                remove(output)


def write_model(folder: Path) -> None:
    from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer

    sizes = {"character_embedding_size": 4, "filters": [[1, 4], [2, 4]], "projection_size": 4, "cell_size": 8}
    ElmoModel(ElmoConfig(**sizes, num_highway_layers=1, num_hidden_layers=1)).save_pretrained(folder)
    ElmoTokenizer().save_pretrained(folder)


def write_corpus(path: Path, lines: int) -> None:
    """Random lines of 0 to 10 words, blank ones and equal ones among them."""
    chance = random.Random(7)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(lines):
            file.write(" ".join(chance.choices(WORDS, k=chance.randint(0, 10))) + "\n")


def size_of(output: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = output.iterdir() if output.is_dir() else [output]
    return sum(path.stat().st_size for path in files)


def remove(output: Path) -> None:
    """Removes an output and its manifest."""
    if output.is_dir():
        shutil.rmtree(output)
    else:
        output.unlink()
        output.with_name(output.name + ".manifest.json").unlink()


def measure(arguments: list[str]) -> tuple[int, float]:
    """Runs `hf-elmo embed` in a process of its own: its peak memory in bytes, and seconds."""
    started = time.monotonic()
    code = "import sys; from hf_elmo.cli import app; app(['embed', *sys.argv[1:]])"
    child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code, *arguments])
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"hf-elmo embed failed with status {os.waitstatus_to_exitcode(status)}")
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_maxrss * unit, time.monotonic() - started


if __name__ == "__main__":
    main()
