"""Corpora, jobs in processes that may be killed, and what they leave behind."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_elmo.embedding.job import JobSettings, run_job
from tests.saved_folders import save_folder

WORDS = ["the", "bank", "of", "river", "rose", "shares", ",", "naïve", "Мама", "日本", "don't", "e-mail", "/", "."]


def model_folder(folder: Path, **overrides: Any) -> Path:
    """A tiny model with its tokenizer."""
    return save_folder(folder, **overrides)


def corpus_lines(count: int, seed: int = 0) -> list[str]:
    """Lines of every kind: short, long, blank, equal ones."""
    chance = random.Random(seed)
    lines: list[str] = []
    for number in range(count):
        kind = chance.random()
        if kind < 0.1:
            lines.append("")
        elif kind < 0.2 and lines:
            lines.append(chance.choice(lines))
        else:
            length = 400 if number % 97 == 13 else chance.randint(1, 12)
            lines.append(" ".join(chance.choices(WORDS, k=length)))
    return lines


def write_lines(path: Path, lines: list[str]) -> Path:
    """Writes a text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their relative names."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run_in_child(task: Callable[[], Any]) -> multiprocessing.process.BaseProcess:
    """Starts a task in a child that is forked from here, so that it needs no import; the caller waits or kills."""
    # A fork, not a new interpreter: seconds of imports would hide the job from a kill.
    for name in ("datasets", "h5py", "pyarrow.parquet"):
        importlib.import_module(name)
    child = multiprocessing.get_context("fork").Process(target=task)
    child.start()
    return child


def job_in(folder: Path, settings: JobSettings, overwrite: bool = False) -> Callable[[], Any]:
    """A task that runs a job with `folder` as the working directory."""

    def task() -> None:
        os.chdir(folder)
        run_job(settings, overwrite=overwrite)

    return task


def killed_at(step: int, task: Callable[[], Any]) -> Callable[[], Any]:
    """A task that ends without any cleaning up when it is about to make, or rename, its n-th file or folder."""

    def killed() -> None:
        count = 0

        def watch(event: str, arguments: tuple) -> None:
            nonlocal count
            if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
                if count == step:
                    os._exit(9)
                count += 1

        sys.addaudithook(watch)
        task()

    return killed


def kill_after(child: multiprocessing.process.BaseProcess, seconds: float) -> None:
    """Kills a child outright after some time, or less where it has ended."""
    child.join(seconds)
    child.kill()
    child.join()


def seconds_of(task: Callable[[], Any]) -> float:
    """Runs a task in a child to its end; returns how long it took.

    Raises:
        AssertionError: It failed.
    """
    started = time.monotonic()
    child = run_in_child(task)
    child.join()
    assert child.exitcode == 0
    return time.monotonic() - started
