"""What the sides that run on PyTorch share."""

import time
from typing import Any

import numpy as np
import torch
from sentences import Sentence
from torch import nn
from worker import Side


class TorchSide(Side):
    """A model on PyTorch.

    Args:
        model: The model, whose parameters are trained where it is asked to train.
        device: Where it runs.
        training: Whether the model is to be trained, every parameter of the biLM.
    """

    def __init__(self, model: nn.Module, device: str, training: bool) -> None:
        self.device = torch.device(device)
        self.model: Any = model.to(self.device).train(training)
        self.versions = {"torch": torch.__version__}
        if self.device.type == "cuda":
            self.versions["device"] = torch.cuda.get_device_name(self.device)

    def run(self, sentences: list[Sentence]) -> list[torch.Tensor]:
        """All L + 1 layers of one batch, each (batch, longest + 2, 2P), with the boundaries."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Waits until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.inference_mode()
    def embed(self, sentences: list[Sentence]) -> None:
        """Embeds one batch, from words to vectors."""
        self.run(sentences)

    @torch.inference_mode()
    def layers(self, sentences: list[Sentence]) -> list[np.ndarray]:
        """All layers of each sentence's words."""
        layers = torch.stack(list(self.run(sentences))).float().cpu().numpy()
        return [layers[:, row, 1 : 1 + len(words)] for row, words in enumerate(sentences)]

    def do_gradients(self, sentences: list[Sentence], path: str, dtype: str) -> dict[str, Any]:
        """The gradients of one training step, with the weights in a type of numbers for that time.

        Args:
            sentences: As of `do_train`.
            path: Where the gradients go, each under its parameter's name.
            dtype: "float32" or "float64".
        """
        before = next(self.model.parameters()).dtype
        self.model.to(getattr(torch, dtype))
        answer = self.do_train(sentences)
        gradients = {
            name: parameter.grad.cpu().numpy()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        np.savez(path, **gradients)
        self.model.zero_grad(set_to_none=True)
        self.model.to(before)
        return answer

    def do_train(self, sentences: list[Sentence]) -> dict[str, Any]:
        """One training step, from words to gradients; the loss is a fixed random projection of every layer.

        Args:
            sentences: A batch of equally long sentences.
        """
        return self.train_step(sentences, self.directions(sentences))

    def train_step(self, sentences: list[Sentence], directions: torch.Tensor) -> dict[str, Any]:
        """`do_train` with the random numbers of the loss at hand."""
        self.model.zero_grad(set_to_none=True)
        self.synchronize()
        start = time.perf_counter()
        layers = self.run(sentences)
        loss = torch.stack(
            [(layer * direction).sum() for layer, direction in zip(layers, directions, strict=True)]
        ).sum()
        loss.backward()
        self.synchronize()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "loss": loss.item()}

    def directions(self, sentences: list[Sentence]) -> torch.Tensor:
        """The random numbers of the loss, the same on every side: (L + 1, batch, words + 2, 2P)."""
        with torch.no_grad():
            first = self.run(sentences[:1])
        shape = (len(first), len(sentences), *first[0].shape[1:])
        numbers = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(numbers).to(first[0])
