"""The token layer convolves short words apart from long ones, over fewer characters, and nobody can tell."""

import os

import pytest
import torch

from hf_elmo import ElmoTokenizer
from hf_elmo.character_encoder_elmo import ElmoCharacterEncoder, words_of_like_length
from hf_elmo.fast_paths_elmo import VARIABLE, without_fast_paths
from tests.assertions import assert_close
from tests.saved_folders import varied_model

pytestmark = pytest.mark.skipif(VARIABLE in os.environ, reason=f"{VARIABLE} switches fast paths off")

# Of every length, and cut off at the 48th character: then nothing stands behind the word.
WORDS = [chr(ord("a") + number % 26) * (number % 61 + 1) for number in range(150)]


def ids_of(words: list[str]) -> torch.Tensor:
    return ElmoTokenizer()([words], is_split_into_words=True, return_tensors="pt")["input_ids"][0]


def encoder_of(**settings) -> ElmoCharacterEncoder:
    return varied_model(**settings).double().embeddings.train().requires_grad_()


def encoded(encoder: ElmoCharacterEncoder, ids: torch.Tensor) -> list[torch.Tensor]:
    """The vectors, and the gradients of all weights."""
    encoder.zero_grad()
    vectors = encoder(ids)
    vectors.square().sum().backward()
    return [vectors.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 150])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_groups_change_no_number(count, activation):
    ids, encoder = ids_of(WORDS[:count]), encoder_of(hidden_act=activation)
    ours = encoded(encoder, ids)
    with without_fast_paths():
        expected = encoded(encoder, ids)
    for one, other in zip(ours, expected, strict=True):
        assert_close(one, other, 1e-9 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("count", [63, 150])
def test_vectors_without_gradients_are_those_with_gradients(count):
    ids, encoder = ids_of(WORDS[:count]), encoder_of()
    expected = encoder(ids)
    with torch.no_grad():
        assert_close(encoder.encode_words(ids), expected, 1e-9)


def test_each_word_is_in_one_group_that_is_as_long_as_its_longest():
    ids = ids_of(WORDS)
    groups = words_of_like_length(ids)
    assert len(groups) == 4
    assert sorted(torch.cat([words for words, _ in groups]).tolist()) == list(range(len(ids)))
    for words, length in groups:
        behind = ids[words, length:]
        assert (behind == ids[words, -1:]).all()
        assert (ids[words, length - 1] != ids[words, -1]).any()


def test_few_words_are_one_group():
    ((words, length),) = words_of_like_length(ids_of(["a", "abcd"]))
    assert words == slice(None)
    assert length == 6  # with the marks of its begin and its end


def test_no_word_is_no_error():
    assert encoder_of()(ids_of(WORDS)[:0]).shape[0] == 0


def test_a_transform_over_words_goes_through():
    ids, encoder = ids_of(WORDS[:4]), encoder_of()
    alone = torch.func.vmap(lambda word: encoder(word[None])[0])(ids)
    assert_close(alone, encoder(ids), 1e-9)
