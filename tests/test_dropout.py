"""Dropout: what torch's does, with masks that are drawn in another way on a CPU."""

import pytest
import torch

from hf_elmo.dropout_elmo import ElmoDropout, apply_dropout
from hf_elmo.fast_paths_elmo import without_fast_paths
from tests.assertions import assert_close, assert_identical

# Not a multiple of what is drawn at a time.
SHAPE = (37, 1001)


def drop(values: torch.Tensor, p: float, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return apply_dropout(values, p)


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_so_many_numbers_are_dropped_and_the_others_grow(p, dtype):
    values = torch.ones(SHAPE, dtype=dtype)
    dropped = drop(values, p)
    assert dropped.dtype == dtype
    kept = dropped[dropped != 0]
    deviation = (p * (1 - p) / values.numel()) ** 0.5
    assert abs(len(kept) / values.numel() - (1 - p)) < 4 * deviation
    assert_close(kept, torch.full_like(kept, 1 / (1 - p)), 2e-2 if dtype == torch.bfloat16 else 1e-3)
    for axis in (0, 1):  # nowhere more than elsewhere
        shares = (dropped == 0).double().mean(dim=axis)
        assert float((shares - p).abs().max()) < 6 * (p * (1 - p) / SHAPE[axis]) ** 0.5


def test_numbers_are_dropped_independently_of_their_neighbours():
    dropped = (drop(torch.ones(1 << 18), 0.3) == 0).double() - 0.3
    for distance in (1, 2, 3, 4, 8, 64):  # four numbers come from one random one
        product = (dropped[distance:] * dropped[:-distance]).mean() / 0.21
        assert abs(float(product)) < 4 / (1 << 9)


def test_the_gradient_is_dropped_as_the_values_are():
    values = torch.randn(SHAPE, requires_grad=True)
    dropped = drop(values, 0.4)
    dropped.backward(torch.ones_like(dropped))
    assert_close(values.detach() * values.grad, dropped.detach(), 1e-6)


def test_a_seed_gives_a_mask_and_each_call_another_one():
    values = torch.ones(SHAPE)
    assert_identical(drop(values, 0.5, seed=3), drop(values, 0.5, seed=3))
    assert not torch.equal(drop(values, 0.5, seed=3), apply_dropout(values, 0.5))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_and_everything(p):
    values = torch.randn(SHAPE)
    assert_identical(drop(values, p), values * (1 - p))


def test_evaluation_drops_nothing_and_draws_nothing():
    values = torch.randn(SHAPE)
    before = torch.get_rng_state()
    assert_identical(ElmoDropout(0.5).eval()(values), values)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (1,), ()])
def test_small_shapes(shape):
    assert drop(torch.ones(shape), 0.5).shape == shape


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_a_probability_is_from_0_to_1(p):
    with pytest.raises(ValueError, match="between 0 and 1"):
        apply_dropout(torch.ones(2), p)


def test_torchs_own_takes_over_where_it_is_switched_off():
    values = torch.ones(SHAPE)
    with without_fast_paths("dropout_from_bits"):
        ours = drop(values, 0.5)
    torch.manual_seed(0)
    assert_identical(ours, torch.nn.functional.dropout(values, 0.5))


def test_torchs_own_takes_over_under_a_transform():
    def masks(values: torch.Tensor) -> torch.Tensor:
        return apply_dropout(values, 0.5)

    rows = torch.func.vmap(masks, randomness="different")(torch.ones(2, 1000))
    assert not torch.equal(*rows)
