"""The softmax over words of ELMo's language models: over all of them in pieces, or over words drawn by chance."""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

# Logits that exist at once, as rows and columns: 64 MB in float32, whatever the sizes of batch and vocabulary.
ROWS = 2048
COLUMNS = 8192


class ElmoSoftmax(nn.Module):
    """Scores every word of a vocabulary by a vector of one direction of the biLM; both directions share it.

    The words are ordered by falling frequency, as in the vocabularies of bilm-tf: `sampled_losses` relies on it.

    Source: `_build_loss` of bilm-tf's `training.py`.

    Args:
        num_words: Words V of the vocabulary.
        size: Size P of a vector.
    """

    def __init__(self, num_words: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_words, size))
        self.bias = nn.Parameter(torch.empty(num_words))

    def forward(
        self, hidden: torch.Tensor, targets: torch.Tensor | None = None, num_sampled: int | None = None
    ) -> torch.Tensor:
        """The logits (..., V) of vectors (..., P); with targets `losses` instead, or `sampled_losses`."""
        if targets is None:
            return nn.functional.linear(hidden, self.weight, self.bias)
        if num_sampled is None:
            return self.losses(hidden, targets)
        return self.sampled_losses(hidden, targets, num_sampled)

    def losses(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Negative log-likelihoods, in natural logarithms, over the whole vocabulary.

        Never holds more than `ROWS` times `COLUMNS` logits, in the backward pass neither.

        Args:
            hidden: Vectors, shape (n, P).
            targets: Word numbers from 0, shape (n,).

        Returns:
            The losses, shape (n,), in float32 at least.
        """
        weight, bias = self._look_up(targets)
        return _losses(_row_products(hidden, weight, bias), log_sum_exp(hidden, self.weight, self.bias, targets))

    def sampled_losses(self, hidden: torch.Tensor, targets: torch.Tensor, num_sampled: int) -> torch.Tensor:
        """Negative log-likelihoods among the target and words that are drawn anew in each call.

        The same words are drawn for all n targets; one that is a target's own word does not count against it. Every
        logit, the target's too, is lowered by the logarithm of how often its word is expected among the drawn. So
        the sum over the drawn words is an unbiased estimate of the sum over all, and the softmax that makes these
        losses least is the one that makes `losses` least. Their value is another: rare targets cost less here.

        Source: `sampled_softmax_loss` of TensorFlow with its default sampler.

        Args:
            hidden: Vectors, shape (n, P).
            targets: Word numbers from 0, shape (n,).
            num_sampled: How many different words are drawn on average, less than V.

        Returns:
            The losses, shape (n,), in float32 at least.

        Raises:
            ValueError: When as many words as there are, or more, shall be drawn.
        """
        num_words = len(self.weight)
        num_draws = draws_for(num_sampled, num_words)
        drawn = draw_words(num_draws, num_words, self.weight.device)
        # One look-up for both, as each makes a gradient of the size of the vocabulary.
        words = torch.cat([targets, drawn])
        weight, bias = self._look_up(words)
        bias = bias.to(_precise(bias.dtype)) - expected_counts(words, num_draws, num_words).log()
        places = torch.searchsorted(drawn, targets).clamp(max=len(drawn) - 1)
        excluded = torch.where(drawn[places] == targets, places, -1)
        count = len(targets)
        own = _row_products(hidden, weight[:count], bias[:count])
        return _losses(own, log_sum_exp(hidden, weight[count:], bias[count:], excluded))

    def _look_up(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights (n, P) and biases (n,) of some words."""
        embedding = nn.functional.embedding
        return embedding(words, self.weight), embedding(words, self.bias[:, None])[:, 0]


def word_probabilities(words: torch.Tensor, num_words: int) -> torch.Tensor:
    """The chance of each of some word numbers in one draw: log((k + 2) / (k + 1)) / log(V + 1) for word k of V.

    That is roughly the frequency of words that are ordered by it (Zipf's law). Source:
    `log_uniform_candidate_sampler` of TensorFlow.
    """
    return (1 / (words + 1)).log1p() / math.log(num_words + 1)


def draw_words(num_draws: int, num_words: int, device: torch.device) -> torch.Tensor:
    """The different words among `num_draws` independent draws, in rising order.

    TensorFlow draws until a certain number of different words have come, which makes their expected counts wrong by a
    few percent in small vocabularies; with a fixed number of draws they are exact.
    """
    precise = torch.float32 if device.type == "mps" else torch.float64
    ranks = (torch.rand(num_draws, dtype=precise, device=device) * math.log(num_words + 1)).exp().long()
    return torch.unique((ranks - 1).clamp(0, num_words - 1))


def expected_counts(words: torch.Tensor, num_draws: int, num_words: int) -> torch.Tensor:
    """The chance of each of some words to be among the words of `draw_words`."""
    return -(num_draws * (-word_probabilities(words, num_words)).log1p()).expm1()


@lru_cache(maxsize=16)
def draws_for(num_sampled: int, num_words: int) -> int:
    """The number of draws that gives `num_sampled` different words on average.

    Raises:
        ValueError: When there are not more words than that.
    """
    if not 1 <= num_sampled < num_words:
        raise ValueError(f"{num_sampled} words cannot be drawn from a vocabulary of {num_words}.")
    words = torch.arange(num_words, dtype=torch.float64, device="cpu")
    few, many = num_sampled - 1, num_sampled
    while expected_counts(words, many, num_words).sum() < num_sampled:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        if expected_counts(words, middle, num_words).sum() < num_sampled:
            few = middle
        else:
            many = middle
    return many


def log_sum_exp(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, excluded: torch.Tensor
) -> torch.Tensor:
    """log sum_k exp(hidden . weight_k + bias_k) over all columns but one, computed piece by piece.

    Args:
        hidden: Vectors, shape (n, P).
        weight: Columns, shape (k, P).
        bias: Their biases, shape (k,).
        excluded: The column that each vector leaves out, -1 for none, shape (n,).

    Returns:
        The logarithms, shape (n,), in float32 at least; -inf where no column is left.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if _is_autocast_on(device) else hidden.dtype
    return _LogSumExp.apply(hidden, weight, bias, excluded, dtype)


class _LogSumExp(torch.autograd.Function):
    """Keeps nothing of the size (n, k): the backward pass computes the logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        excluded: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        result = hidden.new_full((len(hidden),), -torch.inf, dtype=_precise(hidden.dtype))
        with _without_autocast(hidden.device.type):
            for columns in _pieces(len(weight), COLUMNS):
                part = weight[columns].to(dtype)
                for rows in _pieces(len(hidden), ROWS):
                    logits = _logits(hidden[rows].to(dtype), part, bias[columns], excluded[rows] - columns.start)
                    result[rows] = torch.logaddexp(result[rows], logits.logsumexp(dim=-1))
        ctx.save_for_backward(hidden, weight, bias, excluded, result)
        ctx.dtype = dtype
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, excluded, result = ctx.saved_tensors
        precise = gradient.dtype
        hidden_gradient = torch.zeros_like(hidden, dtype=precise) if ctx.needs_input_grad[0] else None
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        bias_gradient = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        # Where no column is left the logits are -inf too, and their difference would be no number.
        result = result.clamp(min=torch.finfo(result.dtype).min)
        with _without_autocast(hidden.device.type):
            for columns in _pieces(len(weight), COLUMNS):
                part = weight[columns].to(ctx.dtype)
                part_gradient = torch.zeros_like(part, dtype=precise)
                part_bias_gradient = torch.zeros_like(bias[columns], dtype=precise)
                for rows in _pieces(len(hidden), ROWS):
                    vectors = hidden[rows].to(ctx.dtype)
                    logits = _logits(vectors, part, bias[columns], excluded[rows] - columns.start)
                    logit_gradient = logits.sub_(result[rows, None]).exp_().mul_(gradient[rows, None])
                    part_bias_gradient += logit_gradient.sum(dim=0)
                    logit_gradient = logit_gradient.to(ctx.dtype)
                    if hidden_gradient is not None:
                        hidden_gradient[rows] += logit_gradient @ part
                    if weight_gradient is not None:
                        part_gradient += logit_gradient.T @ vectors
                if weight_gradient is not None:
                    weight_gradient[columns] = part_gradient.to(weight_gradient.dtype)
                if bias_gradient is not None:
                    bias_gradient[columns] = part_bias_gradient.to(bias_gradient.dtype)
        if hidden_gradient is not None:
            hidden_gradient = hidden_gradient.to(hidden.dtype)
        return hidden_gradient, weight_gradient, bias_gradient, None, None


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _is_autocast_on(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, enabled=False) if _is_autocast_on(device) else nullcontext()


def _pieces(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, excluded: torch.Tensor) -> torch.Tensor:
    """Logits (rows, columns) in float32 at least, -inf at the excluded column where it is one of these."""
    logits = (hidden @ weight.T).to(_precise(hidden.dtype))
    logits += bias
    inside = (excluded >= 0) & (excluded < len(weight))
    column = excluded.clamp(0, len(weight) - 1)[:, None]
    return logits.scatter_(1, column, logits.gather(1, column).masked_fill(inside[:, None], -torch.inf))


def _row_products(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """hidden_i . weight_i + bias_i, shape (n,), in float32 at least."""
    precise = _precise(hidden.dtype)
    return (hidden.to(precise) * weight.to(precise)).sum(dim=-1) + bias.to(precise)


def _losses(own: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """-log(exp(own) / (exp(own) + exp(others))); never below zero, whatever the rounding of the logits."""
    return torch.logaddexp(others - own, torch.zeros_like(own))


__all__ = ["ElmoSoftmax"]
