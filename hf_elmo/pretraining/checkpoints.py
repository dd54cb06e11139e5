"""Checkpoints that appear whole or not at all, and where the data stood when they were written."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

# Where a checkpoint is written before it gets its name. The next run for the same folder removes what a kill left.
UNFINISHED = ".unfinished"
# The log of the trainer, in a checkpoint and beside the model.
TRAINER_STATE = TRAINER_STATE_NAME


@contextlib.contextmanager
def staged_checkpoint(output: Path, name: str, is_main: bool, wait_for_everyone: Callable[[], None]) -> Iterator[Path]:
    """A folder that becomes `output/name` when the block ends in every process, and vanishes when it fails.

    The last step is a rename after everything is on the disk, so that a checkpoint that can be seen is complete: a
    full disk, a kill or a power cut at any moment costs no more than what was done since the checkpoint before.

    Args:
        output: The folder of the run.
        name: The checkpoint's name in it.
        is_main: Whether this process makes, renames and removes folders for all.
        wait_for_everyone: Returns when all processes have called it.

    Yields:
        The folder to write to, `output/.unfinished/name`.

    Raises:
        OSError: The checkpoint could not be written; nothing of it is left, and those before are untouched.
    """
    staging, final = output / UNFINISHED, output / name
    try:
        if is_main:
            shutil.rmtree(staging, ignore_errors=True)
            (staging / name).mkdir(parents=True)
        wait_for_everyone()
        yield staging / name
        wait_for_everyone()
        if is_main:
            write_through(staging / name)
            if final.exists():
                final.rename(staging / "replaced")
            (staging / name).rename(final)
            sync_folder(output)
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise OSError(
            f"Writing the checkpoint {final} failed: {reason}. Earlier checkpoints are untouched; make room and run"
            " the same command again to go on from the last one."
        ) from error
    finally:
        if is_main:
            shutil.rmtree(staging, ignore_errors=True)


def write_through(folder: Path) -> None:
    """Has the system put every file of a folder on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Has the system put the names in a folder on the disk, where it can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def position_file(folder: Path, process: int) -> Path:
    """The file of a checkpoint that holds where a process stood in its data, and its LSTM states."""
    return folder / f"position_{process}.pt"


def save_position(folder: Path, process: int, processes: int, position: dict[str, Any]) -> None:
    """Writes where a process stands."""
    torch.save({**position, "processes": processes}, position_file(folder, process))


def load_position(folder: Path, process: int, processes: int) -> dict[str, Any]:
    """Reads what `save_position` wrote.

    Raises:
        ValueError: The checkpoint was not written by `ElmoPreTrainer`, or by another number of processes.
    """
    path = position_file(folder, process)
    if not position_file(folder, 0).is_file():
        raise ValueError(f"{folder} does not say where its data stood ({path.name} is missing): it cannot be resumed.")
    written_by = torch.load(position_file(folder, 0), weights_only=True)["processes"]
    if written_by != processes:
        raise ValueError(
            f"{folder} was written by {written_by} processes, each with its own streams, and can be resumed by as many"
            f" only, not by {processes}: start it with torchrun --nproc-per-node {written_by}."
        )
    return torch.load(path, map_location="cpu", weights_only=True)


def last_checkpoint(output: Path) -> Path | None:
    """The newest complete checkpoint of a run's folder, or None."""
    found = [
        (int(folder.name.rpartition("-")[2]), folder)
        for folder in output.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if folder.is_dir() and folder.name.rpartition("-")[2].isdigit()
    ]
    return max(found)[1] if found else None
