"""AllenNLP as one side of a comparison."""

import time
from importlib.metadata import version
from typing import Any

import allennlp_stub  # noqa: F401  stands in for what AllenNLP imports and ELMo does not need
import torch
from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids
from sentences import Sentence, batches
from torch_side import TorchSide
from worker import serve


class AllenNlp(TorchSide):
    """`_ElmoBiLm` on options.json and weights.hdf5, its states reset before each batch."""

    def __init__(self, folder: str, threads: int, device: str = "cpu", training: bool = False) -> None:
        torch.set_num_threads(threads)
        bilm = _ElmoBiLm(f"{folder}/options.json", f"{folder}/weights.hdf5", requires_grad=training)
        super().__init__(bilm, device, training)
        self.versions["allennlp"] = version("allennlp")

    def run(self, sentences: list[Sentence]) -> list[torch.Tensor]:
        """All layers of one batch."""
        self.model._elmo_lstm._states = None
        return self.model(batch_to_ids(sentences).to(self.device))["activations"]

    def do_ids(self, sentences: list[Sentence], batch_size: int) -> dict[str, Any]:
        """Seconds from words to character ids."""
        start = time.perf_counter()
        for batch in batches(sentences, batch_size):
            batch_to_ids(batch)
        return {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    serve(AllenNlp)
