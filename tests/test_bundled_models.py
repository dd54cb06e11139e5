"""The trained models that come with the package: small, complete, loaded by name, and better than chance."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer
from typer.testing import CliRunner

from hf_elmo import ElmoEmbedder, bundled_model
from hf_elmo.bundled import MODELS, bundled_models, resolve_model
from hf_elmo.cli import app
from hf_elmo.pretraining.corpus import Corpus
from hf_elmo.pretraining.loading import load_language_model
from hf_elmo.pretraining.perplexity import perplexity
from tests.shared_files import data_path

NAMES = ["elmo-tiny-english", "elmo-tiny-russian"]
# The first is taken from the demo's sentences, which no model has read.
TEXTS = {
    "elmo-tiny-english": "She looked at him and did not know what to say .",
    "elmo-tiny-russian": "Он посмотрел на неё и не знал , что сказать .",
}


def test_there_are_two_and_all_files_together_have_less_than_5_mb():
    assert bundled_models() == NAMES
    files = [path for path in MODELS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000
    for name in NAMES:
        assert {path.name for path in bundled_model(name).iterdir()} == {
            "README.md",
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.txt",
        }


@pytest.mark.parametrize("name", NAMES)
def test_it_is_stored_in_half_precision_and_computes_in_float32(name):
    folder = bundled_model(name)
    header = (folder / "model.safetensors").read_bytes()
    tensors = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    assert {tensor["dtype"] for key, tensor in tensors.items() if key != "__metadata__"} == {"F16"}
    model = AutoModel.from_pretrained(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    output = model(**tokenizer([TEXTS[name]], return_tensors="pt")).last_hidden_state
    assert output.shape == (1, len(TEXTS[name].split()) + 2, 128)
    assert torch.isfinite(output).all()


@pytest.mark.parametrize("name", NAMES)
def test_it_knows_its_language(name):
    """The words in their order are likelier than backwards, and far likelier than by chance (thousands)."""
    model, tokenizer = load_language_model(resolve_model(name))
    losses = []
    for words in (TEXTS[name].split(), TEXTS[name].split()[::-1]):
        inputs = tokenizer([words], is_split_into_words=True, return_tensors="pt")
        labels = inputs.pop("word_input_ids") - 1
        with torch.no_grad():
            losses.append(float(model(**inputs, labels=labels).loss))
    assert losses[0] < 4.5
    assert losses[0] < losses[1] - 1


def test_commands_and_the_embedder_take_the_name():
    embedder = ElmoEmbedder.from_pretrained("elmo-tiny-english")
    assert embedder.embed_sentence("a name").shape == (2, 128)
    result = CliRunner().invoke(app, ["predict", "elmo-tiny-english", "She went into the room ."])
    assert result.exit_code == 0, result.output
    with pytest.raises(ValueError, match=r"No model 'elmo-huge' comes with the package; there is elmo-tiny-english"):
        bundled_model("elmo-huge")


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    assert resolve_model("elmo-tiny-english") == str(MODELS / "elmo-tiny-english")
    assert resolve_model("someone/elmo") == "someone/elmo"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elmo-tiny-english").mkdir()
    assert resolve_model("elmo-tiny-english") == "elmo-tiny-english"


@pytest.mark.parametrize("name", NAMES)
def test_the_card_tells_command_data_and_time(name):
    card = (bundled_model(name) / "README.md").read_text(encoding="utf-8")
    for told in (f"--output {name}", "hf-elmo pretrain --train", "words", "minutes", "Perplexity", "public domain"):
        assert told in card, told


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["sentence", "stream"])
@pytest.mark.long
def test_the_perplexity_of_wikitext_is_the_one_on_the_card(protocol):
    text = data_path("wikitext2", "test.txt")
    model, tokenizer = load_language_model(resolve_model("elmo-tiny-english"))
    report = perplexity(model, tokenizer, Corpus([text], word_splitter="whitespace"), protocol)
    card = (bundled_model("elmo-tiny-english") / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"\| WikiText-2, test \| {protocol} \| (\S+) \| (\S+) \| (\S+) \|", card)
    assert [float(value) for value in row.groups()] == pytest.approx(
        [report.forward, report.backward, report.average], rel=2e-3
    )


def test_the_picture_of_the_learning_curves_is_small():
    picture = Path(__file__).parents[1] / "docs" / "learning-curves.svg"
    assert 1000 < picture.stat().st_size < 100_000
