"""Stock pipelines on fine-tuned heads: the right words at the right places in every strategy, and pairs of texts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import pipeline

from hf_elmo import ElmoForSequenceClassification, ElmoForTokenClassification, ElmoPreTrainedModel, ElmoTokenizer
from tests import finetuning_session
from tests.assertions import assert_close
from tests.saved_folders import varied_model

TEXT = "Ms. Anna  Karenina-Vronsky\nlives in New York, Лондон."
WORDS = ["Ms.", "Anna", "Karenina-Vronsky", "lives", "in", "New", "York", ",", "Лондон", "."]
LABELS = {
    "BIO": ["B-PER", "I-PER", "I-PER", "O", "O", "B-LOC", "I-LOC", "O", "B-LOC", "O"],
    "BIOES": ["B-PER", "I-PER", "E-PER", "O", "O", "B-LOC", "E-LOC", "O", "S-LOC", "O"],
    # Two entities of a type beside each other.
    "BIO, touching": ["B-PER", "B-PER", "I-PER", "O", "O", "B-LOC", "B-LOC", "O", "B-LOC", "O"],
    "BIOES, touching": ["S-PER", "B-PER", "E-PER", "O", "O", "S-LOC", "S-LOC", "O", "S-LOC", "O"],
}
TOUCHING = [("PER", 0, 1), ("PER", 1, 3), ("LOC", 5, 6), ("LOC", 6, 7), ("LOC", 8, 9)]
APART = [("PER", 0, 3), ("LOC", 5, 7), ("LOC", 8, 9)]
NAMES = {
    "BIO": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "BIOES": ["O", *(f"{tag}-{kind}" for kind in ("PER", "LOC") for tag in "BIES")],
}
OTHER_TEXTS = ["Yes", "The quick brown fox can't jump over the lazy dog, Мама.", "one\ttwo"]
PAIRS = [("A man sleeps.", "Nobody is awake."), ("Yes", "No"), ("one two three", "Мама мыла раму")]
GROUPING = ("simple", "first", "average", "max")
EQUAL = 1e-5


def naming(names: list[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


def teach(model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer, text: str, labels: torch.Tensor) -> None:
    """Solves for the classifier that gives each word of one text its label by a wide margin."""
    seen = []
    hook = model.classifier.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(**tokenizer(text, return_tensors="pt"))
        hook.remove()
        (features,) = seen
        features = torch.cat([features[0, 1:-1], torch.ones(len(labels), 1)], dim=-1)
        targets = 8 * torch.nn.functional.one_hot(labels, model.config.num_labels) - 4.0
        solved = torch.linalg.lstsq(features.double(), targets.double(), driver="gelsd").solution.float()
        model.classifier.weight.copy_(solved[:-1].T)
        model.classifier.bias.copy_(solved[-1])


def save_tagger(folder: Path, setting: str, use_crf: bool, **settings: Any) -> Path:
    """A folder with a tagger that gives `TEXT` the labels of `LABELS`."""
    scheme = setting.partition(",")[0]
    names = NAMES[scheme]
    crf = {"use_crf": True, "label_scheme": scheme} if use_crf else {}
    model = varied_model(ElmoForTokenClassification, task_num_layers=0, **naming(names), **crf, **settings)
    tokenizer = ElmoTokenizer(word_splitter="treebank")
    teach(model, tokenizer, TEXT, torch.tensor([names.index(label) for label in LABELS[setting]]))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_classifier(folder: Path) -> Path:
    """A folder with a classifier of texts and pairs."""
    model = varied_model(ElmoForSequenceClassification, **naming(["no", "yes", "perhaps"]))
    model.save_pretrained(folder)
    ElmoTokenizer(word_splitter="treebank").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["softmax", "CRF"])
def use_crf(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(scope="module", params=LABELS)
def setting(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tagger(setting: str, use_crf: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tagger(tmp_path_factory.mktemp("tagger"), setting, use_crf)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"))


def word_spans(text: str, words: list[str] = WORDS) -> list[tuple[int, int]]:
    """Where each word stands in the text."""
    spans, at = [], 0
    for word in words:
        start = text.index(word, at)
        at = start + len(word)
        spans.append((start, at))
    return spans


def assert_groups(found: list[dict], text: str, groups: list[tuple[str, int, int]]) -> None:
    spans = word_spans(text)
    assert [(group["entity_group"], group["start"], group["end"]) for group in found] == [
        (kind, spans[first][0], spans[last - 1][1]) for kind, first, last in groups
    ]
    for group in found:
        assert group["word"] == text[group["start"] : group["end"]]
        assert 0.9 < group["score"] <= 1


class TestTagging:
    def test_every_word_is_found_with_its_label(self, tagger, setting):
        found = pipeline("token-classification", model=tagger, ignore_labels=[])(TEXT)
        assert [word["entity"] for word in found] == LABELS[setting]
        assert [word["word"] for word in found] == WORDS
        assert [(word["start"], word["end"]) for word in found] == word_spans(TEXT)
        assert all(0.9 < word["score"] <= 1 for word in found)

    @pytest.mark.parametrize("strategy", GROUPING)
    def test_entities_are_whole_and_as_they_were_written(self, tagger, setting, strategy):
        tag = pipeline("token-classification", model=tagger, aggregation_strategy=strategy)
        groups = TOUCHING if "touching" in setting else APART
        assert_groups(tag(TEXT), TEXT, groups)
        # Other texts beside it, and padding, change nothing.
        assert_groups(tag([*OTHER_TEXTS, TEXT], batch_size=4)[-1], TEXT, groups)

    @pytest.mark.parametrize("strategy", ["none", *GROUPING])
    def test_words_that_were_split_before_stay_whole(self, tagger, setting, strategy):
        tag = pipeline("token-classification", model=tagger, aggregation_strategy=strategy)
        joined = " ".join(WORDS)
        (alone,) = tag(WORDS, is_split_into_words=True)
        others = [["Yes"], WORDS]
        for found in (alone, *(tag(others, is_split_into_words=True, batch_size=size)[1] for size in (1, 2))):
            if strategy == "none":
                spans = word_spans(joined)
                assert [(word["start"], word["end"], word["entity"]) for word in found] == [
                    (*span, label) for span, label in zip(spans, LABELS[setting], strict=True) if label != "O"
                ]
            else:
                assert_groups(found, joined, TOUCHING if "touching" in setting else APART)

    def test_a_word_with_a_space_or_a_mark_inside_is_one_word(self, tagger):
        tag = pipeline("token-classification", model=tagger, ignore_labels=[])
        words = ["New York", "can't", "...!", "Rio de Janeiro"]
        (found,) = tag(words, is_split_into_words=True, delimiter="  ")
        assert [word["word"] for word in found] == words
        joined = "  ".join(words)
        assert [(word["start"], word["end"]) for word in found] == word_spans(joined, words)


@pytest.mark.parametrize("strategy", GROUPING)
def test_a_long_text_is_tagged_to_its_end_in_pieces(tmp_path, use_crf, strategy):
    folder = save_tagger(tmp_path, "BIO", use_crf)
    tag = pipeline("token-classification", model=folder, aggregation_strategy=strategy, ignore_labels=[], stride=2)
    tag.tokenizer.model_max_length = 7
    text = TEXT + " " + TEXT
    found = tag(text)
    assert found[0]["start"] == 0
    assert found[-1]["end"] == len(text)
    assert [group["word"] for group in found] == [text[group["start"] : group["end"]] for group in found]


def test_scores_of_a_crf_are_marginals_of_the_decoded_labels(tmp_path):
    """With weights that know nothing, so that the labels of single words and of the best sequence differ."""
    names = NAMES["BIO"]
    model = varied_model(ElmoForTokenClassification, use_crf=True, label_scheme="BIO", **naming(names))
    model.save_pretrained(tmp_path)
    tokenizer = ElmoTokenizer(word_splitter="treebank")
    tokenizer.save_pretrained(tmp_path)
    tag = pipeline("token-classification", model=tmp_path, ignore_labels=[])
    for text in (TEXT, *OTHER_TEXTS):
        found = tag(text)
        labels = [word["entity"] for word in found]
        for before, after in zip(["O", *labels], labels, strict=False):
            assert not after.startswith("I-") or before[1:] == after[1:], labels
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1]
        assert labels == [names[label] for label in logits.argmax(dim=-1).tolist()]
        assert_close([word["score"] for word in found], logits.exp().amax(dim=-1), EQUAL)


class TestPairs:
    def test_a_pair_has_the_scores_of_the_model(self, classifier):
        classify = pipeline("text-classification", model=classifier, top_k=None)
        model = ElmoForSequenceClassification.from_pretrained(classifier).eval()
        tokenizer = ElmoTokenizer.from_pretrained(classifier)
        for text, pair in PAIRS:
            found = {answer["label"]: answer["score"] for answer in classify({"text": text, "text_pair": pair})}
            with torch.no_grad():
                batch = tokenizer(text, pair, return_tensors="pt", return_token_type_ids=True)
                expected = model(**batch).logits[0].softmax(dim=-1)
            assert_close([found[name] for name in ("no", "yes", "perhaps")], expected, EQUAL)

    def test_a_batch_of_pairs_has_the_answers_of_single_pairs(self, classifier):
        classify = pipeline("text-classification", model=classifier, top_k=None)
        pairs = [{"text": text, "text_pair": pair} for text, pair in PAIRS]
        for together, alone in zip(classify(pairs, batch_size=3), map(classify, pairs), strict=True):
            assert [answer["label"] for answer in together] == [answer["label"] for answer in alone]
            assert_close([a["score"] for a in together], [a["score"] for a in alone], EQUAL)

    def test_the_order_of_the_texts_and_their_border_matter(self, classifier):
        classify = pipeline("text-classification", model=classifier, top_k=None)

        def scores(text: str, pair: str) -> list[float]:
            answers = classify({"text": text, "text_pair": pair})
            return [answer["score"] for answer in sorted(answers, key=lambda answer: answer["label"])]

        first = scores("a b c", "d e")
        assert np.abs(np.subtract(first, scores("d e", "a b c"))).max() > 1e-3
        assert np.abs(np.subtract(first, scores("a b", "c d e"))).max() > 1e-3


class TestSessions:
    """The whole of it in processes of their own: with `import hf_elmo` only, and with remote code only."""

    @pytest.fixture(scope="class")
    def inputs(self) -> dict[str, Any]:
        return {"texts": [TEXT, *OTHER_TEXTS], "words": WORDS, "pairs": PAIRS}

    @pytest.fixture(scope="class")
    def here(self, inputs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict]:
        root = tmp_path_factory.mktemp("session")
        folders = save_tagger(root / "tagger", "BIO", use_crf=True), save_classifier(root / "classifier")
        return *folders, finetuning_session.answers(*map(str, folders), inputs)

    def test_what_is_asked_in_several_ways_has_one_answer(self, here: tuple[Path, Path, dict]) -> None:
        found = here[-1]
        for strategy in finetuning_session.STRATEGIES:
            assert_same(found[f"{strategy}, in a batch"], found[strategy])
        assert_same(found["pairs, in a batch"], found["pairs"])
        assert found["pairs, split"][1] == found["pairs"][1]

    @pytest.mark.parametrize("mode", ["package", "remote"])
    def test_a_new_process_gives_the_same_answers(
        self, here: tuple[Path, Path, dict], inputs: dict[str, Any], mode: str, tmp_path: Path
    ) -> None:
        *folders, expected = here
        (tmp_path / "inputs.json").write_text(json.dumps(inputs))
        script = tmp_path / "session.py"
        script.write_text(Path(finetuning_session.__file__).read_text())
        hidden = ("HF_", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        environment |= {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
        if mode == "package":
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        process = subprocess.run(
            [sys.executable, str(script), mode, *map(str, folders), str(tmp_path / "inputs.json")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert process.returncode == 0, process.stderr[-4000:]
        found = json.loads((tmp_path / "inputs.json").read_text())
        assert found.pop("modules", []) == []
        assert_same(found, expected)


def assert_same(one: Any, other: Any) -> None:
    """Nested lists and dictionaries with the same content, numbers up to rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == (pytest.approx(other, abs=EQUAL) if isinstance(other, float) else other)
