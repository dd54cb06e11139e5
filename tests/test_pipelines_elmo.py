"""What transformers' own pipeline tests ask of every model, asked of ELMo.

Those tests are not in its source distribution, so the statements are written down here; `test_auto_classes.py`
compares the pipelines' numbers with the model's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Pipeline, pipeline

from hf_elmo import ElmoForSequenceClassification, ElmoForTokenClassification, ElmoModel, ElmoTokenizer
from hf_elmo.pipeline_elmo import ElmoTokenClassificationPipeline
from tests.saved_folders import TEXTS, save_folder

TASKS = {
    "feature-extraction": ElmoModel,
    "text-classification": ElmoForSequenceClassification,
    "token-classification": ElmoForTokenClassification,
}
LABELS = {"id2label": {0: "O", 1: "PER", 2: "LOC"}, "label2id": {"O": 0, "PER": 1, "LOC": 2}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with a tiny model for each task."""
    root = tmp_path_factory.mktemp("pipelines")
    return {task: save_folder(root / task, model_class, **LABELS) for task, model_class in TASKS.items()}


def run(folders: dict[str, Path], task: str, **options: Any) -> Pipeline:
    if task == "token-classification":
        options = {"ignore_labels": [], **options}
    return pipeline(task, model=folders[task], **options)


def assert_same_answers(one: Any, other: Any) -> None:
    """Nested lists and dictionaries with the same content, numbers up to rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_answers(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same_answers(left, right)
    else:
        assert one == (other if isinstance(one, str) else pytest.approx(other, abs=1e-5))


@pytest.mark.parametrize("task", ["text-classification", "token-classification"])
def test_a_stream_in_batches_gives_the_answers_of_single_texts(folders, task):
    pipe = run(folders, task)

    def stream() -> Iterator[str]:
        for index in range(10):
            yield TEXTS[index % len(TEXTS)]

    # Ten texts by four: the last batch is not full.
    assert_same_answers(list(pipe(stream(), batch_size=4)), list(pipe(stream())))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_runs(folders, task, dtype):
    pipe = run(folders, task, dtype=dtype)
    assert pipe.model.dtype == dtype
    assert len(pipe(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_pipeline_answers_as_before(folders, task, tmp_path):
    pipe = run(folders, task)
    pipe.save_pretrained(tmp_path)
    again = run({task: tmp_path}, task)
    assert type(again) is type(pipe)
    assert_same_answers(again(TEXTS[0]), pipe(TEXTS[0]))


def test_tokens_are_found_with_all_that_is_said_of_them(folders):
    tag = run(folders, "token-classification")
    assert isinstance(tag, ElmoTokenClassificationPipeline)
    one = tag(TEXTS[0])
    for position, entity in enumerate(one, start=1):
        assert set(entity) == {"entity", "score", "index", "word", "start", "end"}
        assert entity["word"] == TEXTS[0][entity["start"] : entity["end"]]
        assert entity["index"] == position
        assert 0 <= entity["score"] <= 1
    assert_same_answers(tag(TEXTS), [one, *map(tag, TEXTS[1:])])
    assert_same_answers(pipeline("ner", model=folders["token-classification"], ignore_labels=[])(TEXTS[0]), one)
    with pytest.raises(ValueError, match=r"untokenized string|At least one input"):
        tag(None)


def test_words_that_are_words_are_not_warned_of(folders, recwarn):
    run(folders, "token-classification", aggregation_strategy="first")(TEXTS[0])
    assert not [warning for warning in recwarn if "real words" in str(warning.message)]


def test_labels_are_sorted_and_counted(folders):
    classify = run(folders, "text-classification")
    (best,) = classify(TEXTS[0])
    everything = classify(TEXTS[0], top_k=None)
    assert [answer["label"] for answer in classify(TEXTS)] != []
    assert {answer["label"] for answer in everything} == {"O", "PER", "LOC"}
    assert everything == sorted(everything, key=lambda answer: -answer["score"])
    assert_same_answers(everything[0], best)
    assert len(classify(TEXTS[0], top_k=2)) == 2


def test_features_are_lists_or_tensors_and_may_be_cut(folders):
    extract = run(folders, "feature-extraction")
    (rows,) = extract(TEXTS[1])
    words = ElmoTokenizer.from_pretrained(folders["feature-extraction"]).tokenize(TEXTS[1])
    assert (len(rows), len(rows[0])) == (len(words) + 2, extract.model.config.hidden_size)
    tensor = extract(TEXTS[1], return_tensors=True)
    assert isinstance(tensor, torch.Tensor)
    assert_same_answers(tensor.tolist(), [rows])
    (cut,) = extract(TEXTS[0], tokenize_kwargs={"truncation": True, "max_length": 4})
    assert len(cut) == 4
