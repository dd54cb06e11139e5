"""A corpus to files of vectors: reader -> chunks -> embedded -> shards -> output, going on where it stopped.

The chunks are cut by the lines of the input and the options alone, and the batches inside a chunk by the chunk alone.
So a shard has the same bytes whoever writes it and whenever; an engine only decides where `ChunkEmbedder` is called.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..conversion.staging import hold
from .chunks import OpenChunks
from .engines import Engine, ThisProcess
from .errors import GUARD, ChangedError, InputError, OutputError, WorkerError, reason
from .formats import MANIFEST
from .manifest import check_same, model_fingerprint, new_manifest, read_manifest
from .readers import Reader
from .settings import JobSettings, check_settings, output_format
from .shards import UNFINISHED, ShardRecord, write_json, written_aside
from .worker import WorkerRecipe

REMOVED = ".removed-"  # a folder that is being removed is called .OUTPUT.removed-...
LISTED = 1000  # lines that were skipped and are named in the manifest; all are counted


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes:
        lines: Lines done.
        words: Words done.
        new_words: Words done since this start.
        fraction: How much of the input has been read, 0 to 1, or None.
        assembling: How many shards are in the final file, and of how many; None before.
    """

    lines: int
    words: int
    new_words: int
    fraction: float | None
    assembling: tuple[int, int] | None = None


@dataclass
class JobReport:
    """What was done.

    Attributes:
        output: The file or folder.
        lines: Lines of the input.
        words: Words of the input.
        skipped: Lines that could not be embedded, each with the reason; the first of them.
        skipped_count: How many these are in all.
        resumed_lines: Lines that an earlier start had done.
        was_complete: Whether there was nothing left to do.
    """

    output: Path
    lines: int = 0
    words: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)
    skipped_count: int = 0
    resumed_lines: int = 0
    was_complete: bool = False


def run_job(
    settings: JobSettings,
    report_progress: Callable[[Progress], None] = lambda progress: None,
    overwrite: bool = False,
    engine: Engine | None = None,
) -> JobReport:
    """Embeds a corpus, or goes on where an earlier start stopped.

    Args:
        settings: What is to be done.
        report_progress: Called now and then.
        overwrite: Remove what is there of this output, finished or not, and start anew.
        engine: Where the chunks are embedded; in this process by default.

    Raises:
        InputError: The input cannot be read or used.
        ChangedError: Model, input or options are not those with which the output was begun.
        OutputError: The output cannot be written.
        SettingError: A setting is wrong.
        ValueError: The model cannot be loaded; or a script calls this outside of `if __name__ == "__main__":`, and a
            worker of its own runs it again.
        MemoryError: There is too little memory for a chunk.
        WorkerError: A process or machine that embeds could not do its part.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ValueError(GUARD)
    engine = engine or ThisProcess()
    check_settings(settings)
    engine.check(settings)
    with contextlib.closing(settings.open_reader()) as reader, engine:
        return Job(settings, reader, report_progress, overwrite, engine).run()


class Job:
    """One start of a job.

    Args:
        settings: What is to be done.
        reader: The input, open.
        report_progress: Called now and then.
        overwrite: Remove what is there of this output first.
        engine: Where the chunks are embedded, ready.
    """

    def __init__(
        self,
        settings: JobSettings,
        reader: Reader,
        report_progress: Callable[[Progress], None],
        overwrite: bool,
        engine: Engine,
    ) -> None:
        self.reader = reader
        self.report_progress = report_progress
        self.engine = engine
        self.output = Path(os.path.abspath(settings.output))
        self.work = self.output.with_name(self.output.name + ".unfinished")
        old = None if overwrite else read_manifest(self.work / MANIFEST)
        settings = settings.settled(engine.default_device(), old["threads"] if old else engine.default_threads())
        self.settings = settings
        # Where others compute, this process needs the model only to tell it from others.
        embedder = settings.load(None if engine.uses_this_process else "cpu")
        selection = embedder.select(settings.layers, settings.pool, settings.boundaries)
        self.format = output_format(settings, embedder, selection)
        self.final_manifest = (
            self.output / MANIFEST
            if self.format.keeps_shards
            else self.output.with_name(f"{self.output.name}.{MANIFEST}")
        )
        if overwrite:
            self._remove_old()
        assert settings.threads is not None
        self.manifest = new_manifest(
            settings.model,
            model_fingerprint(embedder.model, embedder.tokenizer),
            settings.options(selection, embedder.model.dtype),
            settings.threads,
        )
        self.added_rows = sum(embedder.boundary_counts) if settings.boundaries else 0  # for each line
        self.embedder = embedder if engine.uses_this_process else None
        self.report = JobReport(self.output)
        self.done: dict[int, ShardRecord] = {}
        self.new_words = 0

    def run(self) -> JobReport:
        """Does the job."""
        self._remove_leftovers()
        if self._is_complete():
            return self.report
        lock = None
        try:
            lock = self._open_work_folder()
            self._embed()
            self._finish()
        except WorkerError as error:
            raise WorkerError(f"{error}{self._kept()}", error.details) from error
        except (InputError, OutputError, MemoryError) as error:
            raise type(error)(f"{error}{self._kept()}") from error
        except OSError as error:
            raise OutputError(f"{self.work} cannot be used: {reason(error)}.{self._kept()}") from error
        finally:
            if lock is not None and self.work.is_dir():
                self._remove_unfinished()
                if not self.done and not any(self.work.glob("part-*")):
                    shutil.rmtree(self.work, ignore_errors=True)
            if lock is not None:
                os.close(lock)
        return self.report

    def _embed(self) -> None:
        """Has everything embedded that has no shard yet."""
        source = (self.reader.source.name, self.reader.unit)
        recipe = WorkerRecipe(
            self.settings, self.manifest["job"], self.work, source, self.manifest["model_fingerprint"]
        )
        for record in self.done.values():
            self.report.resumed_lines += record.lines
            self._count(record)
        chunks = OpenChunks(self.settings, self.reader, self.done, lambda: self._show(chunks.fraction))
        self._show(chunks.fraction)
        with contextlib.closing(self.engine.embed(recipe, chunks, self.embedder)) as records:
            for record in records:
                self.done[record.index] = record
                self.new_words += record.words
                self._count(record)
                self._show(chunks.fraction)
        if not chunks.count:
            raise InputError(f"The input {self.reader.source.name} is empty: there is nothing to embed.")
        if any(index >= chunks.count for index in self.done):
            raise ChangedError(
                f"The input {self.reader.source.name} has become shorter since {self.settings.output} was begun. Give "
                "the same input, another output, or --overwrite to start anew."
            )
        if len(self.done) < chunks.count:
            raise WorkerError(f"{chunks.count - len(self.done):,} of {chunks.count:,} shards were not written.")

    def _count(self, record: ShardRecord) -> None:
        self.report.lines += record.lines
        self.report.words += record.words
        self.report.skipped_count += len(record.skipped)

    def _show(self, fraction: float | None, assembling: tuple[int, int] | None = None) -> None:
        report = self.report
        self.report_progress(Progress(report.lines, report.words, self.new_words, fraction, assembling))

    def _is_complete(self) -> bool:
        """Whether the output is there, of this model, these options and this input.

        Raises:
            ChangedError: It is there, but not of these.
        """
        unfinished = read_manifest(self.work / MANIFEST)
        finished = read_manifest(self.final_manifest)
        if finished is None or not finished["complete"]:
            if self.output.exists() and unfinished is None and not is_empty_folder(self.output):
                raise ChangedError(
                    f"{self.settings.output} exists and was not written by this command; choose another."
                )
            return False
        if not self.output.exists():
            self.final_manifest.unlink()
            return False
        check_same(finished, self.manifest, self.settings.output)
        chunks = OpenChunks(self.settings, self.reader, {})
        if input_fingerprint(chunk.input for chunk in chunks) != finished["input"]["fingerprint"]:
            raise ChangedError(
                f"{self.settings.output} is finished, but of another input than {self.reader.source.name} is now. "
                "Choose another output, or --overwrite to start anew."
            )
        with contextlib.suppress(ChangedError, OSError), self._work_held():
            self._remove_folder(self.work)
        self.report = JobReport(
            self.output,
            finished["lines"],
            finished["words"],
            [(line, why) for line, why in finished["skipped"]["first"]],
            finished["skipped"]["count"],
            finished["lines"],
            was_complete=True,
        )
        return True

    def _open_work_folder(self) -> int | None:
        """Makes the folder for the shards, or opens that of an earlier start; returns its lock."""
        self.work.mkdir(parents=True, exist_ok=True)
        try:
            lock = hold(self.work)
        except OSError as error:
            raise ChangedError(f"{self.settings.output} is being written by another run right now.") from error
        self._remove_unfinished()
        old = read_manifest(self.work / MANIFEST)
        if old is None:
            write_json(self.work / MANIFEST, self.manifest)
            return lock
        try:
            check_same(old, self.manifest, self.settings.output)
            if old["threads"] != self.settings.threads:
                raise ChangedError(
                    f"{self.settings.output} was begun with --threads {old['threads']}, and another number rounds "
                    "otherwise: use the same, or none."
                )
        except ChangedError:
            # It stays as it is; `run` removes only what it began.
            if lock is not None:
                os.close(lock)
            raise
        self.manifest = {**old, "complete": False}
        for path in sorted(self.work.glob(f"part-*{self.format.shard_ending}")):
            self._take_up(path)
        return lock

    def _take_up(self, path: Path) -> None:
        """Takes a shard of an earlier start for done; one that is damaged is made again."""
        try:
            record = self.format.read_record(path)
        except (ValueError, OSError):
            record = None
        if record is None or record.job != self.manifest["job"] or self.format.shard_name(record.index) != path.name:
            path.unlink()
        else:
            self.done[record.index] = record

    def _remove_unfinished(self) -> None:
        """Removes what a worker was writing when it was ended."""
        for leftover in self.work.glob(f"*{UNFINISHED}"):
            leftover.unlink(missing_ok=True)

    def _kept(self) -> str:
        """What to say of the work that is done when a run stops."""
        if not self.done:
            return ""
        lines = sum(record.lines for record in self.done.values())
        return f" {lines:,} {self.reader.unit}s are done and kept in {self.work}: the same command goes on from there."

    def _finish(self) -> None:
        """Makes the output of the shards, under its name only when it is whole."""
        records = [self.done[index] for index in range(len(self.done))]
        shards = [self.work / self.format.shard_name(record.index) for record in records]
        self._check_shards(records, shards)
        skipped = [entry for record in records for entry in record.skipped]
        self.report.skipped = skipped[:LISTED]
        complete = {
            **self.manifest,
            "complete": True,
            "lines": self.report.lines,
            "words": self.report.words,
            "rows": self.report.words + self.added_rows * self.report.lines,
            "input": {
                "name": self.reader.source.name,
                "fingerprint": input_fingerprint(record.input for record in records),
            },
            "skipped": {"count": self.report.skipped_count, "first": self.report.skipped},
        }
        self._remove_unfinished()
        if self.format.keeps_shards:
            self.format.complete_folder(self.work, shards, complete)
            write_json(self.work / MANIFEST, complete)
            if is_empty_folder(self.output):
                self.output.rmdir()
            os.replace(self.work, self.output)
            return
        with written_aside(self.work / self.output.name) as path:
            for done in self.format.merge(shards, path, complete):
                self._show(1.0, (done, len(shards)))
        os.replace(self.work / self.output.name, self.output)
        write_json(self.final_manifest, complete)
        self._remove_folder(self.work)

    def _check_shards(self, records: list[ShardRecord], shards: list[Path]) -> None:
        """Refuses to complete an output whose shards were changed while the job ran.

        Raises:
            OutputError: One is gone, damaged or of another job.
        """
        for record, path in zip(records, shards, strict=True):
            try:
                found = self.format.read_record(path)
            except (ValueError, OSError) as error:
                raise OutputError(f"The shard {path.name} was removed or damaged while the job ran.") from error
            if (found.job, found.input) != (self.manifest["job"], record.input):
                raise OutputError(f"The shard {path.name} was changed by another job while this one ran.")

    @contextlib.contextmanager
    def _work_held(self) -> Iterator[None]:
        """Keeps other runs out of the folder for the shards, if there is one.

        Raises:
            ChangedError: A run is writing there.
        """
        lock = None
        with contextlib.suppress(FileNotFoundError):
            try:
                lock = hold(self.work)
            except BlockingIOError as error:
                raise ChangedError(f"{self.settings.output} is being written by another run right now.") from error
        try:
            yield
        finally:
            if lock is not None:
                os.close(lock)

    def _remove_old(self) -> None:
        """Removes what this command wrote under this name before, and nothing else.

        Raises:
            ChangedError: A run is writing it.
            OutputError: It cannot be removed.
        """
        try:
            with self._work_held():
                ours = read_manifest(self.final_manifest) is not None
                if self.output.is_dir() and ours and self.format.keeps_shards:
                    self._remove_folder(self.output)
                unfinished = read_manifest(self.work / MANIFEST) is not None
                # A run that was ended as soon as the file was there has left its folder, and no manifest beside it.
                if self.output.is_file() and (ours or unfinished) and not self.format.keeps_shards:
                    self.output.unlink()
                    self.final_manifest.unlink(missing_ok=True)
                if unfinished:
                    self._remove_folder(self.work)
        except OSError as error:
            raise OutputError(f"{self.output} cannot be removed: {reason(error)}.") from error

    def _remove_folder(self, folder: Path) -> None:
        """Removes a folder of ours under another name, so that nobody takes the rest of it for an output.

        Raises:
            OSError: It cannot be renamed.
        """
        if folder.is_symlink():
            raise OSError("it is a symbolic link")
        if folder.is_dir():
            aside = self.output.with_name(f".{self.output.name}{REMOVED}{secrets.token_hex(4)}")
            os.replace(folder, aside)
            # What an end in the middle leaves, the next run for this output removes.
            shutil.rmtree(aside, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Removes what was being removed when a run was ended."""
        with contextlib.suppress(OSError):
            for folder in self.output.parent.iterdir():
                if folder.name.startswith(f".{self.output.name}{REMOVED}"):
                    shutil.rmtree(folder, ignore_errors=True)


def input_fingerprint(chunks: Iterable[str]) -> str:
    """The SHA-256 of an input, from the fingerprints of its chunks in order."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk.encode("ascii"))
    return digest.hexdigest()


def is_empty_folder(path: Path) -> bool:
    """Whether a path is a folder without anything in it."""
    return path.is_dir() and not any(path.iterdir())
