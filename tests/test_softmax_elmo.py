"""The softmax over words: full in pieces, sampled without bias, both with right gradients and bounded memory."""

import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_elmo import softmax_elmo
from hf_elmo.softmax_elmo import ElmoSoftmax, draw_words, draws_for, expected_counts, log_sum_exp, word_probabilities
from tests.assertions import assert_close, assert_far
from tests.shared_files import leave_out

CPU = torch.device("cpu")


def random_softmax(
    words: int, size: int = 5, count: int = 7, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[ElmoSoftmax, torch.Tensor, torch.Tensor]:
    """A softmax, vectors (count, size) and targets (count,)."""
    generator = torch.Generator().manual_seed(seed)
    softmax = ElmoSoftmax(words, size).to(dtype)
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(count, size, generator=generator).to(dtype).requires_grad_()
    return softmax, hidden, torch.randint(words, (count,), generator=generator)


def gradients(losses: torch.Tensor, softmax: ElmoSoftmax, hidden: torch.Tensor) -> list[torch.Tensor]:
    weights = torch.linspace(0.5, 2.0, len(losses), dtype=losses.dtype)  # so that rows cannot be exchanged
    return list(torch.autograd.grad((weights * losses).sum(), [hidden, softmax.weight, softmax.bias]))


def by_hand(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """-log softmax in float64."""
    logits = hidden.detach().double().numpy() @ weight.detach().double().numpy().T + bias.detach().double().numpy()
    rows = np.arange(len(targets))
    return np.log(np.exp(logits).sum(axis=1)) - logits[rows, targets.numpy()]


@pytest.fixture(params=[(2048, 8192), (3, 4), (1, 1), (7, 13)], ids=str)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with pieces of several sizes, so that their ends fall everywhere."""
    for name, size in zip(("ROWS", "COLUMNS"), request.param, strict=True):
        monkeypatch.setattr(softmax_elmo, name, size)


class TestFull:
    @pytest.mark.usefixtures("pieces")
    @pytest.mark.parametrize("words", [1, 2, 13, 40])
    def test_losses_are_those_of_the_definition(self, words: int) -> None:
        softmax, hidden, targets = random_softmax(words)
        assert_close(softmax.losses(hidden, targets), by_hand(hidden, softmax.weight, softmax.bias, targets), 2e-6)

    @pytest.mark.usefixtures("pieces")
    @pytest.mark.parametrize("words", [1, 13, 40])
    def test_gradients_are_those_of_the_whole_logits(self, words: int) -> None:
        softmax, hidden, targets = random_softmax(words)
        expected = torch.nn.functional.cross_entropy(softmax(hidden), targets, reduction="none")
        for ours, theirs in zip(
            gradients(softmax.losses(hidden, targets), softmax, hidden),
            gradients(expected, softmax, hidden),
            strict=True,
        ):
            assert_close(ours, theirs, 2e-6)

    @pytest.mark.usefixtures("pieces")
    def test_gradients_are_those_of_finite_differences(self) -> None:
        softmax, hidden, targets = random_softmax(13, size=3, count=5, dtype=torch.float64)

        def losses(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(softmax, {"weight": weight, "bias": bias}, (hidden, targets))

        assert torch.autograd.gradcheck(losses, (hidden, softmax.weight, softmax.bias))

    def test_none_is_fine(self) -> None:
        softmax, hidden, targets = random_softmax(13, count=0)
        losses = softmax.losses(hidden, targets)
        assert losses.shape == (0,)
        losses.sum().backward()
        assert not softmax.weight.grad.any()

    def test_large_logits_do_not_overflow(self) -> None:
        softmax, hidden, targets = random_softmax(40)
        losses = softmax.losses(1000 * hidden, targets)
        assert losses.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients(losses, softmax, hidden))

    def test_the_order_of_words_does_not_matter(self) -> None:
        softmax, hidden, targets = random_softmax(40)
        expected = softmax.losses(hidden, targets)
        order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
        shuffled = ElmoSoftmax(40, 5)
        shuffled.load_state_dict({name: value[order] for name, value in softmax.state_dict().items()})
        assert_close(shuffled.losses(hidden, order.argsort()[targets]), expected, 2e-6)


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that is computed."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
        result = function(*arguments, **(keywords or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


class TestMemory:
    def test_logits_of_800_000_words_never_exist_at_once(self) -> None:
        words, size, count = 800_000, 16, 5_000
        with torch.device("meta"), LargestTensor() as seen:
            softmax = ElmoSoftmax(words, size)
            hidden = torch.zeros(count, size, requires_grad=True)
            softmax.losses(hidden, torch.zeros(count, dtype=torch.long)).sum().backward()
        assert seen.largest == softmax_elmo.ROWS * softmax_elmo.COLUMNS
        assert seen.largest < words * count / 200

    def test_800_000_words_can_be_evaluated(self) -> None:
        softmax = ElmoSoftmax(800_000, 2)
        torch.nn.init.zeros_(softmax.weight)
        torch.nn.init.zeros_(softmax.bias)
        with torch.no_grad():
            losses = softmax.losses(torch.ones(3, 2), torch.tensor([0, 400_000, 799_999]))
        assert_close(losses, [math.log(800_000)] * 3, 1e-4)

    def test_drawing_words_computes_nothing_of_the_size_of_all_logits(self) -> None:
        softmax, hidden, targets = random_softmax(50_000, size=4, count=300)
        draws_for(64, 50_000)
        with LargestTensor() as seen:
            softmax.sampled_losses(hidden, targets, 64).sum().backward()
        assert seen.largest == softmax.weight.numel()


class TestPrecision:
    @pytest.mark.parametrize("num_sampled", [None, 12])
    def test_bfloat16_is_close_and_never_below_zero(self, num_sampled: int | None) -> None:
        softmax, hidden, targets = random_softmax(100, size=8, count=50)
        torch.manual_seed(0)
        expected = softmax(hidden, targets, num_sampled)
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = softmax(hidden, targets, num_sampled)
        torch.manual_seed(0)
        half = softmax.bfloat16()(hidden.bfloat16(), targets, num_sampled)
        for losses in (mixed, half):
            assert losses.dtype == torch.float32
            assert_close(losses, expected, 0.06)
            assert (losses >= 0).all()
        assert all(gradient.isfinite().all() for gradient in gradients(half, softmax, hidden))

    @pytest.mark.parametrize("num_sampled", [None, 12])
    def test_gradients_under_autocast_are_close(self, num_sampled: int | None) -> None:
        softmax, hidden, targets = random_softmax(100, size=8, count=50)
        torch.manual_seed(0)
        expected = gradients(softmax(hidden, targets, num_sampled), softmax, hidden)
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            losses = softmax(hidden, targets, num_sampled)
        for ours, theirs in zip(gradients(losses, softmax, hidden), expected, strict=True):
            assert ours.dtype == torch.float32
            assert_close(ours, theirs, 0.03 * float(theirs.abs().max()))

    def test_a_confident_softmax_in_bfloat16_has_no_loss_below_zero(self) -> None:
        softmax, hidden, targets = random_softmax(100, size=8, count=50)
        with torch.no_grad():
            softmax.weight[targets] = 10 * hidden.detach()
        assert (softmax.bfloat16().losses(hidden.bfloat16(), targets) >= 0).all()


class TestDraws:
    @pytest.mark.parametrize(("num_sampled", "words"), [(1, 2), (5, 59), (29, 59), (58, 59), (100, 5000)])
    def test_as_many_words_as_asked_for_are_expected(self, num_sampled: int, words: int) -> None:
        draws = draws_for(num_sampled, words)
        every = torch.arange(words, dtype=torch.float64)
        assert expected_counts(every, draws, words).sum() >= num_sampled
        assert draws == 1 or expected_counts(every, draws - 1, words).sum() < num_sampled

    def test_a_chance_is_that_of_tensorflow(self) -> None:
        chances = word_probabilities(torch.arange(59, dtype=torch.float64), 59)
        assert_close(chances, [math.log((k + 2) / (k + 1)) / math.log(60) for k in range(59)], 1e-12)
        assert_close(chances.sum(), 1.0, 1e-12)

    def test_rare_words_of_a_large_vocabulary_have_right_counts_in_single_precision(self) -> None:
        words, draws = torch.tensor([0, 10, 400_000, 799_999]), draws_for(8192, 800_000)
        expected = expected_counts(words.double(), draws, 800_000)
        ours = expected_counts(words, draws, 800_000)
        assert ours.dtype == torch.float32
        assert_close(ours / expected, torch.ones(4), 1e-5)

    def test_words_come_as_often_as_expected(self) -> None:
        words, rounds = 30, 20_000
        draws = draws_for(8, words)
        torch.manual_seed(0)
        counts = sum(torch.bincount(draw_words(draws, words, CPU), minlength=words) for _ in range(rounds))
        expected = expected_counts(torch.arange(words), draws, words)
        # Five standard deviations of a mean of `rounds` zeros and ones.
        bound = 5 * (expected * (1 - expected) / rounds).sqrt()
        assert ((counts / rounds - expected).abs() <= bound + 1e-6).all()

    def test_words_are_different_and_in_order(self) -> None:
        torch.manual_seed(0)
        words = draw_words(500, 50, CPU)
        assert (words.diff() > 0).all()
        assert words[0] >= 0
        assert words[-1] < 50

    def test_the_rarest_word_of_a_large_vocabulary_can_come(self) -> None:
        torch.manual_seed(0)
        words = draw_words(2_000_000, 800_000, CPU)
        assert words[-1] > 799_000
        assert words[0] == 0

    @pytest.mark.parametrize("num_sampled", [0, 13, 14])
    def test_more_words_than_there_are_cannot_be_drawn(self, num_sampled: int) -> None:
        softmax, hidden, targets = random_softmax(13)
        with pytest.raises(ValueError, match=f"{num_sampled} words cannot be drawn from a vocabulary of 13"):
            softmax.sampled_losses(hidden, targets, num_sampled)


class TestSampled:
    @pytest.mark.usefixtures("pieces")
    @pytest.mark.parametrize("num_sampled", [1, 6, 20])
    def test_losses_are_those_of_the_definition_by_hand(self, num_sampled: int) -> None:
        softmax, hidden, targets = random_softmax(40, count=25)
        draws = draws_for(num_sampled, 40)
        hits = 0
        for seed in range(10):
            torch.manual_seed(seed)
            drawn = draw_words(draws, 40, CPU).tolist()
            torch.manual_seed(seed)
            losses = softmax.sampled_losses(hidden, targets, num_sampled)
            logits = (hidden @ softmax.weight.T + softmax.bias).detach().double().numpy()
            chance = np.log1p(1 / (np.arange(40) + 1.0)) / np.log(41.0)
            corrected = logits - np.log(1 - (1 - chance) ** draws)
            for row, target in enumerate(targets.tolist()):
                candidates = [target, *(word for word in drawn if word != target)]
                hits += target in drawn
                exponentials = np.exp(corrected[row, candidates])
                assert_close(losses[row], -np.log(exponentials[0] / exponentials.sum()), 1e-5)
        assert hits > 3

    def test_gradients_are_those_of_finite_differences(self) -> None:
        softmax, hidden, targets = random_softmax(13, size=3, count=5, dtype=torch.float64)

        def losses(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            torch.manual_seed(0)
            return torch.func.functional_call(softmax, {"weight": weight, "bias": bias}, (hidden, targets, 6))

        assert torch.autograd.gradcheck(losses, (hidden, softmax.weight, softmax.bias))

    def test_a_target_that_is_the_only_word_drawn_costs_nothing(self) -> None:
        softmax, hidden, _ = random_softmax(40)
        torch.manual_seed(0)
        (drawn,) = draw_words(draws_for(1, 40), 40, CPU).tolist()
        torch.manual_seed(0)
        losses = softmax.sampled_losses(hidden, torch.full((7,), drawn), 1)
        assert not losses.any()
        assert all(not gradient.any() for gradient in gradients(losses, softmax, hidden))

    def test_drawing_nearly_all_words_gives_the_full_losses(self) -> None:
        softmax, hidden, targets = random_softmax(6)
        # After this many draws every word is there, and expected once.
        torch.manual_seed(0)
        drawn = draw_words(2000, 6, CPU)
        assert_close(expected_counts(drawn, 2000, 6), torch.ones(6), 1e-6)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(softmax_elmo, "draws_for", lambda *_: 2000)
            assert_close(softmax.sampled_losses(hidden, targets, 5), softmax.losses(hidden, targets), 2e-6)

    def test_the_sum_over_drawn_words_is_an_unbiased_estimate_of_the_sum_over_all(self) -> None:
        """The mean of 8,000 estimates lies within four of its own standard deviations, 2 % of the sum.

        Were words drawn until twelve different ones have come, as in TensorFlow, it would be 4 % off.
        """
        words, rounds, draws = 59, 8_000, draws_for(12, 59)
        softmax, hidden, _ = random_softmax(words, count=1)
        hidden = 0.1 * hidden
        with torch.no_grad():
            softmax.bias.mul_(0.3)
        every = torch.arange(words)
        nothing = torch.tensor([-1])
        bias = softmax.bias.detach() - expected_counts(every, draws, words).log()
        torch.manual_seed(0)
        estimates = []
        with torch.no_grad():
            for _ in range(rounds):
                drawn = draw_words(draws, words, CPU)
                estimates.append(log_sum_exp(hidden, softmax.weight[drawn], bias[drawn], nothing).exp())
        estimate = torch.cat(estimates).double()
        expected = softmax(hidden).exp().sum().item()
        error = estimate.std().item() / rounds**0.5
        assert error < 0.005 * expected
        assert abs(estimate.mean().item() - expected) < 4 * error

    def test_where_the_full_softmax_is_best_the_sampled_one_is_best(self) -> None:
        """Averaged over targets and draws the gradient vanishes where the logits are the targets' log-frequencies.

        Stated bound: 0.015 on each logit's mean gradient, against 0.1 and more at other logits.
        """
        words, rounds, num_sampled = 12, 700, 5
        frequencies = (torch.arange(words) + 1.0).pow(-0.7)
        frequencies /= frequencies.sum()
        targets = torch.multinomial(frequencies, 400, replacement=True, generator=torch.Generator().manual_seed(0))
        hidden = torch.zeros(len(targets), 1)
        observed = torch.bincount(targets, minlength=words) / len(targets)

        def mean_gradient(bias: torch.Tensor) -> torch.Tensor:
            softmax = ElmoSoftmax(words, 1)
            with torch.no_grad():
                softmax.weight.zero_()
                softmax.bias.copy_(bias)
            torch.manual_seed(0)
            for _ in range(rounds):
                softmax.sampled_losses(hidden, targets, num_sampled).mean().backward()
            assert softmax.bias.grad.isfinite().all()
            return softmax.bias.grad / rounds

        assert_close(mean_gradient(observed.log()), torch.zeros(words), 0.015)
        assert_far(mean_gradient(torch.zeros(words)), torch.zeros(words), 0.1)


PEER = "HF_ELMO_PEER_TENSORFLOW"
WITH_TENSORFLOW = """
import sys
import numpy as np
import tensorflow as tf
with np.load(sys.argv[1]) as file:
    given = dict(file)
labels, words = given["targets"][:, None], len(given["bias"])
losses = tf.nn.sampled_softmax_loss(
    weights=given["weight"], biases=given["bias"], labels=labels, inputs=given["hidden"],
    num_sampled=len(given["drawn"]), num_classes=words,
    sampled_values=(given["drawn"], given["target_counts"][:, None], given["drawn_counts"]),
)
drawn, target_counts, drawn_counts = tf.random.log_uniform_candidate_sampler(
    true_classes=labels, num_true=1, num_sampled=12, unique=True, range_max=words, seed=3
)
np.savez(
    sys.argv[2], losses=losses, drawn=drawn, target_counts=target_counts[:, 0], drawn_counts=drawn_counts
)
"""


@pytest.mark.slow
def test_tensorflow_gives_the_same_losses_and_expected_counts(tmp_path: Path) -> None:
    """`tf.nn.sampled_softmax_loss` with the words that we drew, and the counts of its own sampler."""
    python = os.environ.get(PEER)
    if not python:
        leave_out(f"needs a Python with TensorFlow, named by {PEER}")
    softmax, hidden, targets = random_softmax(40, count=25)
    draws = draws_for(12, 40)
    torch.manual_seed(0)
    drawn = draw_words(draws, 40, CPU)
    assert set(drawn.tolist()) & set(targets.tolist())
    torch.manual_seed(0)
    losses = softmax.sampled_losses(hidden, targets, 12)
    np.savez(
        tmp_path / "given.npz",
        hidden=hidden.detach(),
        weight=softmax.weight.detach(),
        bias=softmax.bias.detach(),
        targets=targets,
        drawn=drawn,
        target_counts=expected_counts(targets, draws, 40),
        drawn_counts=expected_counts(drawn, draws, 40),
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    arguments = [str(tmp_path / "given.npz"), str(tmp_path / "found.npz")]
    subprocess.run([python, "-c", WITH_TENSORFLOW, *arguments], check=True, env=environment)
    found = np.load(tmp_path / "found.npz")
    assert_close(losses, found["losses"], 1e-5)
    # Its sampler draws until there are twelve different words: its counts tell how often it drew.
    theirs = torch.as_tensor(found["drawn"])
    chance = word_probabilities(theirs.double(), 40).numpy()
    tries = np.log(1 - found["drawn_counts"]) / np.log(1 - chance)
    number = round(float(tries.mean()))
    assert_close(tries, np.full(12, number), 0.01)
    assert_close(expected_counts(theirs, number, 40), found["drawn_counts"], 1e-6)
    assert_close(expected_counts(targets, number, 40), found["target_counts"], 1e-6)
