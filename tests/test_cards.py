"""Cards: every section, nothing invented, and metadata that huggingface_hub reads back."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, ModelCardData

from hf_elmo.conversion import ConversionError, ConversionReport, convert_checkpoint
from hf_elmo.conversion.card import FROM_PYTORCH, card_data, model_card, render_card
from hf_elmo.conversion.catalog import CATALOG, CatalogEntry, find
from hf_elmo.conversion.facts import Facts, load_facts, load_references
from hf_elmo.conversion.formats import FORMATS

from .checkpoints import write_checkpoint

# Sections of a card, in their order.
SECTIONS = [
    "Use",
    "Training text",
    "Tokenisation of the training text",
    "Architecture",
    "Source",
    "Published figures",
    "Parity",
    "Limits and biases",
    "Citation",
]

entries = pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG.keys())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ConversionReport:
    """A conversion with all its numbers."""
    folder = tmp_path_factory.mktemp("cards")
    return convert_checkpoint(write_checkpoint(folder / "source"), folder / "elmo-mine")


def sections(card: str) -> dict[str, str]:
    """Heading -> text."""
    parts = re.split(r"^## (.+)$", ModelCard(card).text, flags=re.MULTILINE)
    return {heading: text.strip() for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def assert_metadata(card: str, expected: dict[str, Any]) -> None:
    """Checks the metadata as huggingface_hub reads it, and that writing it again changes nothing."""
    data = ModelCard(card).data
    assert isinstance(data, ModelCardData)
    assert data.to_dict() == expected
    assert ModelCard(str(ModelCard(card))).data.to_dict() == expected


def test_a_whole_card(report: ConversionReport) -> None:
    card = render_card(report, find("elmo-ru-news"))
    assert_metadata(
        card,
        {
            "language": ["ru"],
            "license": "apache-2.0",
            "library_name": "transformers",
            "pipeline_tag": "feature-extraction",
            "tags": ["elmo"],
        },
    )
    assert "\n# Russian ELMo, news\n" in card
    assert "| Published by | DeepPavlov |" in card
    assert "| Languages | ru |" in card
    assert "| Licence of the weights | apache-2.0 |" in card
    found = sections(card)
    assert list(found) == SECTIONS
    assert "import hf_elmo" in found["Use"]
    assert 'AutoModel.from_pretrained(".", trust_remote_code=True)' in found["Use"]
    assert found["Training text"].endswith("946 million tokens.")
    assert found["Tokenisation of the training text"] == "Not stated by the source."
    assert "| Vector of a word | 12 (both directions) |" in found["Architecture"]
    for name, digest in report.files.items():
        assert f"| `{name}` | `{digest}` |" in found["Source"]
    assert "<http://files.deeppavlov.ai/deeppavlov_data/elmo_ru-news_wmt11-16_1.5M_steps.tar.gz>" in found["Source"]
    assert "| Perplexity | 49.876 |" in found["Published figures"]
    assert "that TensorFlow adds" in found["Parity"]
    assert f"The outputs of {report.num_words} words" in found["Parity"].replace("\n", " ")
    for layer, difference in report.differences.items():
        assert f"| {layer} | {difference:.1e} |" in found["Parity"]
    assert found["Limits and biases"] == "Not stated by the source."
    assert "@inproceedings{peters2018deep," in found["Citation"]


@entries
def test_every_record_renders(entry: CatalogEntry, report: ConversionReport) -> None:
    card = render_card(report, entry)
    found = sections(card)
    facts = load_facts(entry)
    assert list(found) == SECTIONS
    assert all(found.values())
    licence = (
        {"license": "other", "license_name": "not-stated-by-the-source"}
        if entry.licence is None
        else {"license": entry.licence}
    )
    languages = {"language": list(entry.languages)} if entry.languages else {}
    tags = ["elmo"] if entry.languages else ["elmo", "biology", "protein"]
    common = {"library_name": "transformers", "pipeline_tag": "feature-extraction", "tags": tags}
    assert_metadata(card, {**languages, **licence, **common})
    assert facts.description in card
    for heading, fact in (
        ("Training text", facts.training_text),
        ("Tokenisation of the training text", facts.tokenization),
    ):
        assert found[heading] == (fact or "Not stated by the source.")
    assert found["Limits and biases"] == (
        "\n".join(f"- {limit}" for limit in facts.limits) or "Not stated by the source."
    )
    assert found["Citation"].count("\n@") == len(facts.citations)
    for line in (*entry.notes, *(f"<{address}>" for address in (*entry.urls, *facts.sources))):
        assert f"- {line}" in found["Source"]
    assert f"<{entry.page}>" in found["Source"]
    # No gap of more than a line, no template left over, no Python shown for something unknown.
    assert "\n\n\n" not in card
    for mark in ("{{", "{%", "None\n", "()", "[]"):
        assert mark not in card


def test_an_unstated_licence_is_not_invented(report: ConversionReport) -> None:
    card = render_card(report, find("elmo-original"))
    assert "| Licence of the weights | not stated by the source; ask the publisher |" in card
    assert card_data(find("elmo-original")).license == "other"


@pytest.mark.parametrize("format", FROM_PYTORCH)
def test_what_pytorch_wrote_has_its_forget_bias(format: str, report: ConversionReport) -> None:
    assert format in FORMATS
    parity = sections(render_card(dataclasses.replace(report, format=format)))["Parity"]
    assert parity.startswith("Every converted parameter equals the original bit for bit.\nThe outputs of")


def test_lemmas_are_said_in_the_card(report: ConversionReport) -> None:
    found = sections(render_card(report, find("elmo-tayga-lemmas")))
    assert found["Tokenisation of the training text"].startswith("Lemmas, not tokens")
    assert "lemmatised first" in found["Limits and biases"]


def test_bias_is_said_as_its_source_states_it(report: ConversionReport) -> None:
    found = sections(render_card(report, find("elmo-original")))
    assert "Zhao et al. (2019)" in found["Limits and biases"]
    assert "zhao2019gender" in found["Citation"]


def test_a_checkpoint_outside_the_catalog(report: ConversionReport) -> None:
    card = render_card(report)
    assert_metadata(card, {"library_name": "transformers", "pipeline_tag": "feature-extraction", "tags": ["elmo"]})
    found = sections(card)
    assert list(found) == [name for name in SECTIONS if name not in ("Published figures", "Citation")]
    assert "\n# elmo-mine\n" in card
    assert found["Training text"] == found["Limits and biases"] == "Not stated in the files."
    assert "Licence of the weights: not stated in these files." in found["Source"]
    assert "\n\n\n" not in card


def test_the_folder_holds_the_card(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    entry = dataclasses.replace(find("elmo-small"), sizes=None)
    report = convert_checkpoint(source, tmp_path / "elmo", catalog_entry=entry)
    card = (tmp_path / "elmo" / "README.md").read_text(encoding="utf-8")
    assert card == model_card(report)
    assert "\n# English ELMo, small\n" in card
    assert ModelCard.load(tmp_path / "elmo" / "README.md").data.language == ["en"]


def test_no_card_names_other_files(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(ConversionError, match=r"is not elmo-small; its sizes are others:\n.*but 1024 was published"):
        convert_checkpoint(source, tmp_path / "elmo", catalog_entry=find("elmo-small"))
    assert not (tmp_path / "elmo").exists()
    report = convert_checkpoint(source, tmp_path / "elmo", catalog_entry=find("elmo-ru-news"))
    note = "The catalog knows elmo-ru-news in the format deeppavlov-hub; these files are allennlp."
    assert note in report.notes
    assert f"- {note}\n" in (tmp_path / "elmo" / "README.md").read_text(encoding="utf-8")


class TestFacts:
    entry = find("elmo-manylangs-ja")

    def test_shared_and_own_facts_are_joined(self) -> None:
        shared, own = load_facts(find("elmo-manylangs-de")), load_facts(self.entry)
        assert own.training_text == shared.training_text
        assert own.limits[: len(shared.limits)] == shared.limits
        assert len(own.limits) > len(shared.limits)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("description: a\nlicence: mit\n", "licence is no field"),
            ("description: [a]\n", "description must be a text"),
            ("description: a\nlimits: b\n", "limits must be a list of texts"),
            ("description: a\nlimits: [1]\n", "limits must be a list of texts"),
            ("training_text: a\n", "has no description"),
            ("- a\n", "must hold the fields"),
            ("a: [\n", "cannot be read"),
        ],
    )
    def test_mistakes_are_named(self, content: str, message: str, tmp_path: Path) -> None:
        (tmp_path / "elmo-manylangs-ja.yaml").write_text(content)
        with pytest.raises(ConversionError, match=message):
            load_facts(self.entry, tmp_path)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConversionError, match=r"elmo-manylangs-ja\.yaml does not exist"):
            load_facts(self.entry, tmp_path)

    def test_unknown_is_the_default(self) -> None:
        assert Facts("a") == Facts("a", training_text=None, tokenization=None, limits=(), citations=(), sources=())

    def test_every_file_and_reference_is_used(self) -> None:
        folder = Path(load_facts.__globals__["FOLDER"])
        used = {name for entry in CATALOG.values() for name in (entry.name, entry.facts)}
        assert {path.stem for path in folder.glob("*.yaml")} <= used
        cited = {key for entry in CATALOG.values() for key in load_facts(entry).citations}
        assert set(load_references()) == cited

    def test_references_are_whole(self) -> None:
        for key, text in load_references().items():
            assert text.startswith("@")
            assert f"{{{key}," in text
            assert text.count("{") == text.count("}")
            assert {"title", "author", "year"} <= set(re.findall(r"^  (\w+) +=", text, re.MULTILINE))
