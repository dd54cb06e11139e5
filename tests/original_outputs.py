"""The arrays of each fixture as the converted checkpoint gives them, under the fixture's own keys.

What the keys mean is in the README of each fixture: one function here for one README.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from transformers import AutoModel

from tests.original_checkpoints import Elmo, Output
from tests.reference import Array, characters_of_sentence
from tests.tiny_models import pad_rows

Arrays = dict[str, Array]

HUB_OUTPUTS = ("elmo", "default", "word_emb", "lstm_outputs1", "lstm_outputs2")


def allennlp_tiny(tiny: Elmo) -> Arrays:
    """Ten consecutive batches of a sentence from each of three streams, with states."""
    ours: Arrays = {}
    states = None
    for index, batch in enumerate(zip(*tiny.json("sentences.json"), strict=True)):
        output = tiny.read([text.split() for text in batch], states)
        states = output.states
        words = output.without_boundaries()
        for stream in range(3):
            for layer, vectors in enumerate(words.layers):
                ours[f"stream{stream}.sentence{index}.layer{layer}"] = vectors[stream][words.mask[stream]]
    return ours


def allennlp_random(random: Elmo) -> Arrays:
    """Every array of the fixture, from the tokenizer on."""
    contents = random.json("sentences.json")
    sentences, batches = contents["sentences"], contents["batches"]
    ours: Arrays = {}

    def store(prefix: str, output: Output) -> None:
        words = output.without_boundaries()
        ours[f"{prefix}.mask_with_boundaries"], ours[f"{prefix}.mask"] = output.mask, words.mask
        for index in range(len(output.layers)):
            ours[f"{prefix}.layer{index}.with_boundaries"] = output.layers[index]
            ours[f"{prefix}.layer{index}.without_boundaries"] = words.layers[index]

    everything = random.read(sentences)
    store("stateless.all", everything)
    ours["character_ids"] = word_rows(*random.encode(sentences))
    states = None
    for index, batch in enumerate([[sentences[position] for position in batch] for batch in batches]):
        ours[f"batch{index}.character_ids"] = word_rows(*random.encode(batch))
        store(f"stateless.batch{index}", random.read(batch))
        output = random.read(batch, states)
        states = output.states
        store(f"stateful.batch{index}", output)
    empty = [[], ["one", "two"]]
    store("empty", random.read(empty))
    ours["empty.character_ids"] = word_rows(*random.encode(empty))

    input_ids, mask = random.encode(sentences)
    tokens = random.run(input_ids, torch.ones_like(mask)).layers[0]
    ours["token_layer.token_embedding"] = tokens[..., : tokens.shape[-1] // 2]
    ours["token_layer.mask"] = mask.numpy() == 1

    ours["elmo.mask_keep_boundaries"], ours["elmo.mask"] = everything.mask, everything.without_boundaries().mask
    mixes = {
        "": ([contents["scalar_mix_parameters"]] * 2, [1.0, 1.0]),
        ".default_init": ([[0.0, 0.0, 0.0]], [1.0]),
        ".distinct": (contents["scalar_mix_parameters_2"], contents["gammas_2"]),
    }
    for (name, layer_norm), (mix, (parameters, gammas)) in product(
        {"plain": False, "layernorm": True}.items(), mixes.items()
    ):
        model = AutoModel.from_pretrained(
            random.model.name_or_path, num_output_representations=len(gammas), mix_layer_norm=layer_norm
        ).eval()
        set_mixes(model, parameters, gammas)
        with torch.inference_mode():
            representations = [vectors.numpy() for vectors in model(input_ids, attention_mask=mask).representations]
        if not mix:
            ours[f"elmo.{name}.keep_boundaries"] = representations[0]
        for index, vectors in enumerate(representations):
            ours[f"elmo.{name}{mix}.rep{index}"] = vectors[:, 1:-1] * ours["elmo.mask"][..., None]
    return ours


def set_mixes(model: Any, parameters: Sequence[Sequence[float]], gammas: Sequence[float]) -> None:
    """Sets the scalars and the gamma of each of a model's mixes."""
    with torch.no_grad():
        for mix, scalars, gamma in zip(model.representations, parameters, gammas, strict=True):
            mix.scalar_parameters.copy_(torch.tensor(scalars))
            mix.gamma.fill_(gamma)


def word_rows(input_ids: torch.Tensor, mask: torch.Tensor) -> Array:
    """The character ids of the words, as AllenNLP's `batch_to_ids` gives them.

    The rows that the tokenizer adds are checked to be the boundaries.
    """
    begin, end = (row.tolist() for row in characters_of_sentence([]))
    lengths = mask.sum(dim=1).tolist()
    for ids, length in zip(input_ids.tolist(), lengths, strict=True):
        assert ids[0] == begin
        assert ids[length - 1] == end
        assert not any(map(any, ids[length:])), "padding is not zero"
    return input_ids.numpy()[:, 1:-1] * (mask.numpy()[:, 2:, None])


def nlpl_zip(nlpl: Elmo) -> Arrays:
    contents = nlpl.json("sentences.json")
    sentences, size = contents["sentences"], contents["max_batch_size"]
    batches = [sentences[start : start + size] for start in range(0, len(sentences), size)]
    longest = max(map(len, sentences))
    ours: Arrays = {f"batch{i}.character_ids": nlpl.encode(batch)[0].numpy() for i, batch in enumerate(batches)}
    padding = nlpl.padding_vector()
    for warmup in (False, True):
        states = nlpl.read(batches[0]).states if warmup else None
        parts: dict[str, list[Array]] = {"all": [], "average": [], "top": []}
        means: dict[str, list[Array]] = {"average": [], "top": []}
        for batch in batches:
            output = nlpl.read(batch, states)
            states = output.states
            words = output.without_boundaries()
            layers, average = words.layers.copy(), words.representation.copy()
            layers[0][~words.mask] = padding
            average[~words.mask] = padding / 3
            for name, vectors in (("all", layers.swapaxes(0, 1)), ("average", average), ("top", layers[2])):
                width = [(0, 0)] * vectors.ndim
                width[-2] = (0, longest - vectors.shape[-2])
                parts[name].append(np.pad(vectors, width))
                if name != "all":
                    mean = vectors.mean(axis=1)
                    means[name].append(mean / np.linalg.norm(mean, axis=1, keepdims=True))
        for name, values in parts.items():
            ours[f"{name}.warmup_{warmup}"] = np.concatenate(values)
        if not warmup:
            for name, values in means.items():
                ours[f"sentence_average.{name}.warmup_False"] = np.concatenate(values)
    return ours


def deeppavlov_hub(hub: Elmo) -> Arrays:
    """Every case of the module; `<S>` and `</S>` are plain words in it, so the ids do not come from the tokenizer."""
    contents = hub.json("sentences.json")
    sentences = contents["sentences"]
    aggregation = contents["aggregation"]
    (gamma,) = aggregation["elmo_output_ELMo_gamma"]
    if hub.model.config.mix_parameters is None:  # the HDF5 has no mix; the module has it
        parameters = [weight + 1 / 3 for weight in aggregation["elmo_output_ELMo_W"]]
        hub = replace(hub, model=copy.deepcopy(hub.model))
        set_mixes(hub.model, [parameters], [gamma])
    padding = hub.padding_vector()
    mixed_padding = gamma * float(hub.model.layer_weights().weights[0, 0]) * padding
    ours: Arrays = {}

    def run(case: str, words: Sequence[Sequence[str]], length: int | None = None, states: Any = None) -> Any:
        rows = [characters_of_sentence(sentence, special_words=False) for sentence in words]
        output = hub.run(*pad_rows(rows, None if length is None else length + 2), states)
        inner = output.without_boundaries()
        layers, elmo = inner.layers.copy(), inner.representation.copy()
        count = np.maximum(inner.mask.sum(axis=1, keepdims=True), 1)
        ours[f"{case}.default"] = elmo.sum(axis=1) / gamma / count
        layers[0][~inner.mask] = padding
        elmo[~inner.mask] = mixed_padding
        ours[f"{case}.elmo"] = elmo
        ours[f"{case}.word_emb"] = layers[0, ..., : len(padding) // 2]
        ours[f"{case}.lstm_outputs1"], ours[f"{case}.lstm_outputs2"] = layers[1:]
        return output.states

    for case in ("tokens.all", "default.all", "default.after_tokens_same_session"):
        states = run(case, sentences)
    run("tokens.all.second_run_same_session", sentences, states=states)
    run("default.spaces", [text.split() for text in contents["spaces_case"]], states=states)
    states = None
    for index, batch in enumerate([[sentences[i] for i in batch] for batch in contents["minibatches"]]):
        states = run(f"tokens.minibatch{index}", batch, states=states)
        run(f"tokens.minibatch{index}.fresh_session", batch)
    case = contents["lengths_case"]
    cut = [tokens[:length] for tokens, length in zip(case["tokens"], case["sequence_len"], strict=True)]
    run("tokens.lengths", cut, length=len(case["tokens"][0]))
    ours["state_carry.max_abs_diff_second_run"] = np.array(
        [
            np.abs(ours[f"tokens.all.second_run_same_session.{name}"] - ours[f"tokens.all.{name}"]).max()
            for name in HUB_OUTPUTS
        ]
    )
    return ours
