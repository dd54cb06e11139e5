"""What ElmoModel and its heads promise, on tiny models."""

import pytest
import torch

from hf_elmo import ElmoForSequenceClassification, ElmoForTokenClassification, ElmoModel
from tests.assertions import assert_close, assert_far, assert_identical, assert_zero_at_padding
from tests.tiny_models import SENTENCES, tiny_batch, tiny_config, tiny_model

HEADS = [ElmoForSequenceClassification, ElmoForTokenClassification]
ROUNDING = 1e-6


def run(model, batch, **kwargs):
    with torch.no_grad():
        return model(**batch, output_hidden_states=True, **kwargs)


def all_vectors(output) -> torch.Tensor:
    """Every layer and every representation, stacked: (L + 1 + K, batch, seq, 2P)."""
    return torch.stack([*output.hidden_states, *output.representations])


def words_of(output, batch, row: int) -> torch.Tensor:
    """The vectors of a row's words: (L + 1 + K, words, 2P)."""
    return all_vectors(output)[:, row, batch["attention_mask"][row].bool()]


def assert_rows_equal(first, first_batch, second, second_batch, rows) -> None:
    for row, other in enumerate(rows):
        assert_close(words_of(first, first_batch, row), words_of(second, second_batch, other), ROUNDING, f"row {row}")


def test_the_outputs_have_the_shapes_of_the_contract():
    model = tiny_model(num_output_representations=2, num_hidden_layers=3)
    batch = tiny_batch()
    rows, length = batch["attention_mask"].shape
    output = run(model, batch)
    assert output.last_hidden_state.shape == (rows, length, 12)
    assert [layer.shape for layer in output.hidden_states] == [(rows, length, 12)] * 4
    assert [mix.shape for mix in output.representations] == [(rows, length, 12)] * 2
    assert [state.shape for state in output.states] == [(3, rows, 12), (3, rows, 22)]
    assert_identical(output.last_hidden_state, output.representations[0])
    assert model(**batch).hidden_states is None


def test_every_output_is_zero_at_padding_whatever_the_settings():
    for settings in ({}, {"mix_layer_norm": True}, {"use_skip_connections": False}):
        batch = tiny_batch()
        output = run(tiny_model(**settings), batch)
        for vectors in (*output.hidden_states, *output.representations):
            assert_zero_at_padding(vectors, batch["attention_mask"])


def test_the_token_layer_stands_twice_and_the_layers_differ():
    output = run(tiny_model(), tiny_batch())
    forward, backward = output.hidden_states[0].chunk(2, dim=-1)
    assert_identical(forward, backward)
    assert_far(output.hidden_states[1], output.hidden_states[0], 1e-3)
    assert_far(output.hidden_states[2], output.hidden_states[1], 1e-3)


def test_the_forward_half_never_sees_what_follows_and_the_backward_half_never_what_came_before():
    model = tiny_model()
    first = run(model, tiny_batch([["a", "b", "c", "d"]]))
    second = run(model, tiny_batch([["a", "b", "X", "d"]]))
    for layer in (1, 2):
        (forward, backward), (other_forward, other_backward) = (
            output.hidden_states[layer][0].chunk(2, dim=-1) for output in (first, second)
        )
        assert_close(forward[:3], other_forward[:3], 1e-8)
        assert_close(backward[4:], other_backward[4:], 1e-8)
        assert_far(forward[3:], other_forward[3:], 1e-4)
        assert_far(backward[:4], other_backward[:4], 1e-4)


def test_a_sentence_has_the_same_vectors_alone_and_in_any_batch_and_order():
    model = tiny_model()
    batch = tiny_batch()
    together = run(model, batch)
    order = [2, 0, 3, 1]
    shuffled_batch = tiny_batch([SENTENCES[row] for row in order])
    assert_rows_equal(run(model, shuffled_batch), shuffled_batch, together, batch, order)
    for row, sentence in enumerate(SENTENCES):
        alone = tiny_batch([sentence])
        assert_rows_equal(run(model, alone), alone, together, batch, [row])


def test_padding_on_the_left_gives_the_vectors_of_padding_on_the_right():
    model = tiny_model()
    left, right = tiny_batch(side="left"), tiny_batch(side="right")
    output = run(model, left)
    assert_rows_equal(output, left, run(model, right), right, range(len(SENTENCES)))
    assert_zero_at_padding(output.last_hidden_state, left["attention_mask"])


def test_more_padding_changes_nothing():
    model = tiny_model()
    batch = tiny_batch()
    padded = {
        "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, 0, 0, 30)),
        "attention_mask": torch.nn.functional.pad(batch["attention_mask"], (0, 30)),
    }
    assert_rows_equal(run(model, padded), padded, run(model, batch), batch, range(len(SENTENCES)))


def test_without_a_mask_rows_of_zeros_are_padding():
    model = tiny_model()
    batch = tiny_batch()
    output = model(batch["input_ids"])
    assert_identical(output.last_hidden_state, model(**batch).last_hidden_state)


def test_what_lies_under_the_mask_does_not_matter():
    model = tiny_model()
    batch = tiny_batch()
    rubbish = torch.where(batch["attention_mask"][..., None] == 1, batch["input_ids"], 77)
    output = model(rubbish, attention_mask=batch["attention_mask"].bool())
    assert_identical(output.last_hidden_state, model(**batch).last_hidden_state)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint8])
def test_character_ids_of_any_integer_type_are_taken(dtype):
    model = tiny_model()
    ids = tiny_batch([["ascii", "only"]])["input_ids"][:, 1:3].clamp(max=255)
    assert_identical(model(ids.to(dtype)).last_hidden_state, model(ids).last_hidden_state)


def test_an_empty_sentence_has_its_two_boundaries():
    output = run(tiny_model(), tiny_batch([[]]))
    assert output.last_hidden_state.shape == (1, 2, 12)


def test_a_batch_may_hold_a_row_without_any_word():
    model = tiny_model()
    batch = tiny_batch()
    alone = run(model, batch)
    with_empty = {name: torch.cat([values, torch.zeros_like(values[:1])]) for name, values in batch.items()}
    output = run(model, with_empty)
    assert_rows_equal(alone, batch, output, with_empty, range(len(SENTENCES)))
    assert not output.last_hidden_state[-1].any()
    assert not output.states[0][:, -1].any()


@pytest.mark.parametrize("shape", [(2, 0, 50), (2, 3, 50)])
def test_a_batch_of_nothing_but_padding_gives_zeros(shape):
    output = run(tiny_model(), {"input_ids": torch.zeros(shape, dtype=torch.long)})
    assert output.last_hidden_state.shape == (*shape[:2], 12)
    assert not output.last_hidden_state.any()


def test_three_thousand_words_are_read_in_one_piece():
    words = [f"w{index % 97}" for index in range(3000)]
    model = tiny_model()
    output = run(model, tiny_batch([words]))
    assert output.last_hidden_state.shape == (1, 3002, 12)
    start = run(model, tiny_batch([words[:50]]))
    assert_close(output.hidden_states[2][0, :51, :6], start.hidden_states[2][0, :51, :6], ROUNDING)


def test_states_go_on_where_the_call_before_ended():
    """The left-to-right half of two calls equals that of one call over both parts."""
    model = tiny_model()
    whole = tiny_batch([["a", "b", "c", "d", "e"], ["f", "g", "h", "i", "j"]])
    first, second = ({name: values[:, part] for name, values in whole.items()} for part in (slice(3), slice(3, None)))
    states = run(model, first).states
    for layer in (1, 2):
        expected = run(model, whole).hidden_states[layer][:, 3:, :6]
        assert_close(run(model, second, states=states).hidden_states[layer][..., :6], expected, ROUNDING)


def test_a_smaller_batch_keeps_the_states_of_unused_rows_and_a_larger_one_starts_new_rows_at_zero():
    model = tiny_model()
    batch = tiny_batch()
    one = {name: values[:1] for name, values in batch.items()}
    states = run(model, batch).states
    after_one = run(model, one, states=states).states
    for ours, before in zip(after_one, states, strict=True):
        assert ours.shape == before.shape
        assert_identical(ours[:, 1:], before[:, 1:])
        assert_far(ours[:, 0], before[:, 0], 1e-4)
    from_one = run(model, batch, states=run(model, one).states)
    assert_rows_equal(
        run(model, {name: values[1:] for name, values in batch.items()}),
        {name: values[1:] for name, values in batch.items()},
        from_one,
        batch,
        [1, 2, 3],
    )


def test_states_of_the_call_before_are_left_as_they_were():
    model = tiny_model()
    states = run(model, tiny_batch()).states
    copies = [state.clone() for state in states]
    run(model, tiny_batch(), states=states)
    for state, copy in zip(states, copies, strict=True):
        assert_identical(state, copy)


def test_each_distinct_word_once_and_a_narrow_window_are_exact_for_gradients_too():
    model = tiny_model(hidden_act="tanh").double()
    ids = tiny_batch([["a", "bb", "a", "c" * 60, "", "bb", "x" * 48, "y" * 47]])["input_ids"][0]
    for words in (ids, ids[:4], ids[5:6], torch.zeros_like(ids[:2])):
        results = []
        for encode in (model.embeddings, model.embeddings.encode_words):
            model.zero_grad()
            vectors = encode(words)
            vectors.sin().sum().backward() if vectors.requires_grad else None
            results.append([vectors, *(parameter.grad for parameter in model.embeddings.parameters())])
        for plain, fast in zip(*results, strict=True):
            if plain is not None:
                assert_close(fast, plain, 1e-13)


def test_layer_weights_are_the_softmax_and_gamma_of_each_representation():
    model = tiny_model(num_output_representations=2, mix_parameters=[0.5, -1.0, 2.0], mix_gamma=1.7)
    weights, gamma = model.layer_weights()
    expected = torch.tensor([0.5, -1.0, 2.0]).softmax(dim=0)
    assert_close(weights, torch.stack([expected, expected]), 1e-7)
    assert_close(gamma, [1.7, 1.7], 1e-7)
    assert not weights.requires_grad


def test_a_representation_is_gamma_times_the_weighted_sum_of_the_layers():
    model = tiny_model(mix_parameters=[0.5, -1.0, 2.0], mix_gamma=1.7)
    output = run(model, tiny_batch())
    weights = torch.tensor([0.5, -1.0, 2.0]).softmax(dim=0)
    expected = 1.7 * sum(weight * layer for weight, layer in zip(weights, output.hidden_states, strict=True))
    assert_close(output.last_hidden_state, expected, ROUNDING)


def test_the_layer_norm_of_the_mix_depends_on_the_batch_as_documented():
    model = tiny_model(mix_layer_norm=True)
    batch = tiny_batch()
    alone = tiny_batch(SENTENCES[:1])
    assert_far(words_of(run(model, batch), batch, 0)[-1], words_of(run(model, alone), alone, 0)[-1], 1e-3)


def test_the_layer_norm_of_the_mix_is_finite_without_words_and_in_half_precision():
    model = tiny_model(mix_layer_norm=True)
    batch = tiny_batch()
    nothing = {name: torch.zeros_like(values) for name, values in batch.items()}
    assert_zero_at_padding(run(model, nothing).last_hidden_state, nothing["attention_mask"])
    mix, mask = model.representations[0].half(), torch.ones(64, 128, dtype=torch.bool)
    layers = [torch.full((64, 128, 12), 30.0).half() * torch.tensor([-1.0, 1.0] * 6).half()] * 3
    with torch.no_grad():
        mixed = mix(layers, mask)
    assert_close(mixed.float(), layers[0].float() / 30, 1e-2)


def test_dropout_falls_on_the_representations_in_training_only():
    model = tiny_model(representation_dropout=0.5, num_output_representations=2)
    batch = tiny_batch()
    clean = run(model, batch)
    torch.manual_seed(0)
    noisy = run(model.train(), batch)
    assert_identical(torch.stack(noisy.hidden_states), torch.stack(clean.hidden_states))
    kept = noisy.representations[0] != 0
    assert 0.3 < kept[batch["attention_mask"] == 1].float().mean() < 0.7
    assert_close(noisy.representations[0][kept], 2 * clean.representations[0][kept], ROUNDING)
    assert (kept != (noisy.representations[1] != 0)).any()


@pytest.mark.parametrize("model_class", [ElmoModel, *HEADS])
def test_only_the_mix_and_the_head_are_trained_by_default_also_after_loading(model_class, tmp_path):
    model = tiny_model(model_class)
    model.save_pretrained(tmp_path)
    for candidate in (model, model_class.from_pretrained(tmp_path)):
        trained = {name for name, parameter in candidate.named_parameters() if parameter.requires_grad}
        assert trained == {
            name
            for name, _ in candidate.named_parameters()
            if name.startswith(("representations", "elmo.representations", "task_network", "classifier", "pair_"))
        }
    thawed = model_class.from_pretrained(tmp_path, freeze_bilm=False, mix_trainable=False)
    frozen = {name for name, parameter in thawed.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in thawed.named_parameters() if "representations" in name}


def test_further_representations_start_as_configured_when_a_folder_has_one(tmp_path):
    tiny_model(mix_parameters=[1.0, 2.0, 3.0]).save_pretrained(tmp_path)
    model, report = ElmoModel.from_pretrained(
        tmp_path, num_output_representations=2, mix_parameters=[0.5, 0.0, 0.0], output_loading_info=True
    )
    assert not report["missing_keys"]
    assert_close(model.representations[0].scalar_parameters, [1.0, 2.0, 3.0], 0)
    assert_close(model.representations[1].scalar_parameters, [0.5, 0.0, 0.0], 0)


def test_a_new_bilm_is_initialised_as_bilm_tf_does():
    torch.manual_seed(0)
    model = ElmoModel(tiny_config(cell_size=300, projection_size=200, filters=[[1, 60], [3, 90]]))
    lstm = model.encoder.layers[0].forward_lstm
    assert_identical(lstm.input_gates.bias, torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat_interleave(300))
    glorot = (6 / (200 + 1200)) ** 0.5
    assert 0.99 * glorot < lstm.recurrent_gates.weight.abs().max() <= glorot
    table = model.embeddings.character_embeddings.weight
    assert not table[0].any()
    assert 0.95 < table.abs().max() <= 1
    assert_identical(model.embeddings.highways[0].carry.bias, torch.full((150,), -2.0))
    assert model.embeddings.convolutions[0].weight.abs().max() <= 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": torch.ones(2, 3, dtype=torch.long)}, r"`input_ids`.*\(batch, words, 50\).*ElmoTokenizer"),
        ({"input_ids": torch.ones(2, 3, 30, dtype=torch.long)}, r"`input_ids`.*\(2, 3, 30\)"),
        ({"input_ids": torch.ones(2, 3, 50)}, r"`input_ids`.*torch.float32"),
        (
            {"input_ids": torch.ones(2, 3, 50, dtype=torch.long), "attention_mask": torch.ones(2, 4)},
            r"`attention_mask`.*\(2, 3\).*\(2, 4\)",
        ),
        (
            {
                "input_ids": torch.ones(2, 3, 50, dtype=torch.long),
                "states": (torch.zeros(2, 2, 5), torch.zeros(2, 2, 22)),
            },
            r"`states\[0\]`.*\(2, rows, 12\).*\(2, 2, 5\)",
        ),
    ],
)
def test_wrong_shapes_are_told_in_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny_model()(**arguments)
