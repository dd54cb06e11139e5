"""The common checks that transformers runs on its own models, run on ours.

They come from the tests of the transformers source distribution; `tests/transformers_source.py` fetches it.
"""

import unittest
from typing import Any
from unittest.mock import patch

import torch
from transformers.models.auto import modeling_auto

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
)
from tests.tiny_models import tiny_config
from tests.transformers_source import transformers_tests

common = transformers_tests("test_modeling_common")
ConfigTester = transformers_tests("test_configuration_common").ConfigTester


class ElmoModelTester:
    """Makes the tiny configurations and inputs that the common checks ask for."""

    def __init__(self, parent: unittest.TestCase) -> None:
        self.parent = parent
        self.batch_size = 4
        self.seq_length = 7
        self.hidden_size = 12
        self.num_hidden_layers = 2
        self.is_training = True

    def get_config(self) -> ElmoConfig:
        return tiny_config(
            freeze_bilm=False, representation_dropout=0.0, num_labels=3, word_vocab_size=9, bilm_dropout=0.0
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[ElmoConfig, dict[str, Any]]:
        config = self.get_config()
        shape = (self.batch_size, self.seq_length, config.max_characters_per_token)
        mask = torch.ones(shape[:2], dtype=torch.long)
        mask[1, 4:] = 0
        mask[3, 1:] = 0
        input_ids = torch.randint(1, config.vocab_size, shape) * mask[..., None]
        return config, {"input_ids": input_ids, "attention_mask": mask}


# The mixin tells base models from heads, and one head from another, by the class names that these tables hold.
@patch.dict(modeling_auto.MODEL_MAPPING_NAMES, elmo="ElmoModel")
@patch.dict(modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES, elmo="ElmoForPreTraining")
@patch.dict(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, elmo="ElmoForSequenceClassification")
@patch.dict(modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, elmo="ElmoForTokenClassification")
class ElmoModelTest(common.ModelTesterMixin, unittest.TestCase):
    all_model_classes = (
        ElmoModel,
        ElmoForPreTraining,
        ElmoForSequenceClassification,
        ElmoForTokenClassification,
    )
    has_attentions = False
    test_resize_embeddings = False  # the rows of the character table are bytes
    test_can_init_all_missing_weights_before_2023 = True  # the mixin reads the year from a header that we do not have

    def setUp(self) -> None:
        self.model_tester = ElmoModelTester(self)
        self.config_tester = ConfigTester(self, config_class=ElmoConfig, projection_size=32)

    def _prepare_for_class(
        self, inputs_dict: dict[str, Any], model_class: type, return_labels: bool = False
    ) -> dict[str, Any]:
        """A language model gives its scores of words only on request; its labels are numbers of words."""
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if model_class is ElmoForPreTraining:
            inputs["output_logits"] = True
            if return_labels:
                inputs["labels"] = torch.zeros(inputs["input_ids"].shape[:2], dtype=torch.long)
        return inputs

    def test_config(self) -> None:
        self.config_tester.common_properties = ["vocab_size", "num_hidden_layers"]
        self.config_tester.run_common_tests()

    def test_load_with_mismatched_shapes(self) -> None:
        def character_ids(shape: tuple[int, int], vocab_size: int) -> torch.Tensor:
            return torch.randint(1, vocab_size, (*shape, self.model_tester.get_config().max_characters_per_token))

        with patch.object(common, "ids_tensor", character_ids):
            super().test_load_with_mismatched_shapes()
