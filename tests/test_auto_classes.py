"""`import hf_elmo` alone makes the Auto classes and the stock pipelines of transformers know ELMo."""

import json
import logging
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
    TokenClassificationPipeline,
    pipeline,
)
from transformers.pipelines import PIPELINE_REGISTRY

from hf_elmo import ElmoConfig, ElmoForSequenceClassification, ElmoForTokenClassification, ElmoModel, ElmoTokenizer
from hf_elmo.pipeline_elmo import install_pipelines
from tests.assertions import assert_close, assert_far, assert_identical
from tests.saved_folders import TEXTS, convert_folder, save_folder

AUTO_MODELS = {
    AutoModel: ElmoModel,
    AutoModelForSequenceClassification: ElmoForSequenceClassification,
    AutoModelForTokenClassification: ElmoForTokenClassification,
}
HEADS = {auto: head for auto, head in AUTO_MODELS.items() if auto is not AutoModel}
AUTO_MAP = {
    "AutoConfig": "configuration_elmo.ElmoConfig",
    "AutoModel": "modeling_elmo.ElmoModel",
    "AutoModelForPreTraining": "language_model_elmo.ElmoForPreTraining",
    "AutoModelForSequenceClassification": "heads_elmo.ElmoForSequenceClassification",
    "AutoModelForTokenClassification": "heads_elmo.ElmoForTokenClassification",
}
CODE_FILES = {
    "buffers_elmo.py",
    "character_encoder_elmo.py",
    "character_ids_elmo.py",
    "configuration_elmo.py",
    "crf_elmo.py",
    "dropout_elmo.py",
    "fast_paths_elmo.py",
    "fused_lstm_elmo.py",
    "heads_elmo.py",
    "language_model_elmo.py",
    "lexicon_elmo.py",
    "locks_elmo.py",
    "lstm_elmo.py",
    "lstm_steps_elmo.py",
    "modeling_elmo.py",
    "packed_weights_elmo.py",
    "pipeline_elmo.py",
    "shared_bilm_elmo.py",
    "softmax_elmo.py",
    "task_network_elmo.py",
    "tokenization_elmo.py",
    "word_cache_elmo.py",
    "word_splitters_elmo.py",
}
# The same weights at another place in memory may be multiplied in another order.
ROUNDING = 1e-6
TEXT = "Don't panic,  naïve Мама 🦩."
WORDS = [("Do", 0, 2), ("n't", 2, 5), ("panic", 6, 11), (",", 11, 12), ("naïve", 14, 19), ("Мама", 20, 24)]
WORDS += [("🦩", 25, 26), (".", 26, 27)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return save_folder(tmp_path_factory.mktemp("folders") / "saved")


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    return convert_folder(tmp_path_factory.mktemp("folders") / "converted")


@pytest.fixture(params=["saved", "converted"])
def folder(request) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def heads(tmp_path_factory) -> dict[type, Path]:
    root = tmp_path_factory.mktemp("heads")
    labels = {"id2label": {0: "O", 1: "B-X", 2: "I-X"}, "label2id": {"O": 0, "B-X": 1, "I-X": 2}}
    return {head: save_folder(root / head.__name__, head, **labels) for head in HEADS.values()}


def vectors(model, tokenizer) -> torch.Tensor:
    """Every layer and the representation of the texts."""
    with torch.no_grad():
        output = model(**tokenizer(TEXTS, padding=True, return_tensors="pt"), output_hidden_states=True)
    return torch.stack([*output.hidden_states, output.last_hidden_state])


def assert_complete(folder: Path) -> None:
    """The folder can be loaded as remote code, whatever is asked of it."""
    assert {path.name for path in folder.glob("*.py")} == CODE_FILES
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "elmo"
    assert config["auto_map"] == AUTO_MAP
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer["auto_map"]["AutoTokenizer"] == ["tokenization_elmo.ElmoTokenizer", None]
    assert (folder / "tokenizer.json").is_file()
    assert (folder / "model.safetensors").is_file()


def test_a_folder_has_all_that_remote_code_needs(folder):
    assert_complete(folder)


def test_configuration_and_tokenizer_are_found(folder):
    assert type(AutoConfig.from_pretrained(folder)) is ElmoConfig
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(tokenizer) is ElmoTokenizer
    assert tokenizer.word_splitter == "treebank"


@pytest.mark.parametrize(("auto", "expected"), AUTO_MODELS.items())
def test_model_and_heads_are_found(auto, expected, folder):
    assert type(auto.from_pretrained(folder)) is expected
    assert type(auto.from_config(AutoConfig.from_pretrained(folder))) is expected


def test_the_tokenizer_is_found_by_its_own_files(saved, tmp_path):
    AutoTokenizer.from_pretrained(saved).save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is ElmoTokenizer


@pytest.mark.parametrize("auto", HEADS)
def test_a_head_on_a_base_folder_has_the_same_bilm_and_a_new_classifier_and_says_so(auto, saved, caplog):
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        model = auto.from_pretrained(saved)
    finally:
        logger.removeHandler(caplog.handler)
    base = AutoModel.from_pretrained(saved)
    for name, parameter in base.state_dict().items():
        assert_identical(model.base_model.state_dict()[name], parameter, name)
    assert "classifier.weight" in caplog.text
    assert "MISSING" in caplog.text
    assert [line for line in caplog.text.splitlines() if "elmo." in line] == []


@pytest.mark.parametrize("head", HEADS.values())
def test_a_head_folder_gives_the_base_model_and_the_other_head(head, heads):
    folder = heads[head]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = vectors(head.from_pretrained(folder).elmo, tokenizer)
    for auto, model_class in AUTO_MODELS.items():
        model = auto.from_pretrained(folder)
        assert type(model) is model_class
        assert_close(vectors(model.base_model, tokenizer), expected, ROUNDING)


def test_more_representations_than_a_folder_has_start_where_the_configuration_says(saved):
    initial = [1.0, 2.0, 3.0]
    model = AutoModel.from_pretrained(saved, num_output_representations=2, mix_parameters=initial, mix_gamma=0.5)
    weights, gamma = model.layer_weights()
    assert_close(weights[0], [1 / 3] * 3, ROUNDING)
    assert_close(weights[1], torch.tensor(initial).softmax(dim=0), ROUNDING)
    assert_close(gamma, [1.0, 0.5], ROUNDING)


@pytest.mark.parametrize("auto", AUTO_MODELS)
def test_weights_in_several_files_are_one_model(auto, saved, tmp_path):
    model = auto.from_pretrained(saved)
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for name, parameter in auto.from_pretrained(tmp_path).state_dict().items():
        assert_identical(parameter, model.state_dict()[name], name)


@pytest.mark.parametrize("auto", AUTO_MODELS)
def test_loading_and_saving_keeps_everything(auto, folder, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    model, tokenizer = auto.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model.save_pretrained(first)
    tokenizer.save_pretrained(first)
    assert_complete(first)
    AutoModel.from_pretrained(first).save_pretrained(second)
    AutoTokenizer.from_pretrained(first).save_pretrained(second)
    assert_complete(second)
    again = AutoTokenizer.from_pretrained(second)
    assert_close(vectors(AutoModel.from_pretrained(second), again), vectors(model.base_model, tokenizer), ROUNDING)
    assert (second / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    for path in second.glob("*.py"):
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_trust_remote_code_does_no_harm_where_the_package_is_installed(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    for auto in AUTO_MODELS:
        model = auto.from_pretrained(folder, trust_remote_code=True)
        expected = vectors(AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
        assert_close(vectors(model.base_model, tokenizer), expected, ROUNDING)


def test_feature_extraction_gives_the_vectors_of_the_model(folder):
    features = pipeline("feature-extraction", model=folder)(TEXTS)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for text, feature in zip(TEXTS, features, strict=True):
        expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        assert_close(np.array(feature), expected, ROUNDING)
    batched = pipeline("feature-extraction", model=folder, batch_size=3)(TEXTS)
    for alone, together in zip(features, batched, strict=True):
        assert_close(np.array(together)[:, : len(alone[0])], alone, ROUNDING)


def test_text_classification_gives_the_labels_of_the_head(heads):
    folder = heads[ElmoForSequenceClassification]
    classify = pipeline("text-classification", model=folder, top_k=None)
    model, tokenizer = ElmoForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for batch_size in (1, 2):
        for text, scores in zip(TEXTS, classify(TEXTS, batch_size=batch_size), strict=True):
            expected = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
            by_label = {score["label"]: score["score"] for score in scores}
            assert_close([by_label[label] for label in ("O", "B-X", "I-X")], expected, ROUNDING)


def test_text_classification_takes_pairs(heads):
    classify = pipeline("text-classification", model=heads[ElmoForSequenceClassification])
    assert classify({"text": "A fox.", "text_pair": "A dog."})["label"] in {"O", "B-X", "I-X"}


def test_token_classification_gives_each_word_its_place_and_its_scores(heads):
    folder = heads[ElmoForTokenClassification]
    tag = pipeline("token-classification", model=folder, ignore_labels=[])
    found = tag(TEXT)
    assert [(entity["word"], entity["start"], entity["end"]) for entity in found] == WORDS
    model, tokenizer = ElmoForTokenClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    scores, labels = model(**tokenizer(TEXT, return_tensors="pt")).logits.softmax(-1)[0, 1:-1].max(-1)
    assert [entity["entity"] for entity in found] == [model.config.id2label[int(label)] for label in labels]
    assert_close([entity["score"] for entity in found], scores, ROUNDING)


@pytest.mark.parametrize("strategy", ["simple", "first", "average", "max"])
def test_token_classification_aggregates_words_to_entities_that_are_pieces_of_the_text(strategy, heads):
    folder = heads[ElmoForTokenClassification]
    words = pipeline("token-classification", model=folder, ignore_labels=[])(TEXT)
    tag = pipeline("token-classification", model=folder, aggregation_strategy=strategy, ignore_labels=[])
    groups = tag(TEXT)
    starts, ends = {start for _, start, _ in WORDS}, {end for _, _, end in WORDS}
    assert [(group["start"] in starts, group["end"] in ends) for group in groups] == [(True, True)] * len(groups)
    assert (groups[0]["start"], groups[-1]["end"]) == (0, len(TEXT))
    for group in groups:
        inside = [word for word in words if group["start"] <= word["start"] < group["end"]]
        assert group["word"] == TEXT[group["start"] : group["end"]]
        assert {word["entity"].split("-")[-1] for word in inside} == {group["entity_group"]}
    assert len({group["entity_group"] for group in groups}) > 1


def test_token_classification_takes_words(heads):
    tag = pipeline("token-classification", model=heads[ElmoForTokenClassification], ignore_labels=[])
    found = tag(["New York", "is", "big"], is_split_into_words=True, delimiter=" ")[0]
    assert [entity["word"] for entity in found] == ["New York", "is", "big"]
    assert [(entity["start"], entity["end"]) for entity in found] == [(0, 8), (9, 11), (12, 15)]


def test_token_classification_walks_over_a_long_text_with_a_stride(heads):
    folder = heads[ElmoForTokenClassification]
    options = {"aggregation_strategy": "simple", "ignore_labels": []}
    short = AutoTokenizer.from_pretrained(folder, model_max_length=12)
    tag = pipeline("token-classification", model=str(folder), tokenizer=short, stride=4, **options)
    text = " ".join(f"word{index}" for index in range(40))
    groups = tag(text)
    assert (groups[0]["start"], groups[-1]["end"]) == (0, len(text))
    for group, following in zip(groups, [*groups[1:], {"start": len(text) + 1}], strict=True):
        assert group["word"] == text[group["start"] : group["end"]]
        assert group["end"] < following["start"]


def test_zero_shot_classification_runs_over_labels(tmp_path):
    labels = {"id2label": {0: "contradiction", 1: "entailment"}, "label2id": {"contradiction": 0, "entailment": 1}}
    folder = save_folder(tmp_path, ElmoForSequenceClassification, **labels)
    result = pipeline("zero-shot-classification", model=folder)(TEXTS[0], candidate_labels=["animals", "travel"])
    assert sorted(result["labels"]) == ["animals", "travel"]
    assert sum(result["scores"]) == pytest.approx(1)


def test_the_saved_weights_tell_texts_apart(saved):
    """The folders of these tests would otherwise prove nothing."""
    features = pipeline("feature-extraction", model=saved)(TEXTS[:2])
    assert_far(np.array(features[0])[0, 1], np.array(features[1])[0, 1], 1e-2)


def test_pipelines_of_other_models_stay_as_they_were():
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "b": 5, "c": 6}
    tokenizer = BertTokenizer(vocab=vocabulary)
    features = pipeline("feature-extraction", model=BertModel(config).eval(), tokenizer=tokenizer)
    output = features.forward(features.preprocess("a b c"))
    assert set(output) == {"last_hidden_state", "pooler_output"}
    tag = pipeline("token-classification", model=BertForTokenClassification(config).eval(), tokenizer=tokenizer)
    assert [entity["word"] for entity in tag("a b c")] == ["a", "b", "c"]


def test_pipelines_are_installed_once_and_over_what_another_package_installed():
    installed = {task: entry["impl"] for task, entry in PIPELINE_REGISTRY.supported_tasks.items()}
    install_pipelines()
    assert {task: entry["impl"] for task, entry in PIPELINE_REGISTRY.supported_tasks.items()} == installed

    class Theirs(TokenClassificationPipeline):
        """A pipeline of another package."""

    entry = {**PIPELINE_REGISTRY.supported_tasks["token-classification"], "impl": Theirs}
    with patch.dict(PIPELINE_REGISTRY.supported_tasks, {"token-classification": entry}):
        install_pipelines()
        assert issubclass(entry["impl"], Theirs)
        assert entry["impl"].gather_pre_entities is not Theirs.gather_pre_entities
