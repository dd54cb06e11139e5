"""The catalog: every public checkpoint, only what its source states, found by name and by language."""

import dataclasses
import json
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

from hf_elmo.cli import app
from hf_elmo.conversion import ConversionError
from hf_elmo.conversion.catalog import CATALOG, CatalogEntry, by_language, find
from hf_elmo.conversion.facts import load_facts
from hf_elmo.conversion.formats import FORMATS
from hf_elmo.conversion.listing import record
from hf_elmo.word_splitters_elmo import WORD_PATTERNS

ALLENNLP = "https://s3-us-west-2.amazonaws.com/allennlp/models/elmo"
DEEPPAVLOV = "http://files.deeppavlov.ai/deeppavlov_data"

# The order in which ELMoForManyLangs lists its languages; the archives are numbered from 136.
MANY_CODES = (
    "ar bg ca cs cu da de el en es et eu fa fi fr ga gl grc he hi hr hu id it ja ko la lv nl nb nn pl pt ro ru sk sl "
    "sv tr ug uk ur vi zh"
)
MANY = MANY_CODES.split()

NAMES = {
    "elmo-small",
    "elmo-medium",
    "elmo-original",
    "elmo-original-5.5b",
    "elmo-original-lm",
    "elmo-google-hub",
    "elmo-pubmed",
    "bioelmo",
    "elmo-ru-wiki",
    "elmo-ru-news",
    "elmo-ru-twitter",
    *(f"elmo-ru-{text}-lm{simple}" for text in ("wiki", "news", "twitter") for simple in ("", "-simple")),
    "elmo-ru-news-lm-simple-reduced",
    "elmo-ruwikiruscorpora-tokens",
    "elmo-tayga-lemmas",
    "elmo-no-wiki-lemmas",
    "elmo-no-wiki-tokens",
    "elmo-norelmo30",
    "elmo-norelmo100",
    "elmo-portuguese-wikipedia",
    "elmo-portuguese-brwac",
    "elmo-japanese",
    "elmo-german-wikipedia",
    "elmo-basque",
    "seqvec",
    *(f"elmo-embeddia-{code}" for code in ("hr", "et", "fi", "lv", "lt", "sl", "sv")),
    *(f"elmo-crosslingual-{code}" for code in ("en", "es", "fr", "it", "pt", "sv", "de")),
    *(f"elmo-manylangs-{code}" for code in MANY),
}

entries = pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG.keys())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["catalog", *arguments], env={"COLUMNS": "250"})


def assert_prints(*arguments: str) -> str:
    """Runs hf-elmo catalog, checks that it succeeds and returns what it prints."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_public_checkpoint_has_a_name() -> None:
    assert set(CATALOG) == NAMES


@entries
def test_records_are_fit_for_use(entry: CatalogEntry) -> None:
    assert CATALOG[entry.name] is entry
    assert entry.format in FORMATS
    assert entry.word_splitter in WORD_PATTERNS
    assert entry.title
    assert entry.publisher
    for url in (entry.page, *entry.urls):
        assert urlsplit(url).scheme in ("http", "https")
        assert urlsplit(url).netloc
    names = [url.rsplit("/", 1)[1] for url in entry.urls]
    assert all(names)
    assert len(set(names)) == len(names)
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.name = "other"  # type: ignore[misc]


@entries
def test_facts_name_their_sources(entry: CatalogEntry) -> None:
    facts = load_facts(entry)
    assert facts.sources
    assert facts.citations


def test_no_two_records_share_a_file() -> None:
    urls = [url for entry in CATALOG.values() for url in entry.urls]
    assert len(set(urls)) == len(urls)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("elmo-small", "2x1024_128_2048cnn_1xhighway"),
        ("elmo-medium", "2x2048_256_2048cnn_1xhighway"),
        ("elmo-original", "2x4096_512_2048cnn_2xhighway"),
        ("elmo-original-5.5b", "2x4096_512_2048cnn_2xhighway_5.5B"),
    ],
)
def test_allennlp(name: str, stem: str) -> None:
    entry = find(name)
    assert entry.urls == (f"{ALLENNLP}/{stem}/elmo_{stem}_options.json", f"{ALLENNLP}/{stem}/elmo_{stem}_weights.hdf5")
    assert (entry.languages, entry.word_splitter, entry.licence) == (("en",), "treebank", None)
    assert entry.sizes is not None
    assert f"2x{entry.sizes.cell_size}_{entry.sizes.projection_size}_" in stem
    assert f"{entry.sizes.num_highway_layers}xhighway" in stem


@pytest.mark.parametrize(
    ("name", "archive", "perplexity", "tokens"),
    [
        ("elmo-ru-wiki", "elmo_ru-wiki_600k_steps", "43.692", "386"),
        ("elmo-ru-news", "elmo_ru-news_wmt11-16_1.5M_steps", "49.876", "946"),
        ("elmo-ru-twitter", "elmo_ru-twitter_2013-01_2018-04_600k_steps", "94.145", "810"),
    ],
)
def test_deeppavlov(name: str, archive: str, perplexity: str, tokens: str) -> None:
    entry = find(name)
    assert entry.urls == (f"{DEEPPAVLOV}/{archive}.tar.gz",)
    assert entry.figures == (("Perplexity", perplexity),)
    assert entry.licence == "apache-2.0"
    assert f"{tokens} million tokens" in str(load_facts(entry).training_text)
    assert find(f"{name}-lm-simple").urls[0].endswith(f"tuning-{name.removeprefix('elmo-')}-simple.tar.gz")
    assert load_facts(find(f"{name}-lm")).training_text == load_facts(entry).training_text


@pytest.mark.parametrize(("number", "code"), list(enumerate(MANY, start=136)))
def test_many_languages_in_the_order_of_their_numbers(number: int, code: str) -> None:
    entry = find(f"elmo-manylangs-{code}")
    assert entry.urls == (f"http://vectors.nlpl.eu/repository/11/{number}.zip",)
    assert entry.languages == (code,)
    assert entry.licence is None


@pytest.mark.parametrize(
    ("number", "language"),
    [
        (136, "Arabic"),
        (140, "Old Church Slavonic"),
        (153, "Ancient Greek"),
        (164, "Dutch"),
        (165, "Norwegian Bokmål"),
        (166, "Norwegian Nynorsk"),
        (170, "Russian"),
        (179, "Chinese"),
    ],
)
def test_numbers_that_were_looked_up(number: int, language: str) -> None:
    (entry,) = (entry for entry in CATALOG.values() if entry.urls and entry.urls[0].endswith(f"/11/{number}.zip"))
    assert entry.title.startswith(f"{language} ELMo")


def test_lemmas_and_residues_are_said() -> None:
    for name in ("elmo-tayga-lemmas", "elmo-no-wiki-lemmas"):
        facts = load_facts(find(name))
        assert "lemmas" in str(facts.tokenization).lower()
        assert any("lemmatised first" in limit for limit in facts.limits)
    assert "One residue is one word" in str(load_facts(find("seqvec")).tokenization)
    assert find("seqvec").languages == ()


def test_addresses_that_were_put_together_are_marked() -> None:
    for name in ("elmo-no-wiki-lemmas", "elmo-no-wiki-tokens", "elmo-norelmo30", "elmo-norelmo100"):
        assert any("not been tried" in note for note in find(name).notes)


@pytest.mark.parametrize("name", ["bioelmo", "elmo-german-wikipedia", "elmo-embeddia-sl", "elmo-crosslingual-de"])
def test_no_address_is_invented(name: str) -> None:
    assert find(name).urls == ()
    assert find(name).page


def test_an_unknown_name_lists_near_ones() -> None:
    with pytest.raises(ConversionError, match=r"no checkpoint 'elmo-orginal'; the nearest are .*elmo-original"):
        find("elmo-orginal")
    with pytest.raises(ConversionError, match="the nearest are elmo-ru-twitter, elmo-ru-twitter-lm"):
        find("Twitter")
    with pytest.raises(ConversionError, match="`hf-elmo catalog` lists all"):
        find("0")


def test_by_language() -> None:
    assert {entry.name for entry in by_language("eu")} == {"elmo-basque", "elmo-manylangs-eu"}
    assert len(by_language("ru")) == 13
    assert by_language("RU") == by_language("ru")
    with pytest.raises(ConversionError, match=r"nothing in the language 'xx'; it has ar, .*, zh\."):
        by_language("xx")


def test_command_lists() -> None:
    text = assert_prints()
    assert [line.split()[0] for line in text.splitlines()[1:]] == list(CATALOG)
    text = assert_prints("--language", "pt")
    assert "elmo-portuguese-brwac" in text
    assert "elmo-original" not in text
    assert "not stated" in text


def test_command_shows_one_with_what_is_unknown() -> None:
    text = assert_prints("elmo-google-hub")
    assert "https://www.tensorflow.org/hub/modules/google/elmo/2" in text
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "no direct address known; see the page" in lines["urls"]
    assert "read from the files" in lines["sizes"]
    for field in ("licence", "training text", "tokenization", "limits"):
        assert "not stated by the source" in lines[field]


def test_a_page_that_was_not_read_is_not_said_to_state_nothing() -> None:
    facts = load_facts(find("elmo-embeddia-sl"))
    assert "not repeated here" in str(facts.training_text)
    assert any("may state a licence" in note for note in find("elmo-embeddia-sl").notes)


def test_a_pipe_cuts_no_line() -> None:
    entry = find("elmo-original-lm")
    table, shown = (
        CliRunner().invoke(app, ["catalog", *arguments], env={"COLUMNS": None}).stdout
        for arguments in ([], [entry.name])
    )
    assert entry.title in table
    assert all(url in shown for url in entry.urls)


def test_command_prints_json() -> None:
    shown = json.loads(assert_prints("elmo-ru-news", "--json"))
    assert shown == json.loads(json.dumps(record(find("elmo-ru-news"))))
    assert shown["figures"] == {"Perplexity": "49.876"}
    assert shown["tokenization"] is None
    assert [entry["name"] for entry in json.loads(assert_prints("--json"))] == list(CATALOG)
    assert [entry["name"] for entry in json.loads(assert_prints("--language", "ja", "--json"))] == [
        "elmo-japanese",
        "elmo-manylangs-ja",
    ]


@pytest.mark.parametrize("arguments", [["elmo-nothing"], ["--language", "xx"]])
def test_command_says_what_there_is_not(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: The catalog has no")
    assert "Traceback" not in result.output


def test_command_takes_a_name_or_a_language() -> None:
    result = run("elmo-ru-news", "--language", "ru")
    assert result.exit_code == 1
    assert "give it or a name, not both" in result.stderr
