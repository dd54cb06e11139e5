"""One side of a comparison, in a process of its own: answers a request a line, JSON in and JSON out.

The workers of the peers run in environments of their own, so nothing here or in `torch_side` imports hf_elmo.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from memory import peak, reset_peak, resident
from sentences import Sentence, batches


class Side:
    """What a worker measures. A request `{"do": NAME, ...}` calls `do_NAME` with the rest as keywords."""

    versions: dict[str, str] = {}

    def embed(self, sentences: list[Sentence]) -> None:
        """Embeds one batch, from words to vectors."""
        raise NotImplementedError

    def layers(self, sentences: list[Sentence]) -> list[np.ndarray]:
        """For each sentence of one batch, all layers of its words without boundaries, shape (L + 1, words, 2P)."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Waits until the device is done."""

    def do_time(self, sentences: list[Sentence], batch_size: int) -> dict[str, Any]:
        """Seconds to embed all sentences, in order."""
        start = time.perf_counter()
        for batch in batches(sentences, batch_size):
            self.embed(batch)
        self.synchronize()
        return {"seconds": time.perf_counter() - start}

    def do_layers(self, sentences: list[Sentence], path: str) -> dict[str, Any]:
        """Writes the layers of each sentence to a file of arrays."""
        np.savez(path, *self.layers(sentences))
        return {"path": path}

    def do_file(self, sentences: list[Sentence], batch_size: int, path: str) -> dict[str, Any]:
        """Seconds to write all layers of every sentence into an HDF5 file, batch by batch in order."""
        import h5py

        start = time.perf_counter()
        count = 0
        with h5py.File(path, "w") as file:
            for batch in batches(sentences, batch_size):
                for vectors in self.layers(batch):
                    file.create_dataset(str(count), data=vectors)
                    count += 1
        return {"seconds": time.perf_counter() - start}

    def do_memory(self, sentences: list[Sentence], times: int) -> dict[str, Any]:
        """Memory before, at the peak of, and after embedding one batch, as often as asked."""
        measured = []
        for _ in range(times):
            before, is_exact = resident(), reset_peak()
            self.embed(sentences)
            self.synchronize()
            measured.append({"before": before, "peak": peak(), "after": resident(), "is_exact": is_exact})
        return {"forwards": measured}


def serve(make: Callable[..., Side]) -> None:
    """Makes the side with the settings of the command line, says how long that took, and answers until input ends.

    Args:
        make: Loads the side. It is called with the settings as keywords.
    """
    # What libraries print goes to stderr, so that answers stay alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    settings = json.loads(sys.argv[1])
    import_seconds = time.time() - settings.pop("started")
    try:
        before, is_exact = resident(), reset_peak()
        start = time.perf_counter()
        side = make(**settings)
        answer(
            {
                "import_seconds": import_seconds,
                "load_seconds": time.perf_counter() - start,
                "memory": {"before": before, "peak": peak(), "after": resident(), "is_exact": is_exact},
                "versions": side.versions,
            }
        )
        for line in sys.stdin:
            request = json.loads(line)
            answer(getattr(side, f"do_{request.pop('do')}")(**request))
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}"})
