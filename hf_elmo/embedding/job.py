"""A corpus to files of vectors: reader -> chunks -> embedded -> shards -> output, going on where it stopped.

The chunks are cut by the lines of the input and the options alone, and the batches inside a chunk by the chunk alone.
So a shard has the same bytes whoever writes it and whenever; an engine only decides where `ChunkEmbedder` is called.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..conversion.staging import hold, nearest_existing
from .batching import grouped, is_out_of_memory
from .embedder import ElmoEmbedder
from .errors import ChangedError, InputError, OutputError, reason
from .formats import MANIFEST, OutputFormat, Shape, format_for
from .manifest import check_same, model_fingerprint, new_manifest, read_manifest
from .readers import Line, Reader, fingerprint, format_of, open_reader
from .selection import Layers, Selection
from .shards import (
    UNFINISHED,
    Chunk,
    EmbeddedChunk,
    ShardRecord,
    stacked,
    stored,
    write_json,
    written_aside,
)

SHARD_LINES, SHARD_LETTERS = 1000, 1 << 17
MOST_WORDS, MOST_LINE_BYTES = 100_000, 1 << 20
LISTED = 1000  # lines that were skipped and are named in the manifest; all are counted


@dataclass(frozen=True)
class JobSettings:
    """What is to be done.

    Attributes:
        input: The file, or `-`.
        output: The file or folder; its ending says the format.
        model: The folder or repository.
        layers: As of `ElmoEmbedder.embed`.
        pool: As of `ElmoEmbedder.embed`.
        boundaries: As of `ElmoEmbedder.embed`.
        dtype: `float32`, `float16` or `bfloat16`, as written.
        layout: `allennlp` or `elmoformanylangs`, of HDF5.
        keep_shards: Write a folder of Parquet files, not one file.
        input_format: One of `READERS`; by the ending of the input by default.
        column: Where the sentences are, in formats with columns.
        pretokenized: Whether texts are words with blanks between them.
        on_error: `stop` at a line that cannot be used, or `skip` it.
        most_words: The longest sentence.
        most_line_bytes: The longest line.
        shard_lines: Lines of a shard.
        shard_letters: Letters of a shard.
        batch_words: As of `ElmoEmbedder`.
        precision: What the model computes in; that of the model by default.
        device: Where; a GPU if there is one by default.
        threads: Threads of each worker; all that PyTorch takes by default.
    """

    input: str
    output: str
    model: str
    layers: Layers = "mix"
    pool: str | None = None
    boundaries: bool = False
    dtype: str = "float32"
    layout: str = "allennlp"
    keep_shards: bool = False
    input_format: str | None = None
    column: str | None = None
    pretokenized: bool = False
    on_error: str = "stop"
    most_words: int = MOST_WORDS
    most_line_bytes: int = MOST_LINE_BYTES
    shard_lines: int = SHARD_LINES
    shard_letters: int = SHARD_LETTERS
    batch_words: int | None = None
    precision: str | None = None
    device: str | None = None
    threads: int | None = None

    def load(self) -> ElmoEmbedder:
        """Loads the model."""
        return ElmoEmbedder.from_pretrained(self.model, self.device, self.precision, self.batch_words)

    def options(self, embedder: ElmoEmbedder, selection: Selection) -> dict[str, Any]:
        """All that decides the bytes, besides model and input."""
        layers = selection.layers
        return {
            "layers": list(layers) if isinstance(layers, tuple) else layers,
            "pool": self.pool,
            "boundaries": self.boundaries,
            "dtype": self.dtype,
            "output_format": Path(self.output).suffix.lower() or "datasets",
            "layout": self.layout,
            "shards": self.keep_shards,
            "input_format": format_of(self.input, self.input_format),
            "column": self.column,
            "pretokenized": self.pretokenized,
            "max_words": self.most_words,
            "max_line_bytes": self.most_line_bytes,
            "shard_lines": self.shard_lines,
            "shard_letters": self.shard_letters,
            "batch_words": embedder.batch_words,
            "precision": str(embedder.model.dtype).removeprefix("torch."),
            "device": embedder.device.type,
        }


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


def chunks_of(lines: Iterable[Line], most_lines: int, most_letters: int) -> Iterator[Chunk]:
    """Cuts the lines of an input into chunks."""
    first = 0
    for index, group in enumerate(grouped(lines, most_lines, most_letters, lambda line: line.size)):
        yield Chunk(index, first, group, fingerprint(group))
        first += len(group)


class ChunkEmbedder:
    """Embeds chunks and writes their shards: what a worker does, one in each process.

    Args:
        settings: The job.
        job: Its fingerprint.
        folder: Where the shards go.
        source: What messages call the input, and its unit: ("news.txt", "line").
        embedder: The model, if it is loaded already.
    """

    def __init__(
        self,
        settings: JobSettings,
        job: str,
        folder: Path,
        source: tuple[str, str],
        embedder: ElmoEmbedder | None = None,
    ) -> None:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.settings = settings
        self.job = job
        self.folder = folder
        self.source, self.unit = source
        self.embedder = embedder or settings.load()
        self.selection = self.embedder.select(settings.layers, settings.pool, settings.boundaries)
        self.format = output_format(settings, self.embedder, self.selection)

    def __call__(self, chunk: Chunk) -> ShardRecord:
        """Embeds a chunk and writes its shard, whole or not at all.

        Raises:
            InputError: A line cannot be used, and such lines are not to be skipped.
            OutputError: The shard cannot be written.
        """
        try:
            embedded = self.embed(chunk)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryError(
                f"Memory ran out for the {self.unit}s from {chunk.first_line + 1:,} on: take fewer at a time, with "
                f"--shard-lines below {len(chunk.lines):,} and --overwrite."
            ) from error
        with written_aside(self.folder / self.format.shard_name(chunk.index)) as path:
            self.format.write_shard(path, embedded)
        return embedded.record

    def embed(self, chunk: Chunk) -> EmbeddedChunk:
        """Embeds a chunk."""
        words = self.embedder.split([line.content for line in chunk.lines])
        errors = [line.error for line in chunk.lines]
        most = self.settings.most_words
        for place, sentence in enumerate(words):
            if len(sentence) > most:
                words[place] = []
                errors[place] = f"has {len(sentence):,} words, more than the {most:,} of a sentence (--max-words)"
        self._stop_at(chunk, errors)
        self.embedder.forget_words()
        vectors: list[torch.Tensor] = []
        for place, one in enumerate(self.embedder.embed_window(words, self.selection)):
            if isinstance(one, MemoryError):
                errors[place] = f"is too long for the memory here: {len(words[place]):,} words"
                self._stop_at(chunk, errors)
                words[place] = []
                (one,) = self.embedder.embed_window([[]], self.selection)
                assert isinstance(one, torch.Tensor)
            vectors.append(one)
        return self._collected(chunk, words, errors, vectors)

    def _stop_at(self, chunk: Chunk, errors: list[str | None]) -> None:
        if self.settings.on_error == "skip":
            return
        for place, error in enumerate(errors):
            if error is not None:
                number = chunk.first_line + place
                raise InputError(
                    f"{line_name(self.unit, number, self.source)} {error}. With --on-error skip it is counted and "
                    "left without vectors."
                )

    def _collected(
        self, chunk: Chunk, words: list[list[str]], errors: list[str | None], vectors: list[torch.Tensor]
    ) -> EmbeddedChunk:
        pooled, selection = self.settings.pool is not None, self.selection
        offsets = None
        if not pooled:
            lengths = [one.shape[-2] for one in vectors]
            offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        columns = stacked(selection.columns, vectors, selection.has_layer_axis, pooled)
        record = ShardRecord(
            job=self.job,
            index=chunk.index,
            first_line=chunk.first_line,
            lines=len(chunk.lines),
            words=sum(map(len, words)),
            input=chunk.input,
            skipped=[(chunk.first_line + place, error) for place, error in enumerate(errors) if error is not None],
        )
        columns = {name: stored(values, self.settings.dtype) for name, values in columns.items()}
        return EmbeddedChunk(record, [line.text for line in chunk.lines], words, errors, columns, offsets)


# What an engine does: makes workers, has them embed the chunks, and yields each record when its shard is there. The
# order is free.
Engine = Callable[[Callable[[], ChunkEmbedder], Iterator[Chunk]], Iterator[ShardRecord]]


def in_this_process(make_worker: Callable[[], ChunkEmbedder], chunks: Iterator[Chunk]) -> Iterator[ShardRecord]:
    """The plain engine: one chunk after the other, here."""
    worker = make_worker()
    for chunk in chunks:
        yield worker(chunk)


def line_name(unit: str, number: int, source: str) -> str:
    """What messages call a line; people count from 1."""
    return f"{unit.capitalize()} {number + 1:,} of {source}"


def output_format(settings: JobSettings, embedder: ElmoEmbedder, selection: Selection) -> OutputFormat:
    """The output's format.

    Raises:
        ValueError: There is none for this output, or it does not have what is asked for.
    """
    dim = embedder.model.config.hidden_size
    shape = Shape(selection.columns, selection.has_layer_axis, settings.pool is not None, dim, settings.dtype)
    return format_for(settings.output, shape, settings.layout, settings.keep_shards)


def check_settings(settings: JobSettings) -> None:
    """Refuses, before any work, what cannot be.

    Raises:
        ValueError: A setting is none, or the output's format is unknown or does not have what is asked for.
        InputError: The input's format is unknown.
    """
    if settings.on_error not in ("stop", "skip"):
        raise ValueError(f"--on-error must be stop or skip, not {settings.on_error!r}.")
    for name in ("most_words", "most_line_bytes", "shard_lines", "shard_letters", "threads", "batch_words"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ValueError(f"{name.replace('_', '-').replace('most', 'max')} must be 1 or more, not {value}.")
    format_of(settings.input, settings.input_format)
    format_for(
        settings.output, Shape(["vectors"], False, False, 1, settings.dtype), settings.layout, settings.keep_shards
    )
    parent = nearest_existing(Path(os.path.abspath(settings.output)).parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"The output {settings.output} cannot be written: {parent} is no folder to write in.")


def run_job(
    settings: JobSettings,
    report_progress: Callable[[Progress], None] = lambda progress: None,
    overwrite: bool = False,
    engine: Engine = in_this_process,
) -> JobReport:
    """Embeds a corpus, or goes on where an earlier start stopped.

    Args:
        settings: What is to be done.
        report_progress: Called now and then.
        overwrite: Remove what is there of this output, finished or not, and start anew.
        engine: Where the chunks are embedded.

    Raises:
        InputError: The input cannot be read or used.
        ChangedError: Model, input or options are not those with which the output was begun.
        OutputError: The output cannot be written.
        ValueError: A setting is wrong, or the model cannot be loaded.
        MemoryError: There is too little memory for a chunk.
    """
    check_settings(settings)
    with contextlib.closing(
        open_reader(
            settings.input, settings.input_format, settings.column, settings.pretokenized, settings.most_line_bytes
        )
    ) as reader:
        return Job(settings, reader, report_progress, overwrite).run(engine)


class Job:
    """One start of a job.

    Args:
        settings: What is to be done.
        reader: The input, open.
        report_progress: Called now and then.
        overwrite: Remove what is there of this output first.
    """

    def __init__(
        self, settings: JobSettings, reader: Reader, report_progress: Callable[[Progress], None], overwrite: bool
    ) -> None:
        self.reader = reader
        self.report_progress = report_progress
        self.output = Path(os.path.abspath(settings.output))
        self.work = self.output.with_name(self.output.name + ".unfinished")
        self.embedder = settings.load()
        selection = self.embedder.select(settings.layers, settings.pool, settings.boundaries)
        self.format = output_format(settings, self.embedder, selection)
        self.final_manifest = (
            self.output / MANIFEST
            if self.format.keeps_shards
            else self.output.with_name(f"{self.output.name}.{MANIFEST}")
        )
        if overwrite:
            self._remove_old()
        old = read_manifest(self.work / MANIFEST)
        threads = settings.threads or (old["threads"] if old else torch.get_num_threads())
        self.settings = replace(settings, threads=threads)
        self.manifest = new_manifest(
            settings.model,
            model_fingerprint(self.embedder.model, self.embedder.tokenizer),
            self.settings.options(self.embedder, selection),
            threads,
        )
        self.report = JobReport(self.output)
        self.done: dict[int, ShardRecord] = {}
        self.new_words = 0

    def run(self, engine: Engine) -> JobReport:
        """Does the job."""
        if self._is_complete():
            return self.report
        lock = None
        try:
            lock = self._open_work_folder()
            self.report_progress(Progress(0, 0, 0, self.reader.fraction()))
            for record in engine(self._make_worker, self._open_chunks()):
                self.done[record.index] = record
                self.new_words += record.words
                self._count(record)
            self._check_all()
            self._finish()
        except (InputError, OutputError, MemoryError) as error:
            raise type(error)(f"{error}{self._kept()}") from error
        except OSError as error:
            raise OutputError(f"{self.work} cannot be used: {reason(error)}.{self._kept()}") from error
        finally:
            if lock is not None and self.work.is_dir() and not self.done and not any(self.work.glob("part-*")):
                shutil.rmtree(self.work, ignore_errors=True)
            if lock is not None:
                os.close(lock)
        return self.report

    def _make_worker(self) -> ChunkEmbedder:
        source = (self.reader.source.name, self.reader.unit)
        return ChunkEmbedder(self.settings, self.manifest["job"], self.work, source, self.embedder)

    def _chunks(self) -> Iterator[Chunk]:
        """All chunks of the input, and their fingerprints gathered."""
        self.input_digest = hashlib.sha256()
        self.chunk_count = 0
        for chunk in chunks_of(self.reader, self.settings.shard_lines, self.settings.shard_letters):
            self.input_digest.update(chunk.input.encode("ascii"))
            self.chunk_count += 1
            yield chunk

    def _open_chunks(self) -> Iterator[Chunk]:
        """The chunks that have no shard yet; those that have one are compared with it."""
        for chunk in self._chunks():
            record = self.done.get(chunk.index)
            if record is None:
                yield chunk
                continue
            if (record.input, record.first_line) != (chunk.input, chunk.first_line):
                last = record.first_line + record.lines
                raise ChangedError(
                    f"The input {self.reader.source.name} has changed since {self.settings.output} was begun: "
                    f"{self.reader.unit}s {record.first_line + 1:,} to {last:,} are not those that were embedded. "
                    "Give the same input, another output, or --overwrite to start anew."
                )
            self.report.resumed_lines += record.lines
            self._count(record)

    def _count(self, record: ShardRecord) -> None:
        self.report.lines += record.lines
        self.report.words += record.words
        self.report.skipped_count += len(record.skipped)
        self.report_progress(Progress(self.report.lines, self.report.words, self.new_words, self.reader.fraction()))

    def _check_all(self) -> None:
        if not self.chunk_count:
            raise InputError(f"The input {self.reader.source.name} is empty: there is nothing to embed.")
        beyond = [index for index in self.done if index >= self.chunk_count]
        if beyond:
            raise ChangedError(
                f"The input {self.reader.source.name} has become shorter since {self.settings.output} was begun. Give "
                "the same input, another output, or --overwrite to start anew."
            )

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
        for _ in self._chunks():
            pass
        if self.input_digest.hexdigest() != finished["input"]["fingerprint"]:
            raise ChangedError(
                f"{self.settings.output} is finished, but of another input than {self.reader.source.name} is now. "
                "Choose another output, or --overwrite to start anew."
            )
        shutil.rmtree(self.work, ignore_errors=True)
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
        for leftover in self.work.glob(f"*{UNFINISHED}"):
            leftover.unlink()
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

    def _kept(self) -> str:
        """What to say of the work that is done when a run stops."""
        if not self.done:
            return ""
        lines = sum(record.lines for record in self.done.values())
        return f" {lines:,} {self.reader.unit}s are done and kept in {self.work}: the same command goes on from there."

    def _finish(self) -> None:
        """Makes the output of the shards, under its name only when it is whole."""
        shards = [self.work / self.format.shard_name(index) for index in range(self.chunk_count)]
        skipped = [entry for index in range(self.chunk_count) for entry in self.done[index].skipped]
        self.report.skipped = skipped[:LISTED]
        boundaries = sum(self.embedder.boundary_counts) if self.settings.boundaries else 0
        complete = {
            **self.manifest,
            "complete": True,
            "lines": self.report.lines,
            "words": self.report.words,
            "rows": self.report.words + boundaries * self.report.lines,
            "input": {"name": self.reader.source.name, "fingerprint": self.input_digest.hexdigest()},
            "skipped": {"count": self.report.skipped_count, "first": self.report.skipped},
        }
        if self.format.keeps_shards:
            self.format.complete_folder(self.work, shards, complete)
            write_json(self.work / MANIFEST, complete)
            if is_empty_folder(self.output):
                self.output.rmdir()
            os.replace(self.work, self.output)
            return
        with written_aside(self.work / self.output.name) as path:
            for done in self.format.merge(shards, path, complete):
                progress = Progress(self.report.lines, self.report.words, self.new_words, 1.0, (done, len(shards)))
                self.report_progress(progress)
        os.replace(self.work / self.output.name, self.output)
        write_json(self.final_manifest, complete)
        shutil.rmtree(self.work)

    def _remove_old(self) -> None:
        """Removes what this command wrote under this name before, and nothing else."""
        try:
            ours = read_manifest(self.final_manifest) is not None
            if self.output.is_dir() and ours and self.format.keeps_shards:
                shutil.rmtree(self.output)
            elif self.output.is_file() and ours:
                self.output.unlink()
                self.final_manifest.unlink()
            if read_manifest(self.work / MANIFEST) is not None:
                shutil.rmtree(self.work)
        except OSError as error:
            raise OutputError(f"{self.output} cannot be removed: {reason(error)}.") from error


def is_empty_folder(path: Path) -> bool:
    """Whether a path is a folder without anything in it."""
    return path.is_dir() and not any(path.iterdir())
