"""AllenNLP as one side of a comparison. Usage: worker_allennlp.py FOLDER, with `allennlp_stub` on PYTHONPATH."""

import sys

import allennlp_stub  # noqa: F401  stands in for what AllenNLP imports and ELMo does not need
import numpy as np
import torch
from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids
from worker import serve


class AllenNlp:
    """`_ElmoBiLm` on options.json and weights.hdf5, its states reset before each batch."""

    def __init__(self, folder: str) -> None:
        self.bilm = _ElmoBiLm(f"{folder}/options.json", f"{folder}/weights.hdf5").eval()

    @torch.inference_mode()
    def embed(self, sentences: list[list[str]]) -> None:
        """Embeds one batch, from words to vectors."""
        self.bilm._elmo_lstm._states = None
        self.bilm(batch_to_ids(sentences))

    @torch.inference_mode()
    def layers(self, sentences: list[list[str]]) -> list[np.ndarray]:
        """All layers of each sentence's words."""
        self.bilm._elmo_lstm._states = None
        activations = torch.stack(self.bilm(batch_to_ids(sentences))["activations"])
        return [activations[:, row, 1 : 1 + len(words)].numpy() for row, words in enumerate(sentences)]


if __name__ == "__main__":
    serve(AllenNlp(sys.argv[1]))
