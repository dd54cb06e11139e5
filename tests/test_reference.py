"""The model against the independent NumPy biLM: values, states, masks and gradients on random architectures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_elmo.conversion import convert_checkpoint
from hf_elmo.lstm_elmo import ElmoLstm, pack_words, run_lstm
from hf_elmo.modeling_elmo import ElmoModel
from tests.assertions import assert_close, assert_far, assert_relative, assert_zero_at_padding
from tests.reference import (
    Architecture,
    Array,
    BatchOutput,
    ReferenceBiLm,
    States,
    characters_of_sentence,
    mix,
    random_weights,
    read_checkpoint,
    write_checkpoint,
)
from tests.reference_models import as_model, state_dict_of
from tests.shared_files import fixture_path
from tests.tiny_models import pad_rows

EXACT = 1e-9
GRADIENT = 1e-6

BASE = Architecture(char_dim=5, filters=((1, 4), (2, 3), (3, 8)), projection=6, cell=11)
ARCHITECTURES = {
    "as-published": BASE,
    "one-layer": BASE.but(layers=1, highways=1),
    "three-layers": BASE.but(layers=3, highways=0),
    "no-projection": BASE.but(projection=15, cell=9),
    "projection-of-equal-size": BASE.but(projection=15, cell=9, token_projection=True, highways=1),
    "tanh": BASE.but(activation="tanh", highways=1),
    "no-clip": BASE.but(cell_clip=None, projection_clip=None),
    "cell-clip-only": BASE.but(cell_clip=0.7, projection_clip=None),
    "projection-clip-only": BASE.but(cell_clip=None, projection_clip=0.9),
    "tight-clips": BASE.but(cell_clip=0.75, projection_clip=0.5, layers=3),
    "no-skip": BASE.but(skip=False, layers=3),
    "short-words": BASE.but(filters=((4, 3), (1, 2), (7, 5)), max_characters=9, cell=4, projection=7, cell_clip=1.0),
    "smallest": Architecture(1, ((1, 2),), 1, 1, layers=1, highways=0, activation="tanh", cell_clip=0.5),
}

SENTENCES = [
    ["Мама", "мыла", "раму"],
    [],
    ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "near", "the", "river", "bank", "."],
    ["extraordinarily", "naïve"],
]
BATCHES = [SENTENCES, [["one", "two"]], [["a"], [], ["c", "d", "e", "f"], ["g"], ["h", "i"]], [["end"], ["."]]]


def characters(architecture: Architecture, sentences: Sequence[Sequence[str]]) -> list[Array]:
    return [characters_of_sentence(words, architecture.max_characters) for words in sentences]


def assert_rows_close(
    output: torch.Tensor, rows: Sequence[Array], mask: torch.Tensor, tolerance: float, what: str
) -> None:
    """Asserts that the real words of an output (batch, seq, dim) are the rows of each sentence and the others 0."""
    for row, expected in enumerate(rows):
        assert_close(output[row][mask[row] == 1], expected, tolerance, f"{what}, sentence {row}")
    assert_zero_at_padding(output, mask, what)


def assert_batch_close(output: Any, expected: BatchOutput, mask: torch.Tensor, tolerance: float) -> None:
    """Asserts that every layer of every sentence and the states after it are the reference's."""
    assert len(output.hidden_states) == len(expected.layers[0])
    for index, layer in enumerate(output.hidden_states):
        assert_rows_close(layer, [rows[index] for rows in expected.layers], mask, tolerance, f"layer {index}")
    hidden, cell = output.states
    assert_close(hidden, expected.states.hidden, tolerance, "hidden states")
    assert_close(cell, expected.states.cell, tolerance, "cell states")


@pytest.fixture(params=list(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return ARCHITECTURES[request.param]


@pytest.fixture
def weights(architecture: Architecture) -> dict[str, Array]:
    return random_weights(architecture, seed=len(architecture.filters) + 10 * architecture.layers)


class TestTheReferenceItself:
    """The reference stands on the outputs of the original implementations, so that it can stand in for them."""

    @pytest.mark.parametrize("mode", ["stateless", "stateful"])
    def test_gives_the_layers_of_allennlp(self, mode: str) -> None:
        folder = fixture_path("allennlp_random")
        reference = ReferenceBiLm(*read_checkpoint(folder / "options.json", folder / "weights.hdf5"))
        expected = np.load(folder / "expected.npz")
        contents = json.loads((folder / "sentences.json").read_text())
        states: States | None = None
        for i, batch in enumerate(contents["batches"]):
            rows = [characters_of_sentence(contents["sentences"][index]) for index in batch]
            output = reference.batch(rows, states if mode == "stateful" else None)
            states = output.states
            for index in range(3):
                theirs = expected[f"{mode}.batch{i}.layer{index}.with_boundaries"]
                for row, layers in enumerate(output.layers):
                    assert_close(layers[index], theirs[row, : len(rows[row])], 2e-5, f"batch {i}, layer {index}")

    @pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "layernorm"])
    def test_gives_the_mix_of_allennlp(self, layer_norm: bool) -> None:
        folder = fixture_path("allennlp_random")
        reference = ReferenceBiLm(*read_checkpoint(folder / "options.json", folder / "weights.hdf5"))
        expected = np.load(folder / "expected.npz")
        contents = json.loads((folder / "sentences.json").read_text())
        output = reference.batch([characters_of_sentence(words) for words in contents["sentences"]])
        for k in range(2):
            parameters, gamma = contents["scalar_mix_parameters_2"][k], contents["gammas_2"][k]
            theirs = expected[f"elmo.{'layernorm' if layer_norm else 'plain'}.distinct.rep{k}"]
            for row, vectors in enumerate(mix(output.layers, np.array(parameters), gamma, layer_norm)):
                assert_close(vectors[1:-1], theirs[row, : len(vectors) - 2], 2e-5, f"representation {k}")

    def test_gives_the_original_tensorflow_vectors(self) -> None:
        folder = fixture_path("allennlp_tiny")
        reference = ReferenceBiLm(*read_checkpoint(folder / "options.json", folder / "lm_weights.hdf5"))
        streams = json.loads((folder / "sentences.json").read_text())
        expected = np.load(folder / "expected_all_layers.npz")
        states: States | None = None
        for i, batch in enumerate(zip(*streams, strict=True)):
            output = reference.batch([characters_of_sentence(text.split()) for text in batch], states)
            states = output.states
            for k, layers in enumerate(output.layers):
                for index, vectors in enumerate(layers):
                    assert_close(vectors[1:-1], expected[f"stream{k}.sentence{i}.layer{index}"], 5e-6)

    def test_hits_every_clip(self, architecture: Architecture, weights: dict[str, Array]) -> None:
        rows = characters(architecture, SENTENCES)
        clipped = ReferenceBiLm(architecture, weights).batch(rows)
        if architecture.cell_clip is not None:
            free = ReferenceBiLm(architecture.but(cell_clip=None), weights).batch(rows)
            assert_far(clipped.states.cell, free.states.cell, 0.1, "cells with and without their clip")
        if architecture.projection_clip is not None and architecture.projection > 1:
            free = ReferenceBiLm(architecture.but(projection_clip=None), weights).batch(rows)
            with_clip, without = (np.concatenate([rows[-1] for rows in output.layers]) for output in (clipped, free))
            assert_far(with_clip, without, 0.1, "outputs with and without their clip")


class TestForward:
    def test_layers_and_states_in_double_precision(
        self, architecture: Architecture, weights: dict[str, Array]
    ) -> None:
        rows = characters(architecture, SENTENCES)
        input_ids, mask = pad_rows(rows)
        model = as_model(architecture, weights).double()
        with torch.no_grad():
            output = model(input_ids, attention_mask=mask, output_hidden_states=True)
        assert_batch_close(output, ReferenceBiLm(architecture, weights).batch(rows), mask, EXACT)

    def test_layers_and_states_in_single_precision(
        self, architecture: Architecture, weights: dict[str, Array]
    ) -> None:
        rows = characters(architecture, SENTENCES)
        input_ids, mask = pad_rows(rows)
        model = as_model(architecture, weights)
        with torch.inference_mode():
            output = model(input_ids, attention_mask=mask, output_hidden_states=True)
        assert_batch_close(output, ReferenceBiLm(architecture, weights).batch(rows), mask, 5e-5)

    def test_training_gives_the_same_values(self, architecture: Architecture, weights: dict[str, Array]) -> None:
        rows = characters(architecture, SENTENCES)
        input_ids, mask = pad_rows(rows)
        model = as_model(architecture, weights, freeze_bilm=False, representation_dropout=0.0).double().train()
        output = model(input_ids, attention_mask=mask, output_hidden_states=True)
        assert_batch_close(output, ReferenceBiLm(architecture, weights).batch(rows), mask, EXACT)

    def test_states_are_carried_over_batches_of_changing_size(
        self, architecture: Architecture, weights: dict[str, Array]
    ) -> None:
        model, reference = as_model(architecture, weights).double(), ReferenceBiLm(architecture, weights)
        states, expected_states = None, None
        for batch in BATCHES:
            rows = characters(architecture, batch)
            input_ids, mask = pad_rows(rows)
            with torch.no_grad():
                output = model(input_ids, attention_mask=mask, states=states, output_hidden_states=True)
            expected = reference.batch(rows, expected_states)
            assert_batch_close(output, expected, mask, EXACT)
            states, expected_states = output.states, expected.states

    def test_the_token_layer_is_the_first_layer_in_both_halves(
        self, architecture: Architecture, weights: dict[str, Array]
    ) -> None:
        rows = characters(architecture, SENTENCES)
        input_ids, mask = pad_rows(rows)
        model, reference = as_model(architecture, weights).double(), ReferenceBiLm(architecture, weights)
        with torch.no_grad():
            layer = model(input_ids, attention_mask=mask, output_hidden_states=True).hidden_states[0]
        for half in layer.split(architecture.projection, dim=-1):
            assert_rows_close(half, [reference.token_layer(row) for row in rows], mask, EXACT, "token layer")


class TestRecurrence:
    """Every way behind `run_lstm` gives the reference's numbers, whatever the pattern of the mask."""

    MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]])

    @pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
    @pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
    def test_one_direction(
        self, architecture: Architecture, weights: dict[str, Array], packed: bool, reverse: bool
    ) -> None:
        name = f"encoder.layers.0.{'backward' if reverse else 'forward'}_lstm"
        lstm = as_model(architecture, weights).double().get_submodule(name)
        assert isinstance(lstm, ElmoLstm)
        mask = self.MASK.bool()
        rng = np.random.default_rng(6)
        inputs = rng.normal(size=(*mask.shape, architecture.projection))
        hidden = rng.uniform(-0.4, 0.4, (len(mask), architecture.projection))
        cell = rng.uniform(-0.4, 0.4, (len(mask), architecture.cell))
        with torch.no_grad():
            outputs, states = run_lstm(
                lstm,
                torch.as_tensor(inputs),
                mask,
                (torch.as_tensor(hidden), torch.as_tensor(cell)),
                reverse,
                pack_words(mask) if packed else None,
            )
        reference = ReferenceBiLm(architecture, weights)
        for row, words in enumerate(mask.numpy()):
            if not words.any():
                assert_close(states[0][row], hidden[row], 0.0, "hidden state of a row without words")
                assert_close(states[1][row], cell[row], 0.0, "cell state of a row without words")
                continue
            walk = np.flatnonzero(words)[:: -1 if reverse else 1]
            expected, *final = reference.lstm(inputs[row, walk], int(reverse), 0, hidden[row], cell[row])
            assert_close(outputs[row, walk.copy()], expected, EXACT, f"outputs of row {row}")
            assert_close(states[0][row], final[0], EXACT, f"hidden state of row {row}")
            assert_close(states[1][row], final[1], EXACT, f"cell state of row {row}")
        assert_zero_at_padding(outputs, mask)


class TestMasks:
    """A sentence's vectors are the reference's wherever its padding lies."""

    ARCHITECTURE = BASE.but(layers=3)

    @pytest.fixture
    def weights(self) -> dict[str, Array]:
        return random_weights(self.ARCHITECTURE, seed=5)

    @pytest.mark.parametrize("side", ["right", "left"])
    @pytest.mark.parametrize("length", [None, 23])
    def test_padding_on_either_side_and_more_than_needed(
        self, weights: dict[str, Array], side: str, length: int | None
    ) -> None:
        model, reference = as_model(self.ARCHITECTURE, weights).double(), ReferenceBiLm(self.ARCHITECTURE, weights)
        states, expected_states = None, None
        for batch in BATCHES:
            rows = characters(self.ARCHITECTURE, batch)
            input_ids, mask = pad_rows(rows, length, side)
            with torch.no_grad():
                output = model(input_ids, attention_mask=mask, states=states, output_hidden_states=True)
            expected = reference.batch(rows, expected_states)
            assert_batch_close(output, expected, mask, EXACT)
            states, expected_states = output.states, expected.states

    def test_a_row_without_any_word_keeps_its_states(self, weights: dict[str, Array]) -> None:
        model, reference = as_model(self.ARCHITECTURE, weights).double(), ReferenceBiLm(self.ARCHITECTURE, weights)
        rows = characters(self.ARCHITECTURE, SENTENCES)
        first = reference.batch(rows)
        rows[2] = rows[2][:0]
        input_ids, mask = pad_rows(rows)
        states = (torch.as_tensor(first.states.hidden), torch.as_tensor(first.states.cell))
        with torch.no_grad():
            output = model(input_ids, attention_mask=mask, states=states, output_hidden_states=True)
        assert_batch_close(output, reference.batch(rows, first.states), mask, EXACT)

    def test_characters_below_a_masked_position_do_not_matter(self, weights: dict[str, Array]) -> None:
        model, reference = as_model(self.ARCHITECTURE, weights).double(), ReferenceBiLm(self.ARCHITECTURE, weights)
        rows = characters(self.ARCHITECTURE, SENTENCES)
        input_ids, mask = pad_rows(rows)
        input_ids[mask == 0] = 77
        with torch.no_grad():
            output = model(input_ids, attention_mask=mask, output_hidden_states=True)
        assert_batch_close(output, reference.batch(rows), mask, EXACT)

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_without_a_mask_rows_of_zeros_are_padding(self, weights: dict[str, Array], side: str) -> None:
        model, reference = as_model(self.ARCHITECTURE, weights).double(), ReferenceBiLm(self.ARCHITECTURE, weights)
        rows = characters(self.ARCHITECTURE, SENTENCES)
        input_ids, mask = pad_rows(rows, side=side)
        with torch.no_grad():
            output = model(input_ids, output_hidden_states=True)
        assert_batch_close(output, reference.batch(rows), mask, EXACT)

    def test_a_row_of_zeros_that_is_not_masked_is_a_word_without_characters(self, weights: dict[str, Array]) -> None:
        model, reference = as_model(self.ARCHITECTURE, weights).double(), ReferenceBiLm(self.ARCHITECTURE, weights)
        rows = characters(self.ARCHITECTURE, [["a", "b", "c"]])
        rows[0][2] = 0
        input_ids, mask = pad_rows(rows)
        with torch.no_grad():
            output = model(input_ids, attention_mask=mask, output_hidden_states=True)
        assert_batch_close(output, reference.batch(rows), mask, EXACT)

    def test_a_long_sentence_among_short_ones(self, weights: dict[str, Array]) -> None:
        model, reference = as_model(self.ARCHITECTURE, weights).double(), ReferenceBiLm(self.ARCHITECTURE, weights)
        rows = characters(self.ARCHITECTURE, [[f"w{i}" for i in range(131)], ["x"], ["y"] * 64])
        input_ids, mask = pad_rows(rows)
        with torch.no_grad():
            output = model(input_ids, attention_mask=mask, output_hidden_states=True)
        assert_batch_close(output, reference.batch(rows), mask, EXACT)


class TestMix:
    ARCHITECTURE = BASE

    @pytest.fixture
    def weights(self) -> dict[str, Array]:
        return random_weights(self.ARCHITECTURE, seed=8)

    @pytest.mark.parametrize("layer_norm", [False, True])
    def test_every_representation_is_a_mix_of_its_own(self, weights: dict[str, Array], layer_norm: bool) -> None:
        parameters, gammas = np.array([[0.3, -0.7, 1.1], [-1.0, 0.75, 0.2]]), [0.7, 1.9]
        model = as_model(self.ARCHITECTURE, weights, num_output_representations=2, mix_layer_norm=layer_norm).double()
        set_mixes(model, parameters, gammas)
        rows = characters(self.ARCHITECTURE, SENTENCES)
        input_ids, mask = pad_rows(rows)
        with torch.no_grad():
            output = model(input_ids, attention_mask=mask)
        layers = ReferenceBiLm(self.ARCHITECTURE, weights).batch(rows).layers
        assert len(output.representations) == 2
        for k, representation in enumerate(output.representations):
            expected = mix(layers, parameters[k], gammas[k], layer_norm)
            assert_rows_close(representation, expected, mask, EXACT, f"representation {k}")
        assert_close(output.last_hidden_state, output.representations[0], 0.0, "last hidden state")

    def test_starts_from_the_scalars_and_the_gamma_of_the_configuration(self, weights: dict[str, Array]) -> None:
        parameters = [0.5, -0.25, 2.0]
        model = as_model(self.ARCHITECTURE, weights, mix_parameters=parameters, mix_gamma=1.25).double()
        rows = characters(self.ARCHITECTURE, SENTENCES)
        input_ids, mask = pad_rows(rows)
        with torch.no_grad():
            output = model(input_ids, attention_mask=mask)
        expected = mix(ReferenceBiLm(self.ARCHITECTURE, weights).batch(rows).layers, np.array(parameters), 1.25)
        assert_rows_close(output.last_hidden_state, expected, mask, EXACT, "representation")


def set_mixes(model: ElmoModel, parameters: Array, gammas: Sequence[float] | Array) -> None:
    """Sets the scalars (representations, layers + 1) and the gammas of a model's mixes."""
    with torch.no_grad():
        for k in range(len(gammas)):
            model.get_parameter(f"representations.{k}.scalar_parameters").copy_(torch.as_tensor(parameters[k]))
            model.get_parameter(f"representations.{k}.gamma").fill_(gammas[k])


class Loss:
    """A random linear function of everything that the model gives, for the reference and for the model.

    The mix's own parameters and the states to start from (`extras`) stand among the weights, under names that no
    checkpoint has.
    """

    SCALARS, GAMMA, HIDDEN, CELL = "mix/scalars", "mix/gamma", "states/hidden", "states/cell"

    def __init__(self, architecture: Architecture, layer_norm: bool, seed: int) -> None:
        self.architecture, self.layer_norm = architecture, layer_norm
        self.rows = characters(architecture, [["Ab", "ä"], ["Long", "words", "of", "it"]])
        rng = np.random.default_rng(seed)
        shape = (architecture.layers, len(self.rows), 2)
        self.extras = {
            self.SCALARS: rng.normal(size=architecture.layers + 1),
            self.GAMMA: rng.normal(size=1) + 2.0,
            self.HIDDEN: rng.uniform(-0.4, 0.4, (*shape[:2], 2 * architecture.projection)),
            self.CELL: rng.uniform(-0.4, 0.4, (*shape[:2], 2 * architecture.cell)),
        }
        self.for_states = [rng.normal(size=self.extras[name].shape) for name in (self.HIDDEN, self.CELL)]
        size = 2 * architecture.projection
        self.for_mix = [rng.normal(size=(len(row), size)) for row in self.rows]
        self.for_layers = [rng.normal(size=(architecture.layers + 1, len(row), size)) for row in self.rows]

    def of_reference(self, weights: dict[str, Array]) -> float:
        states = States(weights[self.HIDDEN], weights[self.CELL])
        output = ReferenceBiLm(self.architecture, weights).batch(self.rows, states)
        mixed = mix(output.layers, weights[self.SCALARS], float(weights[self.GAMMA][0]), self.layer_norm)
        total = (output.states.hidden * self.for_states[0]).sum() + (output.states.cell * self.for_states[1]).sum()
        for row in range(len(self.rows)):
            total += (mixed[row] * self.for_mix[row]).sum()
            total += (np.stack(output.layers[row]) * self.for_layers[row]).sum()
        return float(total)

    def of_model(self, model: ElmoModel, states: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        input_ids, mask = pad_rows(self.rows)
        output = model(input_ids, attention_mask=mask, states=states, output_hidden_states=True)
        total = sum(
            (state * torch.as_tensor(factor)).sum()
            for state, factor in zip(output.states, self.for_states, strict=True)
        )
        layers = torch.stack(output.hidden_states)
        for row, length in enumerate(len(row) for row in self.rows):
            total = total + (output.last_hidden_state[row, :length] * torch.as_tensor(self.for_mix[row])).sum()
            total = total + (layers[:, row, :length] * torch.as_tensor(self.for_layers[row])).sum()
        return total


def assert_gradient_matches(architecture: Architecture, weights: dict[str, Array], layer_norm: bool = False) -> None:
    """Asserts that autograd's directional derivatives are the central differences of the reference.

    The directions: every array alone (each weight, the mix's scalars and gamma, the states to start from), and three
    times all of them together.
    """
    loss = Loss(architecture, layer_norm, seed=3)
    model = as_model(architecture, weights, freeze_bilm=False, representation_dropout=0.0, mix_layer_norm=layer_norm)
    model = model.double().train()
    set_mixes(model, loss.extras[Loss.SCALARS][None], loss.extras[Loss.GAMMA])
    hidden, cell = (torch.tensor(loss.extras[name], requires_grad=True) for name in (Loss.HIDDEN, Loss.CELL))
    value = loss.of_model(model, (hidden, cell))
    value.backward()
    everything = weights | loss.extras
    assert_relative(value.item(), loss.of_reference(everything), EXACT, 1.0, "loss")

    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients |= {Loss.HIDDEN: hidden.grad, Loss.CELL: cell.grad}
    for ours, original in (("scalar_parameters", Loss.SCALARS), ("gamma", Loss.GAMMA)):
        gradients[original] = gradients.pop(f"representations.0.{ours}")
    missing = [name for name, gradient in gradients.items() if gradient is None]
    assert not missing, f"no gradient reaches {missing}"

    rng = np.random.default_rng(4)
    groups = [[name] for name in everything] + [list(everything)] * 3
    origin = state_dict_of(architecture, weights)
    step = 1e-6
    for names in groups:
        direction = {
            name: rng.normal(size=array.shape) if name in names else np.zeros_like(array)
            for name, array in everything.items()
        }
        above, below = (
            loss.of_reference({name: array + sign * direction[name] for name, array in everything.items()})
            for sign in (step, -step)
        )
        # The tables are linear but for the forget bias, which is why the direction is a difference.
        moved = state_dict_of(architecture, {name: weights[name] + direction[name] for name in weights})
        changes = {name: moved[name] - origin[name] for name in moved}
        changes |= {name: torch.as_tensor(direction[name]) for name in loss.extras}
        terms = torch.cat([(gradients[name] * change).flatten() for name, change in changes.items()])
        scale = float(terms.abs().sum())
        assert scale > 0, f"the direction {names} changes nothing"
        derivative = (above - below) / (2 * step)
        assert_relative(float(terms.sum()), derivative, GRADIENT, 0.1 * scale, f"derivative along {', '.join(names)}")


class TestGradient:
    """Autograd against finite differences of the reference, in double precision, to a relative 1e-6."""

    def test_every_parameter_of_every_architecture(
        self, architecture: Architecture, weights: dict[str, Array]
    ) -> None:
        assert_gradient_matches(architecture, weights)

    def test_through_the_layer_norm_of_the_mix(self) -> None:
        assert_gradient_matches(BASE, random_weights(BASE, seed=1), layer_norm=True)

    def test_padding_and_characters_below_it_get_none(self) -> None:
        model = as_model(BASE, random_weights(BASE, seed=1), freeze_bilm=False, representation_dropout=0.0).double()
        rows = characters(BASE, [["aa", "a", "aaa"], ["a"]])
        input_ids, mask = pad_rows(rows)
        input_ids[mask == 0] = ord("z") + 1
        output = model(input_ids, attention_mask=mask, output_hidden_states=True)
        (output.last_hidden_state.sum() + sum(layer.sum() for layer in output.hidden_states)).backward()
        gradient = model.embeddings.character_embeddings.weight.grad
        assert gradient is not None
        assert gradient[ord("a") + 1].any()
        assert not gradient[ord("z") + 1].any(), "a character that only stands at padding gets a gradient"
        assert not gradient[0].any(), "the row of masked positions gets a gradient"


def test_a_checkpoint_written_from_the_reference_converts_whole(tmp_path: Path) -> None:
    """The way through the files: write, convert, load, compare; the other tests map the arrays in memory."""
    architecture = ARCHITECTURES["tight-clips"]
    weights = random_weights(architecture, seed=2)
    source = tmp_path / "source"
    source.mkdir()
    options_path, weights_path = write_checkpoint(source, architecture, weights)
    convert_checkpoint(weights_path, tmp_path / "converted", options=options_path)
    model = ElmoModel.from_pretrained(tmp_path / "converted").eval().double()
    rows = characters(architecture, SENTENCES)
    input_ids, mask = pad_rows(rows)
    with torch.no_grad():
        output = model(input_ids, attention_mask=mask, output_hidden_states=True)
    assert_batch_close(output, ReferenceBiLm(architecture, weights).batch(rows), mask, EXACT)
