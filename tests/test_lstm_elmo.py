"""The recurrence: the way over packed words gives what the plain reference gives, forward and backward."""

import pytest
import torch

from hf_elmo import fused_lstm_elmo, lstm_elmo, lstm_steps_elmo
from hf_elmo.lstm_elmo import ElmoLstm, lstm_over_mask, pack_words, run_lstm, run_lstms
from tests.assertions import assert_close, assert_far, assert_identical

MASKS = {
    "one word": [[1]],
    "equal lengths": [[1, 1, 1]] * 4,
    "padding on the right": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]],
    "padding on the left": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]],
    "padding between": [[1, 0, 1, 0, 0, 1, 1], [0, 1, 0, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1, 0]],
    "an empty row": [[1, 1, 1], [0, 0, 0], [1, 0, 0]],
    "nothing but empty rows": [[0, 0], [0, 0]],
    "63 steps": [[1] * 63, [1] * 17 + [0] * 46, [1] * 62 + [0]],
}
CLIPS = [(0.4, 0.2), (None, 0.2), (0.4, None), (None, None)]


def make_lstm(
    projection: int = 5, cell: int = 7, clips: tuple[float | None, float | None] = CLIPS[0], seed: int = 0
) -> ElmoLstm:
    torch.manual_seed(seed)
    lstm = ElmoLstm(projection, cell, *clips).double()
    for parameter in lstm.parameters():
        torch.nn.init.normal_(parameter)
    return lstm


def make_inputs(lstm: ElmoLstm, mask: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Random words, also under the padding, and random states."""
    torch.manual_seed(1)
    size, cell = lstm.projection.out_features, lstm.projection.in_features
    words = torch.randn(*mask.shape, size, dtype=torch.double)
    state = torch.randn(len(mask), size, dtype=torch.double), torch.randn(len(mask), cell, dtype=torch.double)
    return words, state


def outputs_and_gradients(function, lstm, words, state, *arguments) -> list[torch.Tensor]:
    words = words.clone().requires_grad_()
    state = tuple(part.clone().requires_grad_() for part in state)
    lstm.zero_grad()
    outputs, final = function(lstm, words, *arguments[:1], state, *arguments[1:])
    loss = sum((part.sin() * (1 + index)).sum() for index, part in enumerate((outputs, *final)))
    loss.backward()
    leaves = (words, *state, *lstm.parameters())
    return [outputs, *final] + [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


def assert_paths_agree(lstm: ElmoLstm, mask: torch.Tensor, reverse: bool) -> None:
    words, state = make_inputs(lstm, mask)
    reference = outputs_and_gradients(lstm_over_mask, lstm, words, state, mask, reverse)
    packing = pack_words(mask)

    def packed(lstm, words, mask, state, reverse):
        return run_lstm(lstm, words, mask, state, reverse, packing)

    fast = outputs_and_gradients(packed, lstm, words, state, mask, reverse)
    for index, (ours, theirs) in enumerate(zip(fast, reference, strict=True)):
        assert_close(ours, theirs, 1e-12, f"value or gradient {index}")
    with torch.no_grad():
        outputs, final = packed(lstm, words, mask, state, reverse)
    for index, (ours, theirs) in enumerate(zip((outputs, *final), reference, strict=False)):
        assert_close(ours, theirs, 1e-12, f"value {index} without gradients")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("clips", CLIPS, ids=str)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_packed_words_give_what_the_reference_gives_forward_and_backward(mask, clips, reverse):
    assert_paths_agree(make_lstm(clips=clips), torch.tensor(mask, dtype=torch.bool), reverse)


@pytest.mark.parametrize("words_at_once", [1, 2, 5, 1000])
def test_how_many_words_enter_the_input_product_at_once_changes_nothing(monkeypatch, words_at_once):
    monkeypatch.setattr(lstm_steps_elmo, "INPUT_PRODUCT_WORDS", words_at_once)
    monkeypatch.setattr(fused_lstm_elmo, "BLOCK_WORDS", words_at_once)
    assert_paths_agree(make_lstm(), torch.tensor(MASKS["padding between"], dtype=torch.bool), False)


def test_padding_is_never_read_over_packed_words():
    lstm = make_lstm()
    mask = torch.tensor(MASKS["padding between"], dtype=torch.bool)
    words, state = make_inputs(lstm, mask)
    expected, _ = lstm_over_mask(lstm, words, mask, state, False)
    unread = words.masked_fill(~mask[..., None], torch.nan)
    outputs, _ = run_lstm(lstm, unread, mask, state, False, pack_words(mask))
    assert_close(outputs, expected, 1e-12)


def test_a_row_without_words_keeps_its_state():
    lstm = make_lstm()
    mask = torch.tensor(MASKS["an empty row"], dtype=torch.bool)
    words, state = make_inputs(lstm, mask)
    _, final = run_lstm(lstm, words, mask, state, False, pack_words(mask))
    for after, before in zip(final, state, strict=True):
        assert_identical(after[1], before[1])
        assert_far(after[0], before[0], 1e-3)


def test_both_clips_bound_what_they_clip():
    lstm = make_lstm(clips=(0.4, 0.2))
    mask = torch.ones(3, 9, dtype=torch.bool)
    words, _ = make_inputs(lstm, mask)
    zeros = (torch.zeros(3, 5, dtype=torch.double), torch.zeros(3, 7, dtype=torch.double))
    outputs, (_, cell) = run_lstm(lstm, words, mask, zeros, False, pack_words(mask))
    assert outputs.abs().max() == 0.2
    assert cell.abs().max() == 0.4


def test_one_step_is_the_equations_of_the_paper():
    """Sak et al. 2014 without peepholes, on numbers that fit a line."""
    lstm = ElmoLstm(1, 1, None, None).double()
    with torch.no_grad():
        lstm.input_gates.weight.copy_(torch.tensor([[0.1], [0.2], [0.3], [0.4]]))
        lstm.input_gates.bias.copy_(torch.tensor([0.01, 0.02, 0.03, 0.04]))
        lstm.recurrent_gates.weight.copy_(torch.tensor([[-0.5], [0.6], [-0.7], [0.8]]))
        lstm.projection.weight.fill_(2.0)
    x, h, c = (torch.tensor([[value]], dtype=torch.double) for value in (1.5, -0.3, 0.7))
    parts = [
        lstm.input_gates.weight[k] * x + lstm.input_gates.bias[k] + lstm.recurrent_gates.weight[k] * h
        for k in range(4)
    ]
    new_cell = parts[1].sigmoid() * c + parts[0].sigmoid() * parts[2].tanh()
    new_hidden = 2.0 * (parts[3].sigmoid() * new_cell.tanh())
    hidden, cell = lstm.step(lstm.input_gates(x), h, c)
    assert_close(hidden, new_hidden, 1e-15)
    assert_close(cell, new_cell, 1e-15)


@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_both_directions_give_what_each_gives_alone(monkeypatch, mask, side_by_side):
    monkeypatch.setattr(lstm_elmo, "SIDE_BY_SIDE_BYTES", 1 << 20 if side_by_side else 0)
    lstms, mask = [make_lstm(seed=seed) for seed in (0, 1)], torch.tensor(mask, dtype=torch.bool)
    given = [make_inputs(lstm, mask) for lstm in lstms]
    words, states = [words for words, _ in given], [state for _, state in given]
    packing = pack_words(mask)
    alone = [run_lstm(lstms[at], words[at], mask, states[at], bool(at), packing) for at in range(2)]
    for together in (run_lstms(lstms, words, mask, states, packing), run_lstms(lstms, words, mask, states)):
        for (ours, final), (expected, expected_final) in zip(together, alone, strict=True):
            for one, other in zip((ours, *final), (expected, *expected_final), strict=True):
                assert_close(one, other, 1e-12)


def test_directions_that_differ_in_what_they_allow_walk_both():
    lstms, mask = [make_lstm(seed=seed) for seed in (0, 1)], torch.tensor(MASKS["padding between"], dtype=torch.bool)
    given = [make_inputs(lstm, mask) for lstm in lstms]
    words, states = [words for words, _ in given], [state for _, state in given]
    expected = run_lstms(lstms, words, mask, states, pack_words(mask))
    seen = []
    lstms[1].projection.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    found = run_lstms(lstms, words, mask, states, pack_words(mask))
    assert seen
    for (ours, _), (theirs, _) in zip(found, expected, strict=True):
        assert_close(ours, theirs, 1e-12)
