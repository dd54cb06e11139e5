"""Where the chunks of a job are embedded: in this process, in several, or on a cluster.

The chunks are cut by the input and the options alone, and a shard depends on its chunk alone, so every engine makes
the same bytes. An engine may finish the chunks in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from types import TracebackType

import torch

from .chunks import OpenChunks
from .embedder import ElmoEmbedder
from .settings import JobSettings
from .shards import ShardRecord
from .worker import WorkerRecipe

Records = Generator[ShardRecord, None, None]


class Engine(ABC):
    """Embeds chunks; used as a context, in which it may start what it needs."""

    uses_this_process = False

    def check(self, settings: JobSettings) -> None:
        """Refuses what this engine cannot do, before any work; by default nothing.

        Raises:
            SettingError: It cannot.
        """
        return

    def default_device(self) -> str:
        """Where models compute unless the job says it."""
        return "cuda" if torch.cuda.is_available() else "cpu"

    @abstractmethod
    def default_threads(self) -> int:
        """Threads of a worker unless the job says it."""

    @abstractmethod
    def embed(self, recipe: WorkerRecipe, chunks: OpenChunks, embedder: ElmoEmbedder | None) -> Records:
        """Has the chunks embedded, and yields each record when its shard is there.

        Args:
            recipe: What the workers are made of.
            chunks: What they are to embed.
            embedder: The model, loaded, where `uses_this_process`.

        Raises:
            WorkerError: A worker could not do its part.
        """

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class ThisProcess(Engine):
    """One chunk after the other, here."""

    uses_this_process = True

    def default_threads(self) -> int:
        """All that PyTorch takes."""
        return torch.get_num_threads()

    def embed(self, recipe: WorkerRecipe, chunks: OpenChunks, embedder: ElmoEmbedder | None) -> Records:
        """Embeds the chunks; PyTorch's threads are afterwards as before."""
        threads = torch.get_num_threads()
        try:
            worker = recipe.make(embedder)
            for chunk in chunks:
                yield worker(chunk)
        finally:
            torch.set_num_threads(threads)
