"""A worker: a model that embeds chunks and writes their shards, here, in another process or on another machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from .batching import is_out_of_memory
from .embedder import ElmoEmbedder
from .errors import InputError
from .settings import JobSettings, output_format
from .shards import Chunk, EmbeddedChunk, ShardRecord, stacked, stored, written_aside


@dataclass(frozen=True)
class WorkerRecipe:
    """What a worker is made of; it travels to other processes and machines.

    Attributes:
        settings: The job, with device, threads and batches settled.
        job: Its fingerprint.
        folder: Where the shards go.
        source: What messages call the input, and its unit: ("news.txt", "line").
        model_fingerprint: That of the model.
    """

    settings: JobSettings
    job: str
    folder: Path
    source: tuple[str, str]
    model_fingerprint: str

    def on(self, device: str) -> WorkerRecipe:
        """The same for another device."""
        return replace(self, settings=replace(self.settings, device=device))

    def make(self, embedder: ElmoEmbedder | None = None) -> ChunkEmbedder:
        """Makes the worker; `embedder` is the model, if it is loaded already."""
        return ChunkEmbedder(self, embedder or self.settings.load())


class ChunkEmbedder:
    """Embeds chunks and writes their shards: what a worker does, one in each process.

    Args:
        recipe: The job.
        embedder: The model.
    """

    def __init__(self, recipe: WorkerRecipe, embedder: ElmoEmbedder) -> None:
        settings = self.settings = recipe.settings
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.job = recipe.job
        self.folder = recipe.folder
        self.source, self.unit = recipe.source
        self.embedder = embedder
        self.selection = embedder.select(settings.layers, settings.pool, settings.boundaries)
        self.format = output_format(settings, embedder, self.selection)

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
        with written_aside(self.folder / self.format.shard_name(chunk.index), by_several=True) as path:
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


def line_name(unit: str, number: int, source: str) -> str:
    """What messages call a line; people count from 1."""
    return f"{unit.capitalize()} {number + 1:,} of {source}"
