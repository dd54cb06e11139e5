"""Converted checkpoints against the stored outputs of the original implementations, on every array of the fixtures.

The tests compare key by key, and one of them checks that no key was left out. The tolerance is `PARITY_TOLERANCE`;
character ids and masks are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

import h5py
import numpy as np
import pytest

from tests.assertions import PARITY_TOLERANCE, assert_close, assert_identical
from tests.original_checkpoints import FROM_TENSORFLOW, SOURCES, TENSORFLOW, Elmo, convert_fixture
from tests.original_language_models import bilm_tf_lm, deeppavlov_lm
from tests.original_outputs import Arrays, allennlp_random, allennlp_tiny, deeppavlov_hub, nlpl_zip
from tests.reference import characters_of_sentence


@dataclass(frozen=True)
class Case:
    """A fixture with layers or losses to compare.

    Attributes:
        compute: Gives our arrays under the fixture's keys.
        patterns: Groups of keys, each a test.
        left_out: Keys that are no output of the model.
        file: The fixture's arrays.
    """

    compute: Callable[[Elmo], Arrays]
    patterns: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    file: str = "expected.npz"


WORD_IDS = ("*target*", "*input_token_ids")
"""Word ids of the language models' vocabularies: they go into the comparison of the losses."""

CASES = {
    "allennlp_tiny": Case(allennlp_tiny, ("*.layer0", "*.layer1", "*.layer2"), file="expected_all_layers.npz"),
    "allennlp_random": Case(
        allennlp_random,
        (
            "*character_ids",
            "token_layer.*",
            "stateless.all.*",
            "stateless.batch*",
            "stateful.batch*",
            "empty.*",
            "elmo.mask*",
            "elmo.plain.*",
            "elmo.layernorm.*",
        ),
    ),
    "nlpl_zip": Case(nlpl_zip, ("*character_ids", "all.*", "top.*", "average.*", "sentence_average.*")),
    "deeppavlov_hub_ru": Case(deeppavlov_hub, ("tokens.*", "default.*", "state_carry.*")),
    "deeppavlov_lm_ru": Case(
        deeppavlov_lm,
        ("*char_ids*", "*.log_probs", "sent*.losses", "stream.losses*", "stream.final_state.*", "*.perplexity"),
        WORD_IDS,
    ),
    "bilm_tf_lm": Case(
        bilm_tf_lm, ("*char_ids", "*.log_probs", "sent*.losses", "test.*losses*", "*.perplexity"), WORD_IDS
    ),
}
CASES |= {f"{name}{FROM_TENSORFLOW}": CASES[name] for name in TENSORFLOW}
PATTERNS = [(name, pattern) for name, case in CASES.items() for pattern in case.patterns]


@pytest.fixture(scope="session")
def elmo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Elmo]:
    """Converts the checkpoint of a fixture, once a session."""
    return cache(lambda name: convert_fixture(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def arrays(elmo: Callable[[str], Elmo]) -> Callable[[str], tuple[Arrays, Arrays]]:
    """Our arrays of a fixture and the expected ones, computed once a session."""

    @cache
    def compute(name: str) -> tuple[Arrays, Arrays]:
        expected = elmo(name).arrays(CASES[name].file)
        for key in expected:
            # AllenNLP's layer norm leaves (0 - mean) / deviation at padding; ours is 0 there, as everywhere.
            if key.endswith(".keep_boundaries"):
                expected[key] = expected[key] * expected["elmo.mask_keep_boundaries"][..., None]
        return CASES[name].compute(elmo(name)), expected

    return compute


def assert_same_arrays(ours: Arrays, expected: Arrays, pattern: str) -> float:
    """Asserts that all arrays whose key matches a pattern agree, perplexities in their logarithms.

    Returns:
        The largest difference.
    """
    keys = [key for key in expected if fnmatchcase(key, pattern)]
    assert keys, f"the fixture has no key {pattern}"
    largest = 0.0
    for key in keys:
        if expected[key].dtype.kind != "f":
            assert_identical(ours[key], expected[key], key)
            continue
        pair = (ours[key], expected[key])
        if key.endswith(".perplexity"):
            pair = (np.log(pair[0]), np.log(pair[1]))
        largest = max(largest, assert_close(*pair, PARITY_TOLERANCE, key))
    return largest


def assert_every_key_compared(
    ours: Arrays, expected: Arrays, patterns: Sequence[str], left_out: Sequence[str] = ()
) -> None:
    """Asserts that each key of a fixture is computed and matched by a tested pattern, or is left out on purpose."""
    left = {key for key in expected if any(fnmatchcase(key, pattern) for pattern in left_out)}
    missing = sorted(set(expected) - set(ours) - left)
    assert not missing, f"not compared: {missing}"
    untested = sorted(key for key in set(expected) - left if not any(fnmatchcase(key, p) for p in patterns))
    assert not untested, f"computed, but in no test: {untested}"
    unknown = sorted(set(ours) - set(expected))
    assert not unknown, f"computed, but not in the fixture: {unknown}"


@pytest.mark.parametrize(("name", "pattern"), PATTERNS)
def test_arrays(
    arrays: Callable[[str], tuple[Arrays, Arrays]],
    name: str,
    pattern: str,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("parity", (name, assert_same_arrays(*arrays(name), pattern)))


@pytest.mark.parametrize("name", list(CASES))
def test_every_key_is_compared(arrays: Callable[[str], tuple[Arrays, Arrays]], name: str) -> None:
    assert_every_key_compared(*arrays(name), CASES[name].patterns, CASES[name].left_out)


def test_stored_tensorflow_top_layer(
    elmo: Callable[[str], Elmo], arrays: Callable[[str], tuple[Arrays, Arrays]]
) -> None:
    """The HDF5 files that AllenNLP's own test compares with."""
    for stream in range(3):
        with h5py.File(elmo("allennlp_tiny").fixture / f"lm_embeddings_{stream}.hdf5") as file:
            assert len(file) == 10
            for sentence, dataset in file.items():
                key = f"stream{stream}.sentence{sentence}.layer2"
                assert_close(arrays("allennlp_tiny")[0][key], np.concatenate(dataset[...], axis=-1), what=key)


def test_stored_tensorflow_token_layer(elmo: Callable[[str], Elmo]) -> None:
    tiny = elmo("allennlp_tiny")
    words = (tiny.fixture / "vocab_test.txt").read_text(encoding="utf-8").splitlines()
    output = tiny.read([words[start : start + 50] for start in range(0, len(words), 50)]).without_boundaries()
    with h5py.File(tiny.fixture / "elmo_token_embeddings.hdf5") as file:
        expected = file["embedding"][...]
    for half in np.split(output.layers[0][output.mask], 2, axis=-1):
        assert_close(half, expected, what="token embeddings")


@pytest.mark.parametrize("name", [*SOURCES, *(f"{name}{FROM_TENSORFLOW}" for name in TENSORFLOW)])
def test_layers_are_those_of_the_reference(elmo: Callable[[str], Elmo], name: str) -> None:
    checkpoint = elmo(name)
    contents = checkpoint.json("sentences.json")
    sentences = [text.split() for text in contents[0]] if name == "allennlp_tiny" else contents["sentences"]
    output = checkpoint.read(sentences)
    expected = checkpoint.reference().batch([characters_of_sentence(words) for words in sentences])
    for row, layers in enumerate(expected.layers):
        ours = output.layers[:, row][:, output.mask[row]]
        assert_close(ours, np.stack(layers), what=f"{name}, sentence {row}")
    assert_close(output.states[0], expected.states.hidden, what=f"{name}, hidden states")
    assert_close(output.states[1], expected.states.cell, what=f"{name}, cell states")
