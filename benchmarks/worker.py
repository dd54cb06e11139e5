"""One side of a comparison, in a process of its own: answers a request a line, JSON in and JSON out.

A side is a class with two methods: `embed(sentences)`, timed, and `layers(sentences)`, compared. The workers of the
peers import nothing of hf_elmo, since they run in environments of their own.
"""

import json
import sys
import time
from typing import Protocol

import numpy as np
from sentences import batches


class Side(Protocol):
    """What a worker measures."""

    def embed(self, sentences: list[list[str]]) -> None:
        """Embeds one batch, from words to vectors."""

    def layers(self, sentences: list[list[str]]) -> list[np.ndarray]:
        """For each sentence, all layers of its words without boundaries, shape (L + 1, words, 2P)."""


def serve(side: Side) -> None:
    """Answers requests on standard input until it ends."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "time":
            start = time.perf_counter()
            for batch in batches(request["sentences"], request["batch_size"]):
                side.embed(batch)
            print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
        else:
            np.savez(request["path"], *side.layers(request["sentences"]))
            print(json.dumps({"saved": request["path"]}), flush=True)
