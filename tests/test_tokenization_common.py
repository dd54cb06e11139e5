"""The common checks that transformers runs on its own tokenizers, run on ours.

They come from the tests of the transformers source distribution; `tests/transformers_source.py` fetches it.
"""

import shutil
import tempfile
import unittest
from typing import Any
from unittest.mock import patch

import numpy as np
from transformers import BatchEncoding

import hf_elmo  # noqa: F401 (makes AutoTokenizer know ELMo)
from hf_elmo.tokenization_elmo import ElmoTokenizer
from tests.transformers_source import transformers_tests

common = transformers_tests("test_tokenization_common")
backend = transformers_tests("test_tokenizers_backend_mixin")

SPECIAL_IDS = {0: 0, 257: 2, 258: 3}


class Row(tuple):
    """A row of character ids that equals itself and, if it is padding or a boundary, that token's id."""

    def __eq__(self, other: object) -> bool:
        return SPECIAL_IDS.get(self[1]) == other if isinstance(other, int) else tuple(self) == other

    __hash__ = tuple.__hash__


class ElmoTokenizerWithLists(ElmoTokenizer):
    """Gives lists of rows where the original gives arrays: the checks compare `input_ids` with `==`."""

    def _encode_plus(self, *args: Any, return_tensors: Any = None, **options: Any) -> BatchEncoding:
        encoding = super()._encode_plus(*args, return_tensors=return_tensors, **options)
        if return_tensors is None:
            encoding["input_ids"] = as_lists(encoding["input_ids"])
        return encoding

    def pad(self, *args: Any, **options: Any) -> BatchEncoding:
        encoding = super().pad(*args, **options)
        if isinstance(encoding["input_ids"], list):
            encoding["input_ids"] = as_lists([np.array(rows) for rows in encoding["input_ids"]])
        return encoding


def as_lists(ids: Any) -> Any:
    if isinstance(ids, np.ndarray) and ids.ndim == 1:
        return Row(ids.tolist())
    return [as_lists(part) for part in ids]


class ElmoTokenizerWithoutCharacters(ElmoTokenizerWithLists):
    """Gives tensors without their last axis, for the checks that look at the number of axes."""

    def _encode_plus(self, *args: Any, return_tensors: Any = None, **options: Any) -> BatchEncoding:
        encoding = super()._encode_plus(*args, return_tensors=return_tensors, **options)
        if return_tensors is not None:
            encoding["input_ids"] = encoding["input_ids"][..., 0]
        return encoding


class SavedTokenizer(unittest.TestCase):
    """Saves a tokenizer where the checks look for one."""

    tokenizer_class = rust_tokenizer_class = ElmoTokenizerWithLists

    @classmethod
    def setUpClass(cls) -> None:
        cls.tmpdirname = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.tmpdirname, ignore_errors=True)
        ElmoTokenizer().save_pretrained(cls.tmpdirname)
        cls.from_pretrained_id = [cls.tmpdirname]
        cls.tokenizers_list = [(cls.tokenizer_class, cls.tmpdirname, {})]


class ElmoTokenizerCommonTest(SavedTokenizer, common.TokenizerTesterMixin):
    test_tokenizer_from_extractor = False  # there is no vocabulary to extract

    def get_clean_sequence(self, tokenizer: Any, with_prefix_space: bool = False, **_: Any) -> tuple[str, list]:
        text = " " * with_prefix_space + "lower newer wider words here are enough to be cut twice"
        return text, tokenizer.encode(text, add_special_tokens=False)

    @patch.object(SavedTokenizer, "tokenizer_class", ElmoTokenizerWithoutCharacters)
    def test_batch_encode_dynamic_overflowing(self) -> None:
        super().test_batch_encode_dynamic_overflowing()

    @patch.object(SavedTokenizer, "tokenizer_class", ElmoTokenizerWithoutCharacters)
    def test_chat_template_return_assistant_tokens_mask(self) -> None:
        super().test_chat_template_return_assistant_tokens_mask()

    def test_internal_consistency(self) -> None:
        self.skipTest("a word has no id of its own to convert to")


class ElmoTokenizersBackendTest(SavedTokenizer, backend.TokenizersBackendTesterMixin):
    def test_training_new_tokenizer(self) -> None:
        self.skipTest("there is no vocabulary to train")

    def test_training_new_tokenizer_with_special_tokens_change(self) -> None:
        self.skipTest("there is no vocabulary to train")
