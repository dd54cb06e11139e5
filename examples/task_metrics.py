"""What the two recipes measure, from lists of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Labels = Sequence[Sequence[str]]

# The predicate itself, which is given, and the rest of one in two parts ("take ... off").
NO_ARGUMENTS = ("V", "C-V")


class Span(NamedTuple):
    """A labelled run of words; `end` is the first word behind it."""

    label: str
    start: int
    end: int


def spans_of(labels: Sequence[str]) -> list[Span]:
    """The spans of a sentence's BIO labels. As in conlleval, an I- that goes on no span of its label begins one."""
    spans: list[Span] = []
    for place, tag in enumerate(labels):
        prefix, _, label = tag.partition("-")
        if prefix == "O":
            continue
        if prefix == "I" and spans and spans[-1].end == place and spans[-1].label == label:
            spans[-1] = spans[-1]._replace(end=place + 1)
        else:
            spans.append(Span(label, place, place + 1))
    return spans


def ratios(correct: int, predicted: int, true: int) -> dict[str, float]:
    """Precision, recall and F1, 0 where they are not defined."""
    precision = correct / predicted if predicted else 0.0
    recall = correct / true if true else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


def semantic_role_scores(references: Labels, predictions: Labels) -> dict[str, float]:
    """Precision, recall and F1 of arguments: a span is right when its label and both its ends are.

    As in CoNLL-2005 the predicate does not count. Unlike in its script a continuation (`C-ARG1`) is a span of its own,
    not a part of the argument that it goes on with.

    Args:
        references: The BIO labels of each predicate's sentence.
        predictions: The predicted ones.
    """
    correct = predicted = true = 0
    for reference, prediction in zip(references, predictions, strict=True):
        wanted, found = (
            {span for span in spans_of(labels) if span.label not in NO_ARGUMENTS} for labels in (reference, prediction)
        )
        correct += len(wanted & found)
        predicted += len(found)
        true += len(wanted)
    return ratios(correct, predicted, true)


def entity_scores(references: Labels, predictions: Labels) -> dict[str, float]:
    """Precision, recall and F1 of entities, and the accuracy of the labels, by seqeval (as conlleval).

    Raises:
        ValueError: seqeval is not installed.
    """
    try:
        from seqeval import metrics
    except ImportError as error:
        raise ValueError("Entities are scored by seqeval: pip install 'hf-elmo[examples]'.") from error
    scores = {
        name: getattr(metrics, f"{name}_score")(references, predictions, zero_division=0)
        for name in ("precision", "recall", "f1")
    }
    return {**{name: float(score) for name, score in scores.items()}, **tagging_scores(references, predictions)}


def tagging_scores(references: Labels, predictions: Labels) -> dict[str, float]:
    """The part of the words with the right label."""
    pairs = [
        wanted == found
        for reference, prediction in zip(references, predictions, strict=True)
        for wanted, found in zip(reference, prediction, strict=True)
    ]
    return {"accuracy": sum(pairs) / len(pairs)}


class Metric(NamedTuple):
    """How the labels of words are scored, and which of the scores chooses the best model."""

    scores: Callable[[Labels, Labels], dict[str, float]]
    best: str


TOKEN_METRICS = {
    "ner": Metric(entity_scores, "f1"),
    "pos": Metric(tagging_scores, "accuracy"),
    "srl": Metric(semantic_role_scores, "f1"),
}


def class_scores(references: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """The part of the texts with the right class; both of shape (texts,)."""
    return {"accuracy": float((references == predictions).mean())}


def regression_scores(references: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Pearson's correlation (0 where one side is constant) and the mean squared error; both of shape (texts,)."""
    varied = min(references.std(), predictions.std()) > 0
    pearson = float(np.corrcoef(references, predictions)[0, 1]) if varied else 0.0
    return {"pearson": pearson, "mse": float(((references - predictions) ** 2).mean())}


def several_labels_scores(references: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Precision, recall and F1 over all decisions (micro); both 0 or 1, of shape (texts, labels)."""
    references, predictions = references > 0, predictions > 0
    return ratios(int((references & predictions).sum()), int(predictions.sum()), int(references.sum()))
