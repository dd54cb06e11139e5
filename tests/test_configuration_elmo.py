"""What ElmoConfig promises: the published sizes, derived values, validation, and JSON that loses nothing."""

import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from hf_elmo import ElmoConfig, ElmoModel
from tests.tiny_models import tiny_config


def count_original_parameters(config: ElmoConfig) -> int:
    """Numbers that AllenNLP's file holds: those of the model without the mixes and without row 0 of the table."""
    with torch.device("meta"):
        model = ElmoModel(config)
    bilm = [*model.embeddings.parameters(), *model.encoder.parameters()]
    return sum(parameter.numel() for parameter in bilm) - config.character_embedding_size


@pytest.mark.parametrize(
    ("size", "millions", "dimension"), [("small", 13.6, 256), ("medium", 28.0, 512), ("original", 93.6, 1024)]
)
def test_the_published_sizes_have_the_published_numbers_of_parameters(size, millions, dimension):
    config = ElmoConfig.from_size(size)
    assert round(count_original_parameters(config) / 1e6, 1) == millions
    assert config.hidden_size == dimension


def test_the_defaults_are_the_published_original():
    assert ElmoConfig().to_dict() == ElmoConfig.from_size("original").to_dict()
    config = ElmoConfig()
    assert (config.cell_size, config.projection_size, config.num_hidden_layers) == (4096, 512, 2)
    assert config.filters == [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
    assert (config.cell_clip, config.projection_clip, config.use_skip_connections) == (3.0, 3.0, True)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)


def test_a_published_size_takes_other_arguments_too():
    config = ElmoConfig.from_size("small", num_output_representations=2, cell_size=7)
    assert (config.num_output_representations, config.cell_size, config.projection_size) == (2, 7, 128)


def test_an_unknown_size_is_told_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"'large'.*small, medium, original"):
        ElmoConfig.from_size("large")


def test_values_that_others_decide_follow_them():
    config = tiny_config(num_hidden_layers=3)
    assert config.hidden_size == 2 * config.projection_size
    assert config.num_filters == sum(count for _, count in config.filters)
    assert config.mix_size == 4


@pytest.mark.parametrize(("count", "expected"), [(6, False), (7, True)])
def test_the_token_projection_exists_where_the_sizes_differ(count, expected):
    config = tiny_config(filters=[[1, count]], projection_size=6)
    assert config.use_token_projection is expected
    assert (ElmoModel(config).embeddings.projection is not None) is expected


def test_a_token_projection_between_equal_sizes_may_be_asked_for():
    config = tiny_config(filters=[[1, 6]], projection_size=6, use_token_projection=True)
    assert ElmoModel(config).embeddings.projection is not None


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"vocab_size": 0}, ["vocab_size", "at least 1"]),
        ({"character_embedding_size": 0}, ["character_embedding_size"]),
        ({"max_characters_per_token": 2}, ["max_characters_per_token", "at least 3"]),
        ({"projection_size": -1}, ["projection_size"]),
        ({"cell_size": 0}, ["cell_size"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers"]),
        ({"num_output_representations": 0}, ["num_output_representations"]),
        ({"num_highway_layers": -1}, ["num_highway_layers"]),
        ({"filters": []}, ["filters"]),
        ({"filters": [[1, 2, 3]]}, ["filters", "width", "[1, 2, 3]"]),
        ({"filters": [[1]]}, ["filters", "[1]"]),
        ({"filters": [[0, 4]]}, ["filters", "[0, 4]"]),
        ({"filters": [[51, 4]]}, ["filters", "50"]),
        ({"filters": "1x32"}, ["filters"]),
        ({"filters": [[1, "many"]]}, ["filters"]),
        ({"use_token_projection": False}, ["use_token_projection", "15", "projection_size", "6"]),
        ({"cell_clip": 0.0}, ["cell_clip", "None"]),
        ({"projection_clip": -3}, ["projection_clip", "None"]),
        ({"cell_clip": "3"}, ["cell_clip"]),
        ({"representation_dropout": 1.5}, ["representation_dropout", "1.5"]),
        ({"classifier_dropout": -0.1}, ["classifier_dropout"]),
        ({"mix_parameters": [0.0]}, ["mix_parameters", "3 layers", "1"]),
        ({"hidden_act": "gelu"}, ["hidden_act"]),
        ({"classifier_pooling": "sum"}, ["classifier_pooling"]),
        ({"cell_size": "big"}, ["cell_size"]),
        ({"use_skip_connections": "yes"}, ["use_skip_connections"]),
    ],
)
def test_a_wrong_value_is_told_with_the_name_of_its_field(values, names):
    with pytest.raises(StrictDataclassError) as caught:
        tiny_config(**values)
    for name in names:
        assert name in str(caught.value)


def test_numbers_may_be_whole():
    config = tiny_config(
        cell_clip=3, projection_clip=2, mix_parameters=[0, 1, 2], mix_gamma=2, representation_dropout=0
    )
    assert (config.cell_clip, config.mix_gamma) == (3, 2)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"cell_clip": None, "projection_clip": None},
        {"hidden_act": "tanh", "num_highway_layers": 0, "use_skip_connections": False, "num_hidden_layers": 1},
        {"mix_parameters": [0.25, -1.5, 3.0], "mix_gamma": 0.125, "mix_layer_norm": True, "mix_trainable": False},
        {"num_output_representations": 3, "freeze_bilm": False, "classifier_dropout": 0.1, "num_labels": 7},
        {"filters": [[3, 6]], "use_token_projection": True},
    ],
)
def test_json_loses_nothing(values, tmp_path):
    config = tiny_config(**values)
    config.save_pretrained(tmp_path)
    for loaded in (ElmoConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is ElmoConfig
        for name, value in values.items():
            assert getattr(loaded, name) == value, name
        assert {**loaded.to_dict(), "_name_or_path": ""} == {**config.to_dict(), "_name_or_path": ""}
    assert ElmoConfig.from_dict(json.loads(config.to_json_string())).to_dict() == config.to_dict()


def test_a_missing_clip_is_written_down_because_the_default_is_another(tmp_path):
    tiny_config(cell_clip=None, projection_clip=None).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["cell_clip"] is None
    assert saved["projection_clip"] is None
    assert ElmoModel(ElmoConfig.from_pretrained(tmp_path)).encoder.layers[0].forward_lstm.clips.cell is None


def test_configurations_share_nothing_that_can_be_changed():
    first, second = ElmoConfig(), ElmoConfig()
    first.filters.append([8, 2048])
    first.filters[0][1] = 1
    first.auto_map["AutoModel"] = "elsewhere.Model"
    assert second.filters == ElmoConfig().filters
    assert second.filters[0] == [1, 32]
    assert len(second.filters) == 7
    assert ElmoConfig().auto_map["AutoModel"] == "modeling_elmo.ElmoModel"


def test_what_somebody_else_adds_is_kept(tmp_path):
    config = tiny_config(id2label={0: "O", 1: "PER"}, label2id={"O": 0, "PER": 1}, remark="mine")
    config.save_pretrained(tmp_path)
    loaded = ElmoConfig.from_pretrained(tmp_path)
    assert loaded.id2label == {0: "O", 1: "PER"}
    assert loaded.remark == "mine"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_embedding_size": 5}, "`task_embedding_size` needs `word_vocab_size`"),
        ({"elmo_at_input": False}, "nothing to read: set `task_embedding_size` for word vectors of its own."),
        ({"elmo_at_input": False, "elmo_at_output": True}, "or `task_num_layers=0` to go without it."),
        ({"label_scheme": "BIO"}, "it needs `use_crf=True`"),
        ({"label_scheme": "IOB1", "use_crf": True}, "label_scheme"),
        ({"classifier_pooling": "sum"}, "classifier_pooling"),
        ({"task_num_layers": -1}, "`task_num_layers` must be at least 0, but is -1."),
        ({"task_hidden_size": 0}, "`task_hidden_size` must be at least 1"),
        ({"task_dropout": 1.5}, "`task_dropout` must lie between 0 and 1"),
        ({"mix_l2": -0.1}, "`mix_l2` must be 0 or more"),
        ({"mix_layers": []}, "`mix_layers` must name some of the layers 0"),
        ({"mix_layers": [3]}, "`mix_layers` must name some of the layers 0"),
        ({"mix_layers": [2, -1]}, r"each once, but is \[2, -1\]"),
        ({"frozen_bilm_dtype": "int8"}, "frozen_bilm_dtype"),
    ],
)
def test_settings_of_a_task_that_cannot_be_are_told_in_a_sentence(settings, message):
    with pytest.raises(StrictDataclassError, match=message):
        ElmoConfig(**settings)


def test_a_head_has_as_many_representations_as_it_needs():
    assert ElmoConfig(elmo_at_output=True).num_output_representations == 2
    assert ElmoConfig(elmo_at_output=True, num_output_representations=3).num_output_representations == 3
    assert ElmoConfig(elmo_at_input=False, task_embedding_size=4, word_vocab_size=9).num_output_representations == 1


def test_layers_that_are_mixed_are_counted_from_either_end():
    assert ElmoConfig().mixed_layers == [0, 1, 2]
    assert ElmoConfig(mix_layers=[-1]).mixed_layers == [2]
    assert ElmoConfig(mix_layers=[-1, 0]).mixed_layers == [0, 2]
