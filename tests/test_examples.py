"""What the recipes of `examples/` read, and how they measure; `test_recipes.py` runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.example_scripts import import_example, write_packed
from tests.shared_files import data_path

DATA, METRICS = import_example("task_data"), import_example("task_metrics")

CONLLU = """# sent_id = 1
# text = Don't stop
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVBP\tMood=Ind\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tstop\tstop\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tit\tit\tPRON\tPRP\t_\t_\t_\t_\t_

# sent_id = 2
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""
SRL = """# sent_id = a
1\tThey\tPRON\tPRP\t_\tB-ARG0\tB-ARG0
2\twant\tVERB\tVBP\twant.01\tB-V\tO
3\tto\tPART\tTO\t_\tB-ARG1\tO
4\tgo\tVERB\tVB\tgo.01\tI-ARG1\tB-V

# sent_id = b
1\tYes\tINTJ\tUH\t_

"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    """`load_file` with a cache of its own."""

    def load_file(path: object, *options: Any) -> Any:
        return DATA.load_file(str(path), *options, cache_dir=str(tmp_path / "cache"))

    return load_file


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_a_treebank_has_words_without_multiword_tokens_and_empty_nodes(
    tmp_path: Path, load: Callable[..., Any], packed: str
) -> None:
    dataset = load(write_packed(tmp_path / f"a.conllu{packed}", CONLLU))
    assert dataset["tokens"][:] == [["Do", "n't", "stop"], ["Yes"]]
    assert dataset["upos"][:] == [["AUX", "PART", "VERB"], ["INTJ"]]
    assert dataset["deprel"][0] == ["aux", "advmod", "root"]


def test_columns_are_split_at_tabs_or_blanks_and_hashtags_are_words(tmp_path: Path, load: Callable[..., Any]) -> None:
    content = "-DOCSTART- -X- O\n\n#ELMo NN B-product\nrocks VB O\n\n\n# \tO\nNew York\tB-location\n"
    dataset = load(write_packed(tmp_path / "a.conll", content))
    assert dataset["tokens"][:] == [["#ELMo", "rocks"], ["# ", "New York"]]
    assert dataset["tags"][:] == [["B-product", "O"], ["O", "B-location"]]


def test_a_sentence_comes_once_for_each_of_its_predicates(tmp_path: Path, load: Callable[..., Any]) -> None:
    dataset = load(write_packed(tmp_path / "a.conll.xz", SRL), "srl")
    assert dataset["tokens"][:] == [["They", "want", "to", "go"]] * 2
    assert dataset["predicate"][:] == [1, 3]
    assert dataset["roleset"][:] == ["want.01", "go.01"]
    assert dataset["tags"][1] == ["B-ARG0", "O", "O", "B-V"]


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_quotation_marks_and_null_in_tsv_are_text(tmp_path: Path, load: Callable[..., Any], packed: str) -> None:
    dataset = load(write_packed(tmp_path / f"a.tsv{packed}", '3\t" NA\n0\tnull "\n'), None, ["label", "text"])
    assert dataset[:] == {"label": [3, 0], "text": ['" NA', 'null "']}
    assert load(write_packed(tmp_path / f"a.csv{packed}", 'a,b\n"x, y",NA\n'))[:] == {"a": ["x, y"], "b": ["NA"]}
    assert load(write_packed(tmp_path / f"a.jsonl{packed}", '{"a": [1.5]}\n'))[:] == {"a": [[1.5]]}


def test_a_slice_may_follow_the_name(tmp_path: Path, load: Callable[..., Any]) -> None:
    path = write_packed(tmp_path / "a.tsv", "".join(f"{n}\tx\n" for n in range(6)))
    names = ["label", "text"]
    assert load(f"{path}[:-4]", None, names)["label"][:] == [0, 1]
    assert load(f"{path}[-4:]", None, names)["label"][:] == [2, 3, 4, 5]
    assert load(f"{path}[1:3]", None, names)["label"][:] == [1, 2]
    with pytest.raises(ValueError, match="leaves none of the 6 examples"):
        load(f"{path}[7:]", None, names)


def test_a_changed_file_is_read_again(tmp_path: Path, load: Callable[..., Any]) -> None:
    path = write_packed(tmp_path / "a.conllu", CONLLU)
    assert len(load(path)) == 2
    write_packed(path, CONLLU.split("\n\n")[0] + "\n")
    assert len(load(path)) == 1


@pytest.mark.parametrize(
    ("name", "content", "file_format", "message"),
    [
        ("a.conll", "a\tO\nb\tX\tO\n", None, r"Line 2 of .*a\.conll has 3 columns, but line 1.* has 2"),
        ("a.conll", "a\nb\n", None, r"Line 1 of .*a\.conll has one column"),
        ("a.conllu", "1\ta\tb\n", None, r"Line 1 of .*a\.conllu has 3 columns; CoNLL-U has ten"),
        ("a.conll", SRL.replace("go.01", "_"), "srl", r"line 2 of .* has 1 predicates .*, but 2 columns of labels"),
        ("a.conll", "a\tO\n", "srl", r"Line 1 of .* has 2 columns; index, word"),
        ("a.conll", "\n\n", None, r"a\.conll holds no examples"),
        ("a.words", "a", None, r"The format of .*a\.words is unknown; name it, one of csv, tsv"),
        ("a.conll.xz", None, None, r"There is no file .*a\.conll\.xz"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(
    tmp_path: Path,
    load: Callable[..., Any],
    name: str,
    content: str | None,
    file_format: str | None,
    message: str,
) -> None:
    if content is not None:
        write_packed(tmp_path / name, content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / name, file_format)


def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path: Path, load: Callable[..., Any]) -> None:
    (tmp_path / "a.conll").write_bytes(b"a\tO\n\xff\tO\n")
    with pytest.raises(ValueError, match=r"a\.conll is not valid UTF-8"):
        load(tmp_path / "a.conll")


# Counts that the descriptions of the data sets state: examples, words, and entities or arguments.
COUNTS = {
    "wnut17/train.conll": (3394, 62730, 1975),
    "wnut17/test.conll": (1287, 23394, 1079),
    "factrueval2016/train.conll": (1582, 27730, 2071),
    "factrueval2016/dev.conll": (187, 3210, 260),
    "ud_english_ewt/dev.conllu.xz": (2001, 25147, None),
    "ud_russian_gsd/dev.conllu.xz": (579, 11709, None),
    "ud_russian_gsd/dev.conllu.xz[:-60]": (519, None, None),
    "ud_russian_gsd/test.conllu.xz": (601, 11385, None),
    "up_english_ewt_srl/span/dev.conll.xz": (4915, None, 9486),
    "up_english_ewt_srl/span/test.conll.xz": (4795, None, 9321),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_counts_are_those_of_the_data_sets(load: Callable[..., Any], name: str) -> None:
    is_srl = "srl" in name
    dataset = load(data_path(*name.split("/")[:-1]) / name.split("/")[-1], "srl" if is_srl else None)
    examples, words, labelled = COUNTS[name]
    assert len(dataset) == examples
    assert words is None or sum(map(len, dataset["tokens"])) == words
    if labelled is not None:
        spans = [span for tags in dataset["tags"] for span in METRICS.spans_of(tags)]
        assert sum(span.label not in METRICS.NO_ARGUMENTS for span in spans) == labelled
    if is_srl:
        assert METRICS.semantic_role_scores(dataset["tags"], dataset["tags"])["f1"] == 1


@pytest.mark.parametrize(
    ("labels", "spans"),
    [
        ("O O", []),
        ("B-A I-A O B-A", [("A", 0, 2), ("A", 3, 4)]),
        ("B-A B-A", [("A", 0, 1), ("A", 1, 2)]),
        ("B-A I-B I-B", [("A", 0, 1), ("B", 1, 3)]),
        ("O I-A I-A", [("A", 1, 3)]),
        ("B-A O I-A", [("A", 0, 1), ("A", 2, 3)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
    ],
)
def test_spans_are_those_of_conlleval(labels: str, spans: list[tuple[str, int, int]]) -> None:
    from seqeval.metrics.sequence_labeling import get_entities

    assert METRICS.spans_of(labels.split()) == spans
    assert [(label, start, end + 1) for label, start, end in get_entities(labels.split())] == spans


@pytest.mark.parametrize(
    ("references", "predictions", "scores"),
    [
        # Two of two, and the verb counts neither where it is right nor where it is wrong.
        (["B-ARG0 B-V B-ARG1 I-ARG1"], ["B-ARG0 B-V B-ARG1 I-ARG1"], (1, 1)),
        (["B-ARG0 B-V B-ARG1 I-ARG1"], ["B-ARG0 O B-ARG1 I-ARG1"], (1, 1)),
        (["B-V O B-C-V"], ["O O O"], (0, 0)),
        # A wrong end, a wrong label.
        (["B-ARG0 B-V B-ARG1 I-ARG1"], ["B-ARG0 B-V B-ARG1 O"], (1 / 2, 1 / 2)),
        (["B-ARG0 B-V B-ARG1 I-ARG1"], ["B-ARG2 B-V B-ARG1 I-ARG1"], (1 / 2, 1 / 2)),
        # The same span in another sentence is no match; counts are summed over sentences.
        (["B-ARG0 B-V", "O B-V"], ["O B-V", "B-ARG0 B-V"], (0, 0)),
        (["B-ARG0 B-V O", "O B-V B-ARG1"], ["B-ARG0 B-V B-ARG1", "B-ARG0 B-V B-ARG1"], (2 / 4, 2 / 2)),
        # Continuations and references are labels of their own.
        (["B-ARG1 B-V B-C-ARG1 B-R-ARG1"], ["B-ARG1 B-V B-ARG1 B-R-ARG1"], (2 / 3, 2 / 3)),
    ],
)
def test_arguments_count_with_label_and_both_ends_and_predicates_do_not(
    references: list[str], predictions: list[str], scores: tuple[float, float]
) -> None:
    precision, recall = scores
    f1 = 2 * precision * recall / (precision + recall) if precision else 0
    found = METRICS.semantic_role_scores(
        [labels.split() for labels in references], [labels.split() for labels in predictions]
    )
    assert found == pytest.approx({"precision": precision, "recall": recall, "f1": f1})


def test_entities_are_scored_by_seqeval_words_and_texts_by_accuracy() -> None:
    references, predictions = [["B-PER", "I-PER", "O"], ["B-LOC"]], [["B-PER", "O", "O"], ["B-LOC"]]
    assert METRICS.entity_scores(references, predictions) == {
        "precision": 0.5,
        "recall": 0.5,
        "f1": 0.5,
        "accuracy": 0.75,
    }
    assert METRICS.class_scores(np.array([1, 2, 0]), np.array([1, 0, 0])) == {"accuracy": pytest.approx(2 / 3)}
    assert METRICS.regression_scores(np.array([1.0, 2, 3]), np.array([2.0, 4, 6])) == {
        "pearson": pytest.approx(1),
        "mse": pytest.approx(14 / 3),
    }
    assert METRICS.regression_scores(np.array([1.0, 2]), np.array([3.0, 3]))["pearson"] == 0
    several = METRICS.several_labels_scores(np.array([[1.0, 0, 1], [0, 0, 0]]), np.array([[1, 1, 1], [0, 0, 0]]))
    assert several == pytest.approx({"precision": 2 / 3, "recall": 1, "f1": 0.8})
