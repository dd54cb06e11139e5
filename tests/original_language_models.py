"""The arrays of the language-model fixtures, from the converted biLM and its softmax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.original_checkpoints import Elmo
from tests.original_outputs import Arrays
from tests.reference import Array


class LanguageModelOutputs:
    """The stored log-probabilities, from the converted biLM and its softmax, or one fitted to them.

    TensorFlow's checkpoints hold the softmax. The HDF5 does not, but the stored log-probabilities are
    log_softmax(W h + b) of the top layer, with one W and b for both directions: P + 1 unknowns a word against more
    than a hundred vectors h. Where the fit leaves nothing, the top layer is right; and the same W and b must give the
    losses of the stateful runs, which they were not fitted to.
    """

    def __init__(self, elmo: Elmo) -> None:
        self.elmo = elmo
        self.expected = elmo.arrays()
        self.size = elmo.model.config.projection_size
        self.sentences = elmo.json("sentences.json")["sentences"]
        self.ours: Arrays = {}
        features = {key: vectors for i in range(len(self.sentences)) for key, vectors in self.sentence(i)}
        softmax = elmo.softmax()
        self.softmax = (
            np.concatenate([softmax["weight"].T, softmax["bias"][None]]).astype(np.float64)
            if softmax
            else self.fit(features)
        )
        for key, vectors in features.items():
            self.ours[f"{key}.log_probs"] = self.log_probs(vectors)
            self.ours[f"{key}.losses"] = self.losses(vectors, self.expected[f"{key}.target_ids"])

    def fit(self, features: Arrays) -> Array:
        """The softmax (P + 1, words), bias last, that gives the stored log-probabilities."""
        inputs, outputs = (
            np.concatenate([np.asarray(source[key], dtype=np.float64) for key in features])
            for source in (features, {key: self.expected[f"{key}.log_probs"] for key in features})
        )
        assert len(inputs) > 5 * (self.size + 1)
        # Log-probabilities are logits less a constant for each row: without their mean they are linear in h.
        return np.linalg.lstsq(with_one(inputs), outputs - outputs.mean(axis=1, keepdims=True), rcond=None)[0]

    def sentence(self, index: int) -> Iterator[tuple[str, Array]]:
        """Keys and top-layer vectors (words + 1, P) of a sentence, in the order of each direction's walk."""
        input_ids, mask = self.elmo.encode([self.sentences[index]])
        top = self.elmo.run(input_ids, mask).layers[-1, 0]
        ids = input_ids[0].numpy() - 1
        for direction, walk in (("forward", slice(None, -1)), ("backward", slice(None, 0, -1))):
            key = f"sent{index}.{direction}"
            self.ours[f"{key}.char_ids"] = ids[walk]
            yield key, top[walk, self.half(direction)]

    def half(self, direction: str, size: int | None = None) -> slice:
        size = size or self.size
        return slice(0, size) if direction == "forward" else slice(size, 2 * size)

    def log_probs(self, vectors: Array) -> Array:
        logits = with_one(np.asarray(vectors, dtype=np.float64)) @ self.softmax
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def losses(self, vectors: Array, targets: Array) -> Array:
        return -np.take_along_axis(self.log_probs(vectors), targets[..., None].astype(np.int64), axis=-1)[..., 0]

    def stream(self, characters: Array, direction: str) -> tuple[Array, Any]:
        """Runs rows of character ids (steps, rows, 50), given in the order of the walk, one step a call.

        Returns:
            The top layer (steps, rows, P) and the states after it.
        """
        states, tops = None, []
        for step in characters:
            ids = torch.as_tensor(step, dtype=torch.long)[:, None] + 1
            output = self.elmo.run(ids, torch.ones(ids.shape[:2], dtype=torch.long), states)
            states = output.states
            tops.append(output.layers[-1, :, 0, self.half(direction)])
        return np.stack(tops), states


def with_one(vectors: Array) -> Array:
    return np.concatenate([vectors, np.ones((*vectors.shape[:-1], 1))], axis=-1)


def deeppavlov_lm(lm: Elmo) -> Arrays:
    outputs = LanguageModelOutputs(lm)
    ours = outputs.ours
    rows = lm.json("sentences.json")["stream_batch_size"]
    cell_size = lm.model.config.cell_size
    for direction in ("forward", "backward"):
        ours[f"stream.char_ids_{direction}"] = characters = stream_characters(outputs, rows, direction)
        top, (hidden, cell) = outputs.stream(characters, direction)
        targets = outputs.expected[f"stream.target_ids_{direction}"]
        ours[f"stream.losses_{direction}"] = outputs.losses(top, targets)
        for layer in range(len(hidden)):
            key = f"stream.final_state.{direction}.layer{layer}"
            ours[f"{key}.h"] = hidden[layer, :, outputs.half(direction)].numpy()
            ours[f"{key}.c"] = cell[layer, :, outputs.half(direction, cell_size)].numpy()
    losses = [ours["stream.losses_forward"], ours["stream.losses_backward"]]
    ours["stream.perplexity"] = np.exp(np.mean(losses))
    return ours


def stream_characters(outputs: LanguageModelOutputs, rows: int, direction: str) -> Array:
    """Character ids (steps, rows, 50) as bilm-tf's `_get_batch` streams sentences.

    A row takes the next unread sentence when its own is used up; the run stops where there is none left.
    """
    waiting = iter(outputs.ours[f"sent{index}.{direction}.char_ids"] for index in range(len(outputs.sentences)))
    reading: list[Iterator[Array]] = [iter(()) for _ in range(rows)]
    steps: list[Array] = []
    while True:
        step = []
        for row in range(rows):
            following = next(reading[row], None)
            if following is None:
                sentence = next(waiting, None)
                if sentence is None:
                    return np.stack(steps)
                reading[row] = iter(sentence)
                following = next(reading[row])
            step.append(following)
        steps.append(np.stack(step))


def bilm_tf_lm(lm: Elmo) -> Arrays:
    outputs = LanguageModelOutputs(lm)
    ours = outputs.ours
    for rows in lm.json("sentences.json")["test_batch_sizes"]:
        key = f"test.batch_size{rows}"
        for direction in ("forward", "backward"):
            top, _ = outputs.stream(stream_characters(outputs, rows, direction), direction)
            losses = outputs.losses(top, outputs.expected[f"{key}.{direction}_targets"])
            ours[f"{key}.{direction}_losses_per_row"], ours[f"{key}.{direction}_losses"] = losses, losses.mean(axis=1)
        total = (ours[f"{key}.forward_losses"] + ours[f"{key}.backward_losses"]) / 2
        ours[f"{key}.total_losses"], ours[f"{key}.perplexity"] = total, np.exp(total.mean())
    return ours
