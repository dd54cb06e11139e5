"""A frozen biLM, and the layers that it computes for rows of a data set."""

from __future__ import annotations

import os
from typing import cast

import numpy as np
import torch

from ..bundled import resolve_model
from ..embedding.batching import batches_by_words, computed_in_halves
from ..embedding.embedder import BATCH_WORDS, check_is_elmo, first_line
from ..embedding.manifest import digest, weights_fingerprint
from ..modeling_elmo import ElmoModel, ElmoPreTrainedModel
from .layer_rows import Reads, Rows

# The head that reads each row as one text, whatever stands in it.
WORD_TAGGER = "ElmoForTokenClassification"
# What decides the layers of a configuration; the rest is about mixes, heads and training.
BILM_FIELDS = (
    "vocab_size",
    "word_embedding_size",
    "character_embedding_size",
    "filters",
    "hidden_act",
    "num_highway_layers",
    "max_characters_per_token",
    "projection_size",
    "cell_size",
    "num_hidden_layers",
    "cell_clip",
    "projection_clip",
    "use_skip_connections",
    "use_token_projection",
    "begin_sentence_character_id",
)


class Bilm:
    """A frozen biLM that computes the layers of texts.

    Args:
        model: As of `precompute_layers`.
        batch_words: As of `precompute_layers`.

    Raises:
        ValueError: There is no such model, or it trains its biLM.
    """

    def __init__(self, model: ElmoPreTrainedModel | str | os.PathLike[str], batch_words: int | None) -> None:
        if isinstance(model, (str, os.PathLike)):
            model = load_elmo(model)
            architectures = model.config.architectures or []
        else:
            architectures = [type(model).__name__]
        elmo = getattr(model, "base_model", None)
        # A class that came with a folder is another one than ours.
        if getattr(getattr(elmo, "config", None), "model_type", None) != "elmo" or not hasattr(elmo, "encoder"):
            raise ValueError(f"precompute_layers takes a model of ELMo or its folder, not {type(model).__name__}.")
        self.elmo = cast(ElmoModel, elmo)
        if not (self.elmo.config.freeze_bilm and self.elmo.is_bilm_frozen):
            raise ValueError(
                "The biLM of this model is trained (freeze_bilm=False, or adapters in it), so that its layers change "
                "with every step: layers are computed once for a frozen biLM only."
            )
        self.name = str(self.elmo.config._name_or_path or type(model).__name__)
        self.batch_words_given = batch_words
        self.batch_words = batch_words or BATCH_WORDS.get(self.elmo.device.type, BATCH_WORDS["cuda"])
        config = self.elmo.config
        self.reads = Reads(
            characters=config.max_characters_per_token,
            begin_sentence=config.begin_sentence_character_id,
            end_sentence=config.end_sentence_character_id,
            has_begin=config.bos_token_id is not None,
            has_end=config.eos_token_id is not None,
            word_ids=config.word_embedding_size is not None,
            pairs=WORD_TAGGER not in architectures,
            layers_size=config.layers_size,
        )

    @property
    def precision(self) -> str:
        """The type in which the biLM computes."""
        return self.elmo.config.frozen_bilm_dtype or str(self.elmo.dtype).removeprefix("torch.")

    def fingerprint(self) -> str:
        """The SHA-256 of all that the layers depend on: weights and architecture, but not the mixes."""
        weights = {
            name: tensor
            for name, tensor in self.elmo.state_dict().items()
            if name.startswith(("embeddings.", "encoder."))
        }
        architecture = {field: getattr(self.elmo.config, field) for field in BILM_FIELDS}
        return digest([weights_fingerprint(weights), architecture])

    @torch.no_grad()  # not inference_mode: a head may be trained next, with what the model keeps of words
    def layers_of(self, rows: Rows, dtype: str) -> np.ndarray:
        """The layers of all words of some rows.

        The batches depend on these rows and `batch_words` alone; so the same rows give the same bytes on the same
        kind of machine.

        Args:
            rows: The rows.
            dtype: The type of the result.

        Returns:
            Array of shape (words, P + 2PL), zeros at padding.

        Raises:
            MemoryError: One text alone is too long for the memory.
            ValueError: A number is too large for the type.
        """
        positions = rows.positions_of_texts()
        self._forget_words()
        layers = np.zeros((len(rows.ids), self.reads.layers_size), dtype)

        def compute(batch: list[int]) -> tuple[np.ndarray, np.ndarray]:
            return self._run(rows, [positions[index] for index in batch], dtype)

        batches = batches_by_words([len(text) for text in positions], self.batch_words)
        was_training = self.elmo.training
        self.elmo.eval()
        try:
            for batch, computed in computed_in_halves(batches, compute):
                if isinstance(computed, MemoryError):
                    words = len(positions[batch[0]])
                    raise MemoryError(f"A text of {words:,} words is too long for the memory here ({computed}).")
                where, values = computed
                layers[where] = values
        finally:
            self.elmo.train(was_training)
            self._forget_words()
        if not np.isfinite(layers).all():
            raise ValueError(f"A number is too large for {dtype}, or not finite: use dtype='float32'.")
        return layers

    def _forget_words(self) -> None:
        """Clears what the model keeps of words: a vector is rounded as the batch in which its word came first."""
        kept = getattr(self.elmo.embeddings, "word_cache", None)
        if kept is not None:
            kept.clear()

    def _run(self, rows: Rows, texts: list[np.ndarray], dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """One batch: the positions of its words in the rows, and their layers (words, P + 2PL)."""
        lengths = torch.tensor([len(text) for text in texts])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        where = np.concatenate(texts)
        inputs = {"input_ids": rows.ids, "word_input_ids": rows.word_ids if self.reads.word_ids else None}
        padded = {
            name: torch.zeros((*mask.shape, *values.shape[1:]), dtype=torch.long)
            for name, values in inputs.items()
            if values is not None
        }
        for name, tensor in padded.items():
            tensor[mask] = torch.from_numpy(cast(np.ndarray, inputs[name])[where].astype(np.int64))
        device = self.elmo.device
        outputs = self.elmo(
            **{name: tensor.to(device) for name, tensor in padded.items()},
            attention_mask=mask.to(device),
            output_hidden_states=True,
        )
        joined = self.elmo.join_layers(outputs.hidden_states)[mask.to(device)]
        return where, joined.to(getattr(torch, dtype)).cpu().numpy()


def load_elmo(name_or_path: str | os.PathLike[str]) -> ElmoModel:
    """Loads a model onto a GPU, if there is one.

    Raises:
        ValueError: There is no such model, or it is none of ELMo.
    """
    name = resolve_model(name_or_path)
    check_is_elmo(name, {})
    try:
        # Whatever a head does with its biLM, here it does not change.
        model = ElmoModel.from_pretrained(name, freeze_bilm=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"The model {name} cannot be loaded: {first_line(error)}") from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


__all__ = ["Bilm", "load_elmo"]
