"""A data set to a folder of Arrow files with layers, going on where it stopped."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..conversion.staging import hold, nearest_existing
from ..embedding.batching import is_out_of_memory
from ..embedding.embedder import first_line
from ..embedding.errors import ChangedError, OutputError, reason
from ..embedding.formats import MANIFEST
from ..embedding.manifest import check_same, digest, new_manifest, read_manifest, write_json
from ..embedding.shards import UNFINISHED, ShardRecord, written_aside
from .frozen_bilm import Bilm
from .layer_rows import LAYERS, Rows, Split, sentence_case


class LayerJob:
    """One call of `precompute_layers`.

    Args:
        dataset: As of `precompute_layers`.
        bilm: The model.
        output: The folder.
        dtype: As of `precompute_layers`.
        shard_words: As of `precompute_layers`.
        overwrite: As of `precompute_layers`.

    Raises:
        ValueError: The data set is none, or not tokenized for this model.
    """

    def __init__(self, dataset: Any, bilm: Bilm, output: Path, dtype: str, shard_words: int, overwrite: bool) -> None:
        from datasets import Dataset

        if isinstance(dataset, Mapping):
            self.splits: dict[str, Split] = {
                str(name): Split(split, str(name), bilm.reads) for name, split in dataset.items()
            }
        elif isinstance(dataset, Dataset):
            self.splits = {"": Split(dataset, None, bilm.reads)}
        else:
            raise ValueError(
                f"precompute_layers takes a Dataset or a DatasetDict, not {type(dataset).__name__}; an iterable data "
                "set has to be kept in files first."
            )
        self.has_splits = isinstance(dataset, Mapping)
        self.bilm, self.dtype, self.shard_words, self.overwrite = bilm, dtype, shard_words, overwrite
        self.output = Path(os.path.abspath(output))
        self.work = self.output.with_name(self.output.name + ".unfinished")
        self.done: dict[Path, ShardRecord] = {}

    def run(self) -> Any:
        """Does the job, and reads the result."""
        from datasets import load_from_disk

        parent = nearest_existing(self.output.parent)
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise OutputError(f"The output {self.output} cannot be written: {parent} is no folder to write in.")
        if self.overwrite:
            self._remove_old()
        self.manifest = self._new_manifest()
        if not self._is_complete():
            self._compute()
        return load_from_disk(str(self.output))

    def _new_manifest(self) -> dict[str, Any]:
        options = {
            "dtype": self.dtype,
            "shard_words": self.shard_words,
            "batch_words": self.bilm.batch_words_given,
            "precision": self.bilm.precision,
            "pairs": self.bilm.reads.pairs,
            "splits": list(self.splits) if self.has_splits else None,
        }
        return new_manifest(self.bilm.name, self.bilm.fingerprint(), options, torch.get_num_threads())

    def _compute(self) -> None:
        """Computes what is missing, and makes the folder.

        Raises:
            ChangedError: What is there was begun otherwise.
            OutputError: The output cannot be written.
        """
        lock = None
        try:
            lock = self._open_work_folder()
            self._compute_shards()
            self._finish()
        except (OutputError, MemoryError) as error:
            raise type(error)(f"{error}{self._kept()}") from error
        except OSError as error:
            raise OutputError(f"{self.work} cannot be used: {reason(error)}.{self._kept()}") from error
        finally:
            if lock is not None:
                if self.work.is_dir() and not self.done:
                    shutil.rmtree(self.work, ignore_errors=True)
                os.close(lock)

    def _compute_shards(self) -> None:
        from datasets.utils import tqdm

        from ..embedding.arrow_tables import with_record, write_stream

        total = sum(int(split.lengths.sum()) for split in self.splits.values())
        there = sum(record.words for record in self.done.values())
        self.input = hashlib.sha256()
        with tqdm(total=total, initial=there, unit=" words", unit_scale=True, desc="Computing layers") as bar:
            for name, split in self.splits.items():
                (self.work / name).mkdir(exist_ok=True)
                schema = split.features(self.dtype).arrow_schema
                for path, record, rows in self._windows(name, split):
                    self.input.update(record.input.encode("ascii"))
                    if path in self.done:
                        self._check_same_rows(self.done[path], record, split)
                        continue
                    table = split.table_of(rows, self._layers_of(rows, split, record), schema)
                    with written_aside(path) as aside:
                        write_stream(aside, table.cast(with_record(schema, record)))
                    self.done[path] = record
                    bar.update(record.words)

    def _windows(self, name: str, split: Split) -> Iterator[tuple[Path, ShardRecord, Rows]]:
        """The shards of a split: the file, what it says of itself, and what it is made from."""
        for index, window in enumerate(split.windows(self.shard_words)):
            rows = split.read(window)
            path = self.work / name / f"part-{index:08d}.arrow"
            words = len(rows.ids)
            yield (
                path,
                ShardRecord(self.manifest["job"], index, window.start, len(window), words, rows.fingerprint()),
                rows,
            )

    def _layers_of(self, rows: Rows, split: Split, record: ShardRecord) -> np.ndarray:
        """The layers of a window.

        Raises:
            MemoryError: There is too little memory for it.
        """
        try:
            return self.bilm.layers_of(rows, self.dtype)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryError(
                f"Memory ran out in {split.title}, rows {record.first_line} to "
                f"{record.first_line + record.lines - 1}: take a smaller shard_words than {self.shard_words:,}, or "
                f"shorter texts ({first_line(error)})."
            ) from error

    def _check_same_rows(self, old: ShardRecord, new: ShardRecord, split: Split) -> None:
        if (old.input, old.first_line, old.lines) != (new.input, new.first_line, new.lines):
            raise ChangedError(
                f"The rows {old.first_line} to {old.first_line + old.lines - 1} of {split.title} are not those with "
                f"which {self.output} was begun: give the same data, another output_dir, or overwrite=True to start "
                "anew."
            )

    def _is_complete(self) -> bool:
        """Whether the output is there, of this model, these settings and these data.

        Raises:
            ChangedError: It is there, but not of these.
        """
        finished = read_manifest(self.output / MANIFEST)
        if finished is None or not finished["complete"]:
            if self.output.exists() and not is_empty_folder(self.output):
                raise ChangedError(f"{self.output} exists and was not written by precompute_layers; choose another.")
            return False
        self._check_same(finished)
        found = hashlib.sha256()
        for name, split in self.splits.items():
            for _, record, _ in self._windows(name, split):
                found.update(record.input.encode("ascii"))
        if found.hexdigest() != finished["input"]["fingerprint"]:
            raise ChangedError(
                f"{self.output} is finished, but of other data: give the same data, another output_dir, or "
                "overwrite=True to start anew."
            )
        return True

    def _check_same(self, old: dict[str, Any]) -> None:
        check_same(old, self.manifest, str(self.output), anew="overwrite=True", name_of=str)

    def _open_work_folder(self) -> int | None:
        """Makes the folder for the shards, or opens that of an earlier start; returns its lock."""
        self.work.mkdir(parents=True, exist_ok=True)
        lock = self._hold(self.work)
        try:
            for leftover in self.work.rglob(f"*{UNFINISHED}"):
                leftover.unlink()
            old = read_manifest(self.work / MANIFEST)
            if old is None:
                write_json(self.work / MANIFEST, self.manifest)
                return lock
            self._check_same(old)
            for path in sorted(self.work.rglob("part-*.arrow")):
                self._take_up(path)
        except BaseException:
            # It stays as it is: `_compute` removes only what it holds.
            if lock is not None:
                os.close(lock)
            raise
        return lock

    def _take_up(self, path: Path) -> None:
        """Takes a shard of an earlier start for done; one that is damaged is made again."""
        from ..embedding.arrow_tables import read_stream_record

        try:
            record = read_stream_record(path)
        except (ValueError, OSError):
            record = None
        if record is None or record.job != self.manifest["job"] or path.name != f"part-{record.index:08d}.arrow":
            path.unlink()
        else:
            self.done[path] = record

    def _kept(self) -> str:
        """What to say of the work that is done when a run stops."""
        if not self.done:
            return ""
        words = sum(record.words for record in self.done.values())
        return f" {words:,} words are done and kept in {self.work}: the same call goes on from there."

    def _finish(self) -> None:
        """Makes the output of the shards, under its name only when it is whole.

        Raises:
            ChangedError: There are shards of rows that the data do not have any more.
        """
        from ..embedding.write_dataset import write_dataset_files

        found = self.input.hexdigest()
        for name, split in self.splits.items():
            folder = self.work / name
            shards = [folder / f"part-{index:08d}.arrow" for index in range(len(split.windows(self.shard_words)))]
            if set(folder.glob("part-*.arrow")) != set(shards):
                raise ChangedError(
                    f"{sentence_case(split.title)} has become shorter since {self.output} was begun: give the same "
                    "data, another output_dir, or overwrite=True to start anew."
                )
            write_dataset_files(
                folder,
                shards,
                split.features(self.dtype),
                digest([self.manifest["job"], found, name]),
                None if split.dataset.split is None else str(split.dataset.split),
                (LAYERS, {"dtype": self.dtype}),
            )
        if self.has_splits:
            write_json(self.work / "dataset_dict.json", {"splits": list(self.splits)})
        words = sum(record.words for record in self.done.values())
        complete = {**self.manifest, "complete": True, "words": words, "input": {"fingerprint": found}}
        write_json(self.work / MANIFEST, complete)
        if is_empty_folder(self.output):
            self.output.rmdir()
        os.replace(self.work, self.output)

    def _remove_old(self) -> None:
        """Removes what precompute_layers wrote under this name before, and nothing else."""
        try:
            for folder in (self.output, self.work):
                if read_manifest(folder / MANIFEST) is not None:
                    lock = self._hold(folder)
                    shutil.rmtree(folder)
                    if lock is not None:
                        os.close(lock)
        except OSError as error:
            raise OutputError(f"{self.output} cannot be removed: {reason(error)}.") from error

    def _hold(self, folder: Path) -> int | None:
        """Locks a folder until the descriptor that is returned is closed.

        Raises:
            ChangedError: Somebody else has it.
        """
        try:
            return hold(folder)
        except OSError as error:
            raise ChangedError(f"{self.output} is being written by another run right now.") from error


def is_empty_folder(path: Path) -> bool:
    """Whether a path is a folder without anything in it."""
    return path.is_dir() and not any(path.iterdir())


__all__ = ["LayerJob"]
