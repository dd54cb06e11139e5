"""Every fast path gives the numbers of the plain path, is never out of date, and can be switched off."""

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hf_elmo import (
    ElmoConfig,
    ElmoForSequenceClassification,
    ElmoModel,
    buffers_elmo,
    packed_weights_elmo,
    word_cache_elmo,
)
from hf_elmo.buffers_elmo import Buffers
from hf_elmo.character_encoder_elmo import LargestProduct, distinct_rows
from hf_elmo.cli import app
from hf_elmo.fast_paths_elmo import FAST_PATHS, VARIABLE, is_enabled, without_fast_paths
from hf_elmo.lstm_elmo import ElmoLstm, lstm_over_mask, pack_words, run_lstm
from hf_elmo.packed_weights_elmo import why_not_packed
from hf_elmo.quantization import quantize_dynamic
from tests.assertions import assert_close, assert_far, assert_identical
from tests.tiny_models import tiny_batch

pytestmark = pytest.mark.skipif(VARIABLE in os.environ, reason=f"{VARIABLE} switches fast paths off")

# Large enough for packed weights, odd enough for their kernels.
SIZES = {"projection_size": 97, "cell_size": 351, "filters": [[1, 40], [2, 60], [3, 130]], "num_highway_layers": 1}
LENGTHS = [(1,), (5, 5, 5), (7, 1, 3, 0, 2), (63, 17, 62)]


@pytest.fixture(autouse=True)
def small_tensors_are_reused_too(monkeypatch):
    monkeypatch.setattr(buffers_elmo, "SMALLEST_BYTES", 1)


def large_model(**overrides) -> ElmoModel:
    """A model whose matrices are packed and whose clips are hit often."""
    torch.manual_seed(0)
    config = ElmoConfig(**{**SIZES, "cell_clip": 0.3, "projection_clip": 0.2, "freeze_bilm": False, **overrides})
    model = ElmoModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def large_lstm(dtype: torch.dtype, clips=(0.3, 0.2)) -> ElmoLstm:
    torch.manual_seed(0)
    lstm = ElmoLstm(97, 131, *clips)
    for parameter in lstm.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return lstm.to(dtype)


def mask_of(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def over_packed_words(lstm, inputs, mask, state, reverse):
    return run_lstm(lstm, inputs, mask, state, reverse, pack_words(mask))


def vectors(model: ElmoModel, batch=None) -> torch.Tensor:
    """What a model gives without gradients."""
    with torch.no_grad():
        return model(**(batch or tiny_batch())).last_hidden_state


def plain_vectors(model: ElmoModel, batch=None) -> torch.Tensor:
    """What a copy of a model gives that never ran a fast path."""
    with without_fast_paths():
        return vectors(copy.deepcopy(model), batch)


def packed_copies(model: ElmoModel) -> int:
    return sum(
        weight.is_packed
        for module in model.modules()
        if isinstance(module, ElmoLstm)
        for weight in vars(module.packed).values()
    )


class TestSameNumbers:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("clips", [(0.3, 0.2), (None, None)], ids=str)
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("lengths", LENGTHS, ids=str)
    def test_the_fused_recurrence_is_the_reference_forward_and_backward(self, lengths, reverse, clips, dtype):
        lstm, mask = large_lstm(dtype, clips), mask_of(lengths)
        torch.manual_seed(1)
        inputs = torch.randn(*mask.shape, 97).to(dtype)
        state = torch.randn(len(lengths), 97).to(dtype), torch.randn(len(lengths), 131).to(dtype)
        truth = self.values_and_gradients(lstm, lstm_over_mask, inputs.double(), state, mask, reverse)
        ours = self.values_and_gradients(lstm, over_packed_words, inputs, state, mask, reverse)
        for index, (value, expected) in enumerate(zip(ours, truth, strict=True)):
            scale = expected.abs().max().clamp(min=1.0)
            tolerance = 5e-5 if dtype == torch.float32 else 1e-12
            assert_close(value.double() / scale, expected / scale, tolerance, f"value or gradient {index}")

    @pytest.mark.parametrize("lengths", LENGTHS, ids=str)
    def test_in_bfloat16_it_is_about_as_far_from_the_truth_as_the_reference(self, lengths):
        lstm, mask = large_lstm(torch.bfloat16), mask_of(lengths)
        torch.manual_seed(1)
        inputs = torch.randn(*mask.shape, 97).bfloat16()
        state = torch.randn(len(lengths), 97).bfloat16(), torch.randn(len(lengths), 131).bfloat16()
        arguments = (state, mask, False)
        truth = self.values_and_gradients(lstm, lstm_over_mask, inputs.double(), *arguments)
        reference = self.values_and_gradients(lstm, lstm_over_mask, inputs, *arguments)
        ours = self.values_and_gradients(lstm, over_packed_words, inputs, *arguments)
        for index, (value, other, expected) in enumerate(zip(ours, reference, truth, strict=True)):
            error, others, size = (part.double().norm() for part in (value - expected, other - expected, expected))
            assert error <= 1.6 * others + 0.01 * size, f"value or gradient {index}: {error} against {others}"

    def test_what_is_no_number_stays_none(self):
        for name in ("encoder.layers.1.forward_lstm.projection.weight", "embeddings.highways.0.carry.bias"):
            model = large_model()
            with torch.no_grad():
                model.get_parameter(name).view(-1)[3] = torch.nan
            torch.testing.assert_close(vectors(model).isnan(), plain_vectors(model).isnan())
            assert vectors(model).isnan().any()

    @staticmethod
    def values_and_gradients(lstm, run, inputs, state, mask, reverse) -> list[torch.Tensor]:
        lstm = copy.deepcopy(lstm).to(inputs.dtype)
        leaves = [part.detach().to(inputs.dtype).requires_grad_() for part in (inputs, *state)]
        outputs, final = run(lstm, leaves[0], mask, (leaves[1], leaves[2]), reverse)
        sum(part.sin().sum() * (1 + index) for index, part in enumerate((outputs, *final))).backward()
        return [outputs.detach(), *(part.detach() for part in final)] + [
            leaf.grad for leaf in (*leaves, *lstm.parameters())
        ]

    @pytest.mark.parametrize("name", [*FAST_PATHS, "all"])
    def test_a_model_gives_the_same_without_it(self, name):
        model = large_model()
        expected = vectors(model.double(), tiny_batch())
        model.float()
        assert_close(vectors(model).double(), expected, 1e-5)
        with without_fast_paths(name):
            assert_close(vectors(model).double(), expected, 1e-5)

    def test_repeated_words_and_carried_states_change_nothing(self):
        model = large_model()
        batch = tiny_batch([["the", "cat", "the", "cat", "the"], ["the", "the"]])
        with torch.no_grad():
            states = model(**batch).states
            ours = model(**batch, states=states)
            with without_fast_paths():
                expected = copy.deepcopy(model)(**batch, states=states)
        assert_close(ours.last_hidden_state, expected.last_hidden_state, 1e-5)
        for one, other in zip(ours.states, expected.states, strict=True):
            assert_close(one, other, 1e-5)

    def test_gradients_of_a_whole_model(self):
        ours, expected = self.gradients_of(large_model()), None
        with without_fast_paths():
            expected = self.gradients_of(large_model())
        for name, gradient in expected.items():
            scale = gradient.abs().max().clamp(min=1e-3)
            assert_close(ours[name] / scale, gradient / scale, 2e-4, name)

    @staticmethod
    def gradients_of(model: ElmoModel) -> dict[str, torch.Tensor]:
        model(**tiny_batch()).last_hidden_state.sin().sum().backward()
        return {name: part.grad for name, part in model.named_parameters() if part.grad is not None}

    def test_gradients_of_gradients(self):
        def penalty(model: ElmoModel) -> list[torch.Tensor]:
            parameters = [part for part in model.parameters() if part.requires_grad]
            loss = model(**tiny_batch()).last_hidden_state.sin().sum()
            first = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
            norm = sum(part.pow(2).sum() for part in first if part is not None)
            second = torch.autograd.grad(norm, parameters, allow_unused=True)
            return [part for part in second if part is not None]

        ours = penalty(large_model().double())
        with without_fast_paths():
            expected = penalty(large_model().double())
        for index, (one, other) in enumerate(zip(ours, expected, strict=True)):
            assert_close(one / other.abs().max(), other / other.abs().max(), 1e-9, f"parameter {index}")

    def test_many_gradients_at_once(self):
        def jacobian(**arguments) -> list[torch.Tensor]:
            model = large_model().double()
            parameters = [part for part in model.parameters() if part.requires_grad]
            batch = tiny_batch([["the", "cat", "the"], ["a"]])
            some = model(**batch).last_hidden_state[:, 0, :2].flatten()
            rows = torch.autograd.grad(
                some, parameters, torch.eye(len(some)).double(), is_grads_batched=True, allow_unused=True, **arguments
            )
            return [part for part in rows if part is not None]

        with without_fast_paths():
            expected = jacobian()
        for arguments in ({}, {"create_graph": True}):
            ours = jacobian(**arguments)
            assert all(part.requires_grad == bool(arguments) for part in ours)
            for index, (one, other) in enumerate(zip(ours, expected, strict=True)):
                assert_close(one.detach(), other, 1e-9, f"parameter {index}")

    def test_a_vectorized_jacobian_of_the_recurrence(self):
        lstm, mask = large_lstm(torch.float64), mask_of((4, 2))
        inputs, state = torch.randn(2, 4, 97).double(), (torch.zeros(2, 97).double(), torch.zeros(2, 131).double())

        def some(inputs: torch.Tensor) -> torch.Tensor:
            return over_packed_words(lstm, inputs, mask, state, False)[0][0, -1, :3]

        ours, expected = (
            torch.autograd.functional.jacobian(some, inputs, vectorize=vectorize) for vectorize in (True, False)
        )
        assert_close(ours, expected, 1e-12)
        assert expected.any()

    def test_a_backward_pass_twice(self):
        model = large_model()
        loss = model(**tiny_batch()).last_hidden_state.sum()
        loss.backward(retain_graph=True)
        once = {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
        loss.backward()
        for name, part in model.named_parameters():
            if part.grad is not None:
                assert_close(part.grad, 2 * once[name], 1e-6 * max(1.0, float(once[name].abs().max())), name)

    @pytest.mark.parametrize("frozen", [False, True])
    def test_under_autocast_it_is_about_as_far_from_the_truth_as_the_reference(self, frozen):
        model = large_model(freeze_bilm=frozen)
        truth = self.outputs_and_gradients(copy.deepcopy(model).double(), frozen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours = self.outputs_and_gradients(model, frozen)
            with without_fast_paths():
                reference = self.outputs_and_gradients(copy.deepcopy(model), frozen)
        assert ours.keys() == reference.keys() == truth.keys()
        for name, expected in truth.items():
            assert ours[name].dtype == reference[name].dtype, name
            error, others = ((part[name].double() - expected).norm() for part in (ours, reference))
            assert error <= 1.6 * others + 0.01 * expected.norm(), f"{name}: {error} against {others}"

    @staticmethod
    def outputs_and_gradients(model: ElmoModel, frozen: bool) -> dict[str, torch.Tensor]:
        outputs = model(**tiny_batch())
        values = {"outputs": outputs.last_hidden_state, "hidden": outputs.states[0], "cell": outputs.states[1]}
        outputs.last_hidden_state.float().sin().sum().backward()
        gradients = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
        assert frozen == (len(gradients) < 5)
        return {name: part.detach() for name, part in values.items()} | gradients

    def test_autocast_comes_and_goes(self):
        model = large_model()
        expected = vectors(model)
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert_close(vectors(model).float(), expected, 0.05)
                assert packed_copies(model) == 12
                model.get_parameter(WEIGHTS[1]).data.mul_(1.25)
                changed = vectors(model).float()
            assert_close(vectors(model), plain_vectors(model), 1e-5)
            assert_close(changed, vectors(model), 0.05)
            expected = vectors(model)

    def test_gradients_of_gradients_under_autocast(self):
        model = large_model()
        parameter = model.get_parameter(WEIGHTS[1])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**tiny_batch()).last_hidden_state.float().sin().sum()
            (first,) = torch.autograd.grad(loss, parameter, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), parameter)
        assert second.isfinite().all()
        assert second.any()

    def test_a_transform_of_torch_func_goes_through_the_plain_path(self):
        lstm = large_lstm(torch.float64)
        mask = mask_of((4, 2))
        inputs, state = torch.randn(2, 4, 97).double(), (torch.zeros(2, 97).double(), torch.zeros(2, 131).double())

        def total(inputs: torch.Tensor, run: Callable) -> torch.Tensor:
            return run(inputs)[0].sin().sum()

        ours = torch.func.grad(lambda x: total(x, lambda x: run_lstm(lstm, x, mask, state, False, pack_words(mask))))
        expected = torch.func.grad(lambda x: total(x, lambda x: lstm_over_mask(lstm, x, mask, state, False)))
        assert_close(ours(inputs), expected(inputs), 1e-12)


@torch.no_grad()
def swap_rows(weight: torch.Tensor) -> None:
    weight.data[[1, 2]] = weight.data[[2, 1]]


@torch.no_grad()
def swap_columns(weight: torch.Tensor) -> None:
    weight.data[:, [1, 2]] = weight.data[:, [2, 1]]


def change_through_numpy(weight: torch.Tensor) -> None:
    weight.detach().numpy()[3] *= 2


def change_without_a_version(weight: torch.Tensor) -> None:
    weight.data.mul_(1.25)


def change_one_number(weight: torch.Tensor) -> None:
    weight.data.view(-1)[7] += 0.5


def change_and_give_back(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.add_(0.1)


def take_an_optimizer_step(weight: torch.Tensor) -> None:
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], lr=0.1).step()


def set_other_data(weight: torch.Tensor) -> None:
    weight.data = weight.data * 1.25


CHANGES = [
    swap_rows,
    swap_columns,
    change_through_numpy,
    change_without_a_version,
    change_one_number,
    change_and_give_back,
    take_an_optimizer_step,
    set_other_data,
]
WEIGHTS = [
    "encoder.layers.0.forward_lstm.input_gates.weight",
    "encoder.layers.1.backward_lstm.recurrent_gates.weight",
    "encoder.layers.1.forward_lstm.projection.weight",
    "embeddings.highways.0.carry.weight",
    "embeddings.convolutions.2.weight",
]


class TestNeverOutOfDate:
    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("name", WEIGHTS)
    def test_a_weight_that_was_changed_in_whatever_way(self, name, change):
        model = large_model(projection_size=260, cell_size=130)
        before = vectors(model)
        change(model.get_parameter(name))
        assert_close(vectors(model), plain_vectors(model), 1e-5)
        assert_far(vectors(model), before, 1e-4)

    @pytest.mark.parametrize("name", ["embeddings.character_embeddings.weight", "embeddings.projection.bias"])
    def test_what_is_not_packed_but_behind_the_cache(self, name):
        model = large_model()
        before = vectors(model)
        model.get_parameter(name).data.add_(0.1)
        assert_close(vectors(model), plain_vectors(model), 1e-5)
        assert_far(vectors(model), before, 1e-3)

    def test_other_weights_are_loaded(self):
        model, other = large_model(), large_model()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(0.9)
        vectors(model)
        model.load_state_dict(other.state_dict())
        assert_identical(vectors(model), vectors(other))

    def test_between_the_steps_of_a_training(self):
        model = large_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
        for _ in range(3):
            model(**tiny_batch()).last_hidden_state.pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert_close(vectors(model), plain_vectors(model), 1e-5)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
    def test_another_type_and_back(self, dtype):
        model = large_model()
        expected = vectors(model)
        assert_close(vectors(model.to(dtype)).float(), expected, 0.1)
        assert vectors(model).dtype == dtype
        again = vectors(model.float())
        assert_close(again, plain_vectors(model), 1e-5)

    def test_an_adapter_before_and_after_it_is_merged(self):
        peft = pytest.importorskip("peft")
        model = large_model()
        before = vectors(model)
        targets = ["input_gates", "recurrent_gates", "encoder.layers.0.forward_lstm.projection"]
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, init_lora_weights=False)).eval()
        with torch.no_grad():
            expected = adapted(**tiny_batch()).last_hidden_state
            assert_far(expected, before, 1e-3)
            adapted.merge_adapter()
            assert_close(adapted(**tiny_batch()).last_hidden_state, expected, 1e-5)
            adapted.unmerge_adapter()
            merged = adapted.merge_and_unload()
            assert_close(merged(**tiny_batch()).last_hidden_state, expected, 1e-5)
            assert_close(vectors(merged), plain_vectors(merged), 1e-5)

    @pytest.mark.parametrize(
        "name", ["encoder.layers.0.forward_lstm.recurrent_gates", "embeddings.highways.0", "embeddings.projection"]
    )
    def test_a_hook_sees_what_the_modules_compute(self, name):
        model = large_model()
        expected = vectors(model)
        seen = []
        layer = model.get_submodule(name)
        handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
        assert_close(vectors(model), expected, 1e-5)
        assert seen
        handle.remove()
        seen.clear()
        vectors(model)
        assert not seen

    @pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
    @pytest.mark.parametrize("done", range(5))
    def test_a_call_that_was_cut_off_while_it_packed(self, monkeypatch, done, stop):
        model, pack, packed = large_model(), packed_weights_elmo._pack, []
        before = vectors(model)
        for parameter in model.parameters():
            parameter.data.mul_(1.25)

        def cut_off(weight: torch.Tensor) -> torch.Tensor:
            if len(packed) == done:
                raise stop
            packed.append(weight.shape)
            return pack(weight)

        monkeypatch.setattr(packed_weights_elmo, "_pack", cut_off)
        with pytest.raises(stop):
            vectors(model)
        monkeypatch.setattr(packed_weights_elmo, "_pack", pack)
        assert_close(vectors(model), plain_vectors(model), 1e-5)
        assert_far(vectors(model), before, 1e-3)


class TestCopies:
    def test_they_are_not_in_the_state_dict_nor_in_copies_of_the_model(self):
        model = large_model()
        names = set(model.state_dict())
        expected = vectors(model)
        assert packed_copies(model) == 12
        assert set(model.state_dict()) == names
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert packed_copies(other) == 0
            assert len(other.embeddings.word_cache) == 0
            assert_identical(vectors(other), expected)

    def test_switched_off_they_are_freed(self):
        model = large_model()
        expected = vectors(model)
        with without_fast_paths("packed_weights", "word_cache"):
            assert_close(vectors(model), expected, 1e-5)
            assert packed_copies(model) == 0
            assert len(model.embeddings.word_cache) == 0
        vectors(model)
        assert packed_copies(model) == 12

    def test_tiny_matrices_have_none(self):
        model = large_model(projection_size=4, cell_size=8)
        vectors(model)
        assert packed_copies(model) == 0


class TestBuffers:
    def test_memory_is_used_again_when_nothing_refers_to_it(self):
        store, like = Buffers(), torch.empty(0)
        first = store.empty((30, 7), like)
        address = first.data_ptr()
        assert (address % 64, first.shape, first.dtype) == (0, (30, 7), torch.float32)
        view = first[3:5]
        del first
        assert store.free_bytes == 0
        other = store.empty((30, 7), like)
        assert other.data_ptr() != address
        del view
        assert store.free_bytes > 0
        assert store.empty((25, 4, 2), like).data_ptr() == address

    def test_what_is_saved_for_a_backward_pass_is_not_used_again(self):
        store = Buffers()
        values = store.empty((50,), torch.empty(0)).fill_(2)
        weight = torch.ones(50, requires_grad=True)
        product = weight * values
        del values
        for _ in range(3):
            store.empty((50,), torch.empty(0)).fill_(7)
        product.sum().backward()
        assert weight.grad.eq(2).all()

    def test_two_graphs_at_once(self):
        model, expected = large_model(), large_model()
        batches = [tiny_batch([["one", "two", "three"], ["four"]]), tiny_batch([["five", "six"]]), tiny_batch()]
        losses = [model(**batch).last_hidden_state.sin().sum() for batch in batches]
        for loss in (losses[1], losses[0], losses[2]):
            loss.backward()
        with without_fast_paths():
            sum(expected(**batch).last_hidden_state.sin().sum() for batch in batches).backward()
        for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
            if theirs.grad is not None:
                scale = theirs.grad.abs().max().clamp(min=1e-3)
                assert_close(ours.grad / scale, theirs.grad / scale, 2e-4, name)

    def test_it_is_bounded_and_given_back_by_calls_without_gradients(self, monkeypatch):
        store = Buffers()
        monkeypatch.setattr(buffers_elmo, "LARGEST_BYTES", 1000)
        tensors = [store.empty((100,), torch.empty(0)) for _ in range(5)]
        del tensors
        assert 0 < store.free_bytes <= 1000
        monkeypatch.undo()
        monkeypatch.setattr(buffers_elmo, "SMALLEST_BYTES", 1)
        model = large_model()
        model(**tiny_batch()).last_hidden_state.sum().backward()
        vectors(model)
        assert buffers_elmo.buffers.free_bytes > 0
        monkeypatch.setattr(buffers_elmo, "MOST_IDLE_CALLS", 2)
        vectors(model)
        assert buffers_elmo.buffers.free_bytes == 0

    def test_little_memory_takes_no_large_block_and_growing_tensors_leave_no_small_ones(self):
        store, like = Buffers(), torch.empty(0)
        store.empty((10_000,), like)
        kept = store.empty((100,), like)
        assert store.free_bytes >= 40_000
        del kept
        for size in range(10_000, 19_000, 1_000):
            store.empty((size,), like)
        assert store.free_bytes < 2 * 4 * 19_000

    def test_switched_off_it_is_torchs_own(self):
        store = Buffers()
        with without_fast_paths("reused_buffers"):
            store.empty((100,), torch.empty(0))
        assert store.free_bytes == 0

    def test_in_many_threads(self):
        store = Buffers()

        def use(number: int) -> bool:
            values = store.empty((20 + number % 7, 50), torch.empty(0)).fill_(number)
            return bool(values.eq(number).all()) and bool((values + 1).eq(number + 1).all())

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(use, range(400)))


class TestTokenLayer:
    @pytest.mark.parametrize("places", [1, 3, 300])
    def test_the_gradient_of_a_maximum_goes_to_its_first_place(self, places):
        torch.manual_seed(0)
        seen = torch.randn(5, places, 4, dtype=torch.float64)
        seen[1] = seen[1, :1]  # all places are equal
        seen[2, -1] = seen[2, 0]
        weight = torch.randn(6, 4, dtype=torch.float64)

        def largest(run: Callable) -> list[torch.Tensor]:
            leaves = [part.clone().requires_grad_() for part in (seen, weight)]
            values = run(*leaves)
            values.sin().sum().backward()
            return [values.detach(), *(leaf.grad for leaf in leaves)]

        expected = largest(lambda seen, weight: (seen @ weight.T).max(dim=1).values)
        for ours, theirs in zip(largest(LargestProduct.apply), expected, strict=True):
            assert_close(ours, theirs, 1e-12)
        leaves = [part.clone().requires_grad_() for part in (seen[[0, 3]], weight)]
        assert torch.autograd.gradcheck(LargestProduct.apply, leaves)
        assert torch.autograd.gradgradcheck(LargestProduct.apply, leaves)

    def test_what_is_no_number_stays_none(self):
        seen = torch.randn(2, 3, 4)
        seen[1, 2, 0] = torch.nan
        weight = torch.randn(6, 4, requires_grad=True)
        values = LargestProduct.apply(seen, weight)
        assert values.isnan().all(dim=1).tolist() == [False, True]
        values[0].sum().backward()

    def test_distinct_rows(self):
        rows = torch.tensor([[3, 1], [40_000, 1], [3, 1], [0, 0], [40_000, 1]])
        distinct, occurrences = distinct_rows(rows)
        assert_identical(distinct, torch.tensor([[3, 1], [40_000, 1], [0, 0]]))
        assert occurrences.tolist() == [0, 1, 0, 2, 1]


class TestQuantization:
    def test_a_quantized_copy_is_close_and_the_model_stays_as_it_was(self):
        model = large_model()
        expected = vectors(model)
        quantized = quantize_dynamic(model)
        cosines = torch.cosine_similarity(vectors(quantized), expected, dim=-1)[tiny_batch()["attention_mask"] == 1]
        assert cosines.min() > 0.99
        assert_far(vectors(quantized), expected, 1e-5)
        assert packed_copies(quantized) == 0
        assert_identical(vectors(model), expected)

    def test_a_head_keeps_its_precision(self):
        config = ElmoConfig(**SIZES, num_labels=3)
        quantized = quantize_dynamic(ElmoForSequenceClassification(config))
        assert type(quantized.classifier) is torch.nn.Linear
        assert quantized(**tiny_batch()).logits.shape == (4, 3)

    def test_another_type_is_refused(self):
        with pytest.raises(ValueError, match="but this one is on cpu in bfloat16"):
            quantize_dynamic(large_model().bfloat16())


@contextmanager
def forgotten_trials() -> Iterator[None]:
    """The private operators are tried again, now and afterwards."""
    for trial in (packed_weights_elmo.why_not_packed, packed_weights_elmo.why_not_onednn_tanh):
        trial.cache_clear()
    try:
        yield
    finally:
        for trial in (packed_weights_elmo.why_not_packed, packed_weights_elmo.why_not_onednn_tanh):
            trial.cache_clear()


class TestAnotherTorch:
    """The private operators are taken away, or changed, as another version of torch might."""

    def missing(*arguments):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    def different(inputs, packed, bias=None):
        return inputs.new_zeros(len(inputs), 65)

    def of_another_shape(inputs, packed, bias=None):
        return inputs.new_zeros(1)

    @pytest.mark.parametrize("operator", [missing, different, of_another_shape])
    def test_the_plain_product_takes_over(self, monkeypatch, operator):
        expected = vectors(large_model())
        monkeypatch.setattr(packed_weights_elmo, "_packed_product", operator)
        with forgotten_trials():
            assert "torch" in why_not_packed(torch.float32)
            model = large_model()
            assert_close(vectors(model), expected, 1e-5)
            assert packed_copies(model) == 0

    def test_the_plain_tanh_takes_over(self, monkeypatch):
        expected = vectors(large_model())
        monkeypatch.setattr(packed_weights_elmo, "_onednn_tanh", lambda values: values)
        monkeypatch.setattr(packed_weights_elmo, "SMALLEST_TANH", 1)
        with forgotten_trials():
            assert packed_weights_elmo.why_not_onednn_tanh() is not None
            assert_close(vectors(large_model()), expected, 1e-5)

    def test_onednns_tanh_is_the_tanh(self, monkeypatch):
        monkeypatch.setattr(packed_weights_elmo, "SMALLEST_TANH", 1)
        values = torch.cat([torch.linspace(-30, 30, 9999), torch.tensor([0.0, -0.0, torch.inf, -torch.inf])])
        assert_close(packed_weights_elmo.tanh(values), values.tanh(), 3e-7)
        assert packed_weights_elmo.tanh(torch.tensor([torch.nan])).isnan().all()


class TestWordCache:
    def test_it_knows_a_word_again(self):
        model = large_model()
        batch = tiny_batch([["one", "two", "two"]])
        first = vectors(model, batch)
        assert len(model.embeddings.word_cache) == 4  # and both boundaries
        assert_identical(vectors(model, batch), first)
        vectors(model, tiny_batch([["three"]]))
        assert len(model.embeddings.word_cache) == 5

    def test_it_is_bounded_and_right_beyond_its_bound(self, monkeypatch):
        model = large_model()
        monkeypatch.setattr(word_cache_elmo, "LARGEST_BYTES", 5 * 97 * 4)
        for number in range(6):
            batch = tiny_batch([[f"word{number}", "again", f"other{number}"], [f"x{i}" for i in range(number)]])
            assert_close(vectors(model, batch), plain_vectors(model, batch), 1e-5)
            assert len(model.embeddings.word_cache) <= 5

    def test_in_inference_mode_and_out_of_it(self):
        model = large_model()
        with torch.inference_mode():
            inside = model(**tiny_batch()).last_hidden_state.clone()
        assert_close(vectors(model), inside, 1e-6)
        batch = tiny_batch([["something", "new"]])
        assert_close(vectors(model, batch), plain_vectors(model, batch), 1e-5)
        loss = model(**tiny_batch()).last_hidden_state.sum()
        loss.backward()

    def test_a_frozen_token_layer_feeds_a_trained_head(self):
        model = large_model(freeze_bilm=True)
        model(**tiny_batch()).last_hidden_state.sum().backward()
        assert model.representations[0].scalar_parameters.grad is not None
        assert len(model.embeddings.word_cache) > 0

    def test_many_threads_at_once(self):
        model = large_model()
        batches = [tiny_batch([[f"w{i}", f"w{i + 1}", "same"]]) for i in range(24)]
        expected = [plain_vectors(model, batch) for batch in batches]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda batch: vectors(model, batch), batches * 3))
        for ours, theirs in zip(found, expected * 3, strict=True):
            assert_close(ours, theirs, 1e-5)

    def test_vectors_of_old_weights_that_come_late_are_not_kept(self, monkeypatch):
        model = large_model()
        vectors(model)
        cache, batch = model.embeddings.word_cache, tiny_batch([["late"]])
        keep, held_back = cache.keep, []
        monkeypatch.setattr(cache, "keep", lambda *arguments: held_back.append(arguments))
        vectors(model, batch)
        monkeypatch.setattr(cache, "keep", keep)
        with torch.no_grad():
            model.embeddings.projection.weight.mul_(2)
        vectors(model)
        cache.keep(*held_back[0])  # another thread was still computing when the weights changed
        assert_close(vectors(model, batch), plain_vectors(model, batch), 1e-5)


# The parent is forked while one of its threads packs weights and while the other locks are taken.
FORK = """
import os, signal, threading
from hf_elmo import buffers_elmo, packed_weights_elmo
from tests.test_fast_paths import assert_close, large_model, plain_vectors, tiny_batch, vectors
buffers_elmo.SMALLEST_BYTES = 1
model, pack = large_model(), packed_weights_elmo._pack
vectors(model)
for parameter in model.parameters():
    parameter.data.mul_(1.25)
packs, goes_on = threading.Event(), threading.Event()
def wait(weight):
    packs.set()
    goes_on.wait()
    return pack(weight)
packed_weights_elmo._pack = wait
thread = threading.Thread(target=vectors, args=(model,))
thread.start()
packs.wait()
packed_weights_elmo._pack = pack
with buffers_elmo.buffers._lock.of_this_process(), model.embeddings.word_cache._lock.of_this_process():
    child = os.fork()
    if not child:
        signal.alarm(60)
        assert_close(vectors(model), plain_vectors(model), 1e-5)
        model(**tiny_batch()).last_hidden_state.sum().backward()
        print("The child has computed.", flush=True)
        os._exit(0)
goes_on.set()
thread.join()
assert os.waitpid(child, 0)[1] == 0
assert_close(vectors(model), plain_vectors(model), 1e-5)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_is_forked_while_another_thread_computes():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # OpenMP's own threads do not survive a fork
    result = subprocess.run(
        [sys.executable, "-c", FORK],
        env=environment,
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode, result.stdout) == (0, "The child has computed.\n"), result.stderr


class TestSwitches:
    def test_they_are_on_unless_switched_off(self):
        assert all(is_enabled(name) for name in FAST_PATHS)
        with without_fast_paths("word_cache"):
            assert not is_enabled("word_cache")
            assert is_enabled("packed_weights")
        with without_fast_paths():
            assert not any(is_enabled(name) for name in FAST_PATHS)

    def test_the_trials_do_not_depend_on_the_default_device_and_type(self):
        with forgotten_trials():
            expected = why_not_packed(torch.float32), packed_weights_elmo.why_not_onednn_tanh()
        with forgotten_trials(), torch.device("meta"):
            assert (why_not_packed(torch.float32), packed_weights_elmo.why_not_onednn_tanh()) == expected

    def test_an_unknown_name_is_refused(self):
        with (
            pytest.raises(ValueError, match=r"'caches'; known are all, fused_recurrence"),
            without_fast_paths("caches"),
        ):
            pass

    def test_the_environment_switches_them_off(self):
        code = "from hf_elmo.fast_paths_elmo import *; print([name for name in FAST_PATHS if is_enabled(name)])"
        for value, left in (("all", "[]"), ("word_cache, distinct_words", "['fused_recurrence', 'reused_buffers'")):
            result = self.run(code, value)
            assert result.returncode == 0
            assert result.stdout.startswith(left)
        refused = self.run("from hf_elmo.cli import app; app(['info'])", "everything")
        assert refused.returncode == 1
        assert refused.stderr.startswith("Error: The environment variable HF_ELMO_DISABLE names 'everything'")

    @staticmethod
    def run(code: str, value: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, VARIABLE: value}, capture_output=True, text=True
        )

    def test_nothing_of_torch_is_set(self):
        def settings() -> list:
            flags = torch.backends.mkldnn
            return [
                torch.get_num_threads(),
                torch.get_num_interop_threads(),
                flags.enabled,
                torch.get_float32_matmul_precision(),
                torch.is_grad_enabled(),
                torch.get_default_dtype(),
                torch.are_deterministic_algorithms_enabled(),
                torch.random.get_rng_state().sum().item(),
            ]

        model, before = large_model(), settings()
        vectors(model)
        model(**tiny_batch()).last_hidden_state.sum().backward()
        assert settings() == before


class TestInfo:
    def test_it_says_what_runs_and_why(self, tmp_path):
        model = large_model()
        model.save_pretrained(tmp_path / "model")
        result = CliRunner().invoke(app, ["info", str(tmp_path / "model")], env={"COLUMNS": "220"})
        assert result.exit_code == 0, result.output
        for text in ("packed_weights", "12 of 12 matrices packed", "cache of words", "threads"):
            assert text in result.stdout

    def test_it_says_what_does_not_run_and_why(self, tmp_path):
        large_model(projection_size=4, cell_size=8).save_pretrained(tmp_path / "model")
        with without_fast_paths("fused_recurrence"):
            result = CliRunner().invoke(app, ["info", str(tmp_path / "model")], env={"COLUMNS": "220"})
        assert "too small for it to pay" in result.stdout
        assert "the fused recurrence is switched off" in result.stdout

    def test_no_copies_are_announced_where_there_are_none(self, tmp_path):
        large_model().save_pretrained(tmp_path / "model")
        with without_fast_paths("fused_recurrence"):
            result = CliRunner().invoke(app, ["info", str(tmp_path / "model")], env={"COLUMNS": "220"})
        assert "matrices packed" not in result.stdout
        assert "the recurrence goes step by step" in result.stdout

    def test_a_model_that_is_not_there(self, tmp_path):
        result = CliRunner().invoke(app, ["info", str(tmp_path / "nothing")])
        assert result.exit_code == 1
        assert "Traceback" not in result.output
