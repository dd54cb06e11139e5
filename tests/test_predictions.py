"""Predictions: the words that each direction finds most probable, and what both together do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hf_elmo.pretraining.predictions import WordPredictions, predict
from tests.assertions import assert_close
from tests.language_models import save_language_model, tiny_language_model, tiny_tokenizer, tiny_vocabulary
from tests.test_cli import assert_one_message, assert_succeeds

WORDS = ["the", "zebra", "sat", "on", "the", "mat", "."]
SPECIAL = {"<S>", "</S>", "<UNK>"}


def probabilities() -> tuple[torch.Tensor, torch.Tensor]:
    """What each direction gives every word of the vocabulary at each place, from the model's logits."""
    encoded = tiny_tokenizer()(WORDS, is_split_into_words=True, return_tensors="pt")
    with torch.inference_mode():
        output = tiny_language_model()(encoded["input_ids"], encoded["attention_mask"], output_logits=True)
    return output.forward_logits[0, :-2].softmax(-1), output.backward_logits[0, 2:].softmax(-1)


def assert_best(found: list[tuple[str, float]], expected: torch.Tensor, allowed: list[str]) -> None:
    """Checks that words and probabilities are the highest of those allowed, the highest first."""
    words = tiny_vocabulary()
    order = sorted(allowed, key=lambda word: -float(expected[words.index(word)]))
    assert [word for word, _ in found] == order[: len(found)]
    assert_close([value for _, value in found], [expected[words.index(word)] for word, _ in found], 1e-6)


@pytest.mark.parametrize("keep_special", [False, True])
def test_the_words_are_those_of_the_logits(keep_special: bool) -> None:
    allowed = [word for word in tiny_vocabulary() if keep_special or word not in SPECIAL]
    predictions = predict(tiny_language_model(), tiny_tokenizer(), WORDS, 5, keep_special=keep_special)
    assert [prediction.word for prediction in predictions] == WORDS
    mask = torch.tensor([float(word in allowed) for word in tiny_vocabulary()])
    for prediction, left, right in zip(predictions, *probabilities(), strict=True):
        both = left * right * mask
        assert_best(prediction.left, left, allowed)
        assert_best(prediction.right, right, allowed)
        assert_best(prediction.combined, both / both.sum(), allowed)


def test_a_direction_sees_its_side_only() -> None:
    def ask(words: list[str]) -> list[WordPredictions]:
        return predict(tiny_language_model(), tiny_tokenizer(), words, 5)

    before, after = ask(WORDS), ask([*WORDS[:3], "fox", *WORDS[4:]])

    def same(one: list[tuple[str, float]], other: list[tuple[str, float]]) -> bool:
        return dict(one) == pytest.approx(dict(other), rel=1e-4)

    same_left = [same(one.left, other.left) for one, other in zip(before, after, strict=True)]
    same_right = [same(one.right, other.right) for one, other in zip(before, after, strict=True)]
    assert same_left == [True] * 4 + [False] * 3
    assert same_right == [False] * 3 + [True] * 4
    same_combined = [same(one.combined, other.combined) for one, other in zip(before, after, strict=True)]
    assert same_combined == [place == 3 for place in range(7)]


def test_unknown_words_are_marked_and_predicted_for() -> None:
    predictions = predict(tiny_language_model(), tiny_tokenizer(), WORDS)
    assert [prediction.word for prediction in predictions if not prediction.is_known] == ["zebra"]
    assert all(len(prediction.combined) == 10 for prediction in predictions)


def test_text_is_split_by_the_tokenizer() -> None:
    tokenizer = tiny_tokenizer(word_splitter="treebank")
    text, long = "the zebra sat on the mat.", "мама" * 20
    assert predict(tiny_language_model(), tokenizer, text) == predict(tiny_language_model(), tokenizer, WORDS)
    assert [prediction.word for prediction in predict(tiny_language_model(), tokenizer, f"{long} on")] == [long, "on"]


def test_few_scores_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = predict(tiny_language_model(), tiny_tokenizer(), WORDS)
    monkeypatch.setattr("hf_elmo.pretraining.predictions.SCORES_AT_A_TIME", 1)
    for one, other in zip(predict(tiny_language_model(), tiny_tokenizer(), WORDS), expected, strict=True):
        assert dict(one.combined) == pytest.approx(dict(other.combined), rel=1e-4)


def test_a_model_in_training_predicts_without_dropout_and_trains_on() -> None:
    model = tiny_language_model(bilm_dropout=0.5).train()
    assert predict(model, tiny_tokenizer(), WORDS) == predict(tiny_language_model(), tiny_tokenizer(), WORDS)
    assert model.training


def test_what_cannot_be_asked_is_told() -> None:
    model, tokenizer = tiny_language_model(), tiny_tokenizer()
    for sentence in ("", "  ", []):
        with pytest.raises(ValueError, match="The sentence has no word"):
            predict(model, tokenizer, sentence)
    for top_k in (0, len(tiny_vocabulary())):
        with pytest.raises(ValueError, match=f"top_k is {top_k}: between 1 and {len(tiny_vocabulary()) - 3} words"):
            predict(model, tokenizer, WORDS, top_k)


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    folder = save_language_model(tmp_path / "model")
    text = " ".join(WORDS)
    table = assert_succeeds("predict", folder, text, "--top", 2)
    expected = predict(tiny_language_model(), tiny_tokenizer(), WORDS, 2)
    for word in ("from the left", "from the right", "both", "(unknown)", *WORDS):
        assert word in table
    for prediction in expected:
        for found in (prediction.left, prediction.right, prediction.combined):
            assert all(f"{word} {value:.3f}" in table for word, value in found)
    printed = json.loads(assert_succeeds("predict", folder, text, "--top", 2, "--json"))
    assert [record["word"] for record in printed] == WORDS
    assert printed[1]["is_known"] is False
    assert [word for word, _ in printed[0]["combined"]] == [word for word, _ in expected[0].combined]
    assert_one_message("top_k is 0", "predict", folder, text, "--top", 0)
    assert_one_message("The sentence has no word", "predict", folder, " ")
    special = json.loads(
        assert_succeeds("predict", folder, text, "--top", len(tiny_vocabulary()), "--special", "--json")
    )
    assert {word for word, _ in special[0]["left"]} == set(tiny_vocabulary())


def test_words_that_look_like_markup_are_shown(tmp_path: Path) -> None:
    folder = save_language_model(tmp_path / "model")
    assert "[bold]" in assert_succeeds("predict", folder, "the [bold] cat")
