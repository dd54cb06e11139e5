"""The BiLSTM of the task network reads rows of like lengths together on a CPU, and nobody can tell."""

import pytest
import torch

from hf_elmo import task_network_elmo
from hf_elmo.task_network_elmo import ElmoBiLstm, rows_of_like_length
from tests.assertions import assert_close, assert_identical


def mask_of(lengths: list[int]) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def read(bilstm: ElmoBiLstm, words: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The output, and the gradients of the words and of the weights."""
    words = words.clone().requires_grad_()
    bilstm.zero_grad()
    output = bilstm(words, mask)
    output.square().sum().backward()
    return output.detach(), [words.grad, *(parameter.grad.clone() for parameter in bilstm.parameters())]


@pytest.mark.parametrize("is_scattered", [False, True])
@pytest.mark.parametrize("rows", [16, 19])
def test_groups_change_no_number(rows, is_scattered, monkeypatch):
    torch.manual_seed(rows)
    mask = mask_of([0, 1, 1, 30, *range(2, rows - 2)])
    mask = mask[:, torch.randperm(mask.shape[1])] if is_scattered else mask
    bilstm, words = ElmoBiLstm(6, 5, 2, 0.0), torch.randn(*mask.shape, 6)
    assert len(rows_of_like_length(mask)) == 4
    output, gradients = read(bilstm, words, mask)
    monkeypatch.setattr(task_network_elmo, "MIN_GROUPED_ROWS", 1000)
    expected, expected_gradients = read(bilstm, words, mask)
    assert_identical(output, expected)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert_close(ours, theirs, 1e-5 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("lengths", [[30] * 20, [5, 30] * 4])
def test_little_is_not_taken_apart(lengths):
    (rows,) = rows_of_like_length(mask_of(lengths))
    assert rows.tolist() == list(range(len(lengths)))


def test_each_row_is_in_one_group():
    groups = rows_of_like_length(mask_of([1, 40] * 9))
    assert sorted(torch.cat(groups).tolist()) == list(range(18))
