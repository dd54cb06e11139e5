"""This package as one side of a comparison. Usage: worker_hf_elmo.py FOLDER"""

import sys

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer
from worker import serve

import hf_elmo  # noqa: F401  makes the Auto classes know ELMo


class HfElmo:
    """AutoTokenizer and AutoModel on a converted folder."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder)

    @torch.inference_mode()
    def embed(self, sentences: list[list[str]]) -> None:
        """Embeds one batch, from words to vectors."""
        self.model(**self.tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt"))

    @torch.inference_mode()
    def layers(self, sentences: list[list[str]]) -> list[np.ndarray]:
        """All layers of each sentence's words."""
        inputs = self.tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
        hidden_states = torch.stack(self.model(**inputs, output_hidden_states=True).hidden_states)
        return [hidden_states[:, row, 1 : 1 + len(words)].numpy() for row, words in enumerate(sentences)]


if __name__ == "__main__":
    serve(HfElmo(sys.argv[1]))
