"""What works with any model of transformers works with ELMo: precisions, devices, checkpointing, LoRA, sentences."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from hf_elmo import ElmoForSequenceClassification, ElmoForTokenClassification, ElmoModel
from tests.assertions import assert_close, assert_far, assert_identical, assert_zero_at_padding
from tests.saved_folders import TEXTS, save_folder, varied_model
from tests.tiny_models import tiny_batch, tiny_config

ROUNDING = 1e-5
BILM = ("elmo.embeddings.", "elmo.encoder.")
# Relative to the largest value: bfloat16 has 8 bits of precision, float16 has 11.
PRECISION = {torch.bfloat16: 0.05, torch.float16: 0.005}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_folder(tmp_path_factory.mktemp("folders") / "elmo")


def representation(model) -> torch.Tensor:
    with torch.no_grad():
        return model(**tiny_batch()).last_hidden_state


class TestPrecision:
    @pytest.mark.parametrize("dtype", PRECISION)
    def test_half_precision_is_near_single_precision(self, dtype, folder):
        expected = representation(ElmoModel.from_pretrained(folder))
        model = ElmoModel.from_pretrained(folder, dtype=dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        output = representation(model)
        assert output.dtype == dtype
        assert_close(output, expected, PRECISION[dtype] * float(expected.abs().max()))
        assert_zero_at_padding(output, tiny_batch()["attention_mask"])

    @pytest.mark.parametrize("dtype", PRECISION)
    def test_half_precision_survives_saving_and_loading(self, dtype, folder, tmp_path):
        model = AutoModel.from_pretrained(folder, dtype=dtype)
        model.save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
        again = AutoModel.from_pretrained(tmp_path)
        assert again.dtype == dtype
        for name, parameter in model.state_dict().items():
            assert_identical(again.state_dict()[name], parameter, name)
        assert AutoModel.from_pretrained(tmp_path, dtype="float32").dtype == torch.float32

    @pytest.mark.parametrize("dtype", PRECISION)
    @pytest.mark.parametrize("settings", [{"mix_layer_norm": True}, {"num_output_representations": 2}])
    def test_mixes_and_states_work_in_half_precision(self, dtype, settings):
        model = varied_model(**settings).to(dtype)
        states = model(**tiny_batch()).states
        assert {state.dtype for state in states} == {dtype}
        for mix in model(**tiny_batch(), states=states).representations:
            assert mix.dtype == dtype
            assert mix.isfinite().all()

    def test_a_head_is_trained_under_autocast(self):
        model = varied_model(ElmoForTokenClassification, freeze_bilm=False).train()
        labels = tiny_batch()["attention_mask"]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**tiny_batch(), labels=labels).loss
        loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


class TestDevices:
    @pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}])
    def test_a_device_map_changes_no_number(self, device_map, folder):
        pytest.importorskip("accelerate")
        model = AutoModel.from_pretrained(folder, device_map=device_map)
        assert_close(representation(model), representation(AutoModel.from_pretrained(folder)), ROUNDING)

    @pytest.mark.parametrize("on_disk", [["encoder"], ["encoder.layers.1"], ["embeddings", "encoder"]])
    def test_parts_that_lie_on_disk_change_no_number(self, on_disk, folder, tmp_path):
        pytest.importorskip("accelerate")
        places = {"embeddings": "cpu", "encoder.layers.0": "cpu", "representations": "cpu", "dropout": "cpu"}
        places |= dict.fromkeys(on_disk, "disk")
        if "encoder" in on_disk:
            del places["encoder.layers.0"]
        model = AutoModel.from_pretrained(folder, device_map=places, offload_folder=tmp_path)
        assert model.hf_device_map == places
        for name, parameter in model.named_parameters():
            assert (parameter.device.type == "meta") == name.startswith(tuple(on_disk)), name
        expected = AutoModel.from_pretrained(folder)
        assert_close(representation(model), representation(expected), ROUNDING)
        padding = {name: values * 0 for name, values in tiny_batch().items()}
        assert not model(**padding).last_hidden_state.any()
        states = model(**tiny_batch()).states
        for ours, theirs in zip(model(**padding, states=states).states, states, strict=True):
            assert_close(ours, theirs, ROUNDING)

    def test_a_model_built_without_memory_is_filled_by_loading(self, folder):
        with torch.device("meta"):
            empty = ElmoModel(tiny_config())
        assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
        loaded = AutoModel.from_pretrained(folder)
        assert {parameter.device.type for parameter in loaded.parameters()} == {"cpu"}
        empty.load_state_dict(loaded.state_dict(), assign=True)
        assert_close(representation(empty.eval()), representation(loaded), ROUNDING)


class TestGradientCheckpointing:
    @pytest.mark.parametrize("use_reentrant", [True, False])
    @pytest.mark.parametrize("with_states", [False, True])
    def test_it_changes_no_gradient(self, use_reentrant, with_states):
        results = []
        for checkpointing in (False, True):
            model = varied_model(freeze_bilm=False, representation_dropout=0.0).train()
            states = tuple(state.detach() for state in model(**tiny_batch()).states) if with_states else None
            if checkpointing:
                model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
                assert model.is_activation_checkpointing
            output = model(**tiny_batch(), states=states, output_hidden_states=True)
            parts = [output.last_hidden_state, *output.states, *output.hidden_states]
            sum(part.sin().sum() for part in parts).backward()
            results.append({name: parameter.grad for name, parameter in model.named_parameters()})
        for name, expected in results[0].items():
            assert results[1][name] is not None, name
            assert_close(results[1][name], expected, ROUNDING * (1 + float(expected.abs().max())), name)

    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_a_frozen_bilm_still_trains_the_mix_and_the_head(self, use_reentrant):
        model = varied_model(ElmoForSequenceClassification).train()
        model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        model(**tiny_batch(), labels=torch.tensor([0, 1, 0, 1])).loss.backward()
        trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert trained == {name for name, _ in model.named_parameters() if not name.startswith(BILM)}


class TestLora:
    TARGETS = ("input_gates", "recurrent_gates", "projection")

    @pytest.fixture
    def adapted(self):
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(
            r=3, target_modules=list(self.TARGETS), task_type="SEQ_CLS", init_lora_weights=False, lora_alpha=1
        )
        return peft.get_peft_model(varied_model(ElmoForSequenceClassification), config)

    def test_adapters_of_the_lstm_learn_and_the_rest_of_the_bilm_does_not(self, adapted):
        adapted.train()
        adapted(**tiny_batch(), labels=torch.tensor([0, 1, 0, 1])).loss.backward()
        for name, parameter in adapted.named_parameters():
            if "pair_classifier" in name:
                continue  # there are no pairs here
            if "lora" in name or "modules_to_save" in name:
                assert parameter.grad.abs().max() > 0, name
            else:
                assert parameter.grad is None, name
        lstms = [name for name, _ in adapted.named_parameters() if "lora_A" in name and "_lstm." in name]
        assert len(lstms) == 2 * 2 * len(self.TARGETS)

    def test_adapters_change_the_output_and_merging_them_does_not(self, adapted):
        adapted.eval()
        logits = adapted(**tiny_batch()).logits
        with adapted.disable_adapter():
            assert_far(adapted(**tiny_batch()).logits, logits, 1e-3)
        merged = adapted.merge_and_unload()
        assert type(merged) is ElmoForSequenceClassification
        assert [name for name, _ in merged.named_parameters() if "lora" in name] == []
        assert_close(merged.eval()(**tiny_batch()).logits, logits, 5e-6)

    def test_an_adapter_is_saved_and_put_on_the_model_again(self, adapted, tmp_path):
        from peft import PeftModel

        adapted.eval().save_pretrained(tmp_path)
        assert (tmp_path / "adapter_model.safetensors").is_file()
        again = PeftModel.from_pretrained(varied_model(ElmoForSequenceClassification), tmp_path).eval()
        assert_close(again(**tiny_batch()).logits, adapted(**tiny_batch()).logits, 5e-6)

    def test_the_common_shorthand_reaches_every_linear_layer(self):
        peft = pytest.importorskip("peft")
        adapted = peft.get_peft_model(varied_model(), peft.LoraConfig(target_modules="all-linear"))
        names = [name for name, _ in adapted.named_parameters() if "lora_A" in name]
        assert len(names) == 2 * 2 * len(self.TARGETS) + len(["carry", "transform", "embeddings.projection"])


class TestSentenceTransformers:
    @pytest.fixture
    def modules(self):
        modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
        return modules.Transformer, modules.Pooling

    def build(self, transformer, pooling, mode: str = "mean"):
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(
            modules=[transformer, pooling(transformer.get_embedding_dimension(), mode)], device="cpu"
        )

    def masked_mean(self, folder, texts: list[str]) -> np.ndarray:
        batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
        mask = batch["attention_mask"][..., None]
        with torch.no_grad():
            words = AutoModel.from_pretrained(folder)(**batch).last_hidden_state
        return ((words * mask).sum(dim=1) / mask.sum(dim=1)).numpy()

    def test_mean_pooling_is_the_mean_of_words_and_boundaries(self, modules, folder):
        transformer, pooling = modules
        model = self.build(transformer(str(folder)), pooling)
        assert_close(model.encode(TEXTS), self.masked_mean(folder, TEXTS), ROUNDING)
        assert_close(model.encode(TEXTS, batch_size=1), self.masked_mean(folder, TEXTS), ROUNDING)

    @pytest.mark.parametrize("mode", ["mean", "max", "cls", "lasttoken"])
    def test_it_is_saved_and_loaded_with_every_pooling(self, mode, modules, folder, tmp_path):
        from sentence_transformers import SentenceTransformer

        transformer, pooling = modules
        model = self.build(transformer(str(folder)), pooling, mode)
        model.save(str(tmp_path))
        again = SentenceTransformer(str(tmp_path), device="cpu")
        assert_close(again.encode(TEXTS), model.encode(TEXTS), ROUNDING)
        assert list(tmp_path.rglob("modeling_elmo.py")) != []

    def test_a_folder_is_taken_as_it_is(self, modules, folder):
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(folder), device="cpu")
        assert_close(model.encode(TEXTS), self.masked_mean(folder, TEXTS), ROUNDING)
        assert model.similarity(model.encode(TEXTS), model.encode(TEXTS)).shape == (3, 3)

    def test_prompts_are_words_before_the_text(self, modules, folder):
        from hf_elmo.sentence_transformer import ElmoTransformer

        model = self.build(ElmoTransformer(str(folder)), modules[1])
        expected = self.masked_mean(folder, [f"query: {text}" for text in TEXTS])
        assert_close(model.encode(TEXTS, prompt="query: "), expected, ROUNDING)

    def test_a_pooling_may_leave_the_prompt_out(self, modules, folder):
        from hf_elmo.sentence_transformer import ElmoTransformer

        model = self.build(ElmoTransformer(str(folder)), modules[1])
        model.set_pooling_include_prompt(False)
        batch = AutoTokenizer.from_pretrained(folder)(["query : a fox"], return_tensors="pt")
        with torch.no_grad():
            words = AutoModel.from_pretrained(folder)(**batch).last_hidden_state[0]
        # <S> query : a fox </S>: the boundary before the prompt goes with it.
        assert_close(model.encode("a fox", prompt="query: "), words[3:].mean(dim=0), ROUNDING)

    def test_with_prompts_it_is_saved_and_loaded_where_the_package_is_trusted(self, modules, folder, tmp_path):
        from sentence_transformers import SentenceTransformer

        from hf_elmo.sentence_transformer import ElmoTransformer

        model = self.build(ElmoTransformer(str(folder)), modules[1])
        model.save(str(tmp_path))
        again = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
        assert type(again[0]) is ElmoTransformer
        assert_close(again.encode(TEXTS, prompt="query: "), model.encode(TEXTS, prompt="query: "), ROUNDING)
