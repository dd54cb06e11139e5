"""Fine-tune ELMo to classify texts or pairs of texts. A recipe on the Trainer of transformers.

    python examples/text_classification.py --do_train --do_eval --do_predict \\
        --train_file sst5/train.tsv --validation_file sst5/dev.tsv --test_file sst5/test.tsv \\
        --column_names label,sentence --word_splitter whitespace \\
        --task_embedding_size 50 --precompute_layers layers/sst5 --output_dir runs/sst5
    python examples/text_classification.py arguments.json     # or .yaml: the same names as keys

Pairs: --text_column_names sentence_A,sentence_B. Labels with a decimal point make a regression (Pearson's r), lists
of labels make several labels a text (F1); all others are classes (accuracy). The best checkpoint on the validation
data is kept, and the test data is classified once, with it. In the output folder: the model, all_results.json, and
predictions.txt (a line an example). `examples/task_data.py` describes the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from datasets.features import List, Value
from task_metrics import class_scores, regression_scores, several_labels_scores
from task_recipe import (
    DataArguments,
    ModelArguments,
    TaskTrainingArguments,
    check_columns,
    explained,
    label_numbers,
    load_config,
    load_model,
    load_splits,
    load_tokenizer,
    parse_arguments,
    plain_errors,
    run_trainer,
    start_logging,
    with_layers,
    with_words_of,
)
from transformers import (
    AutoModelForSequenceClassification,
    BatchEncoding,
    DataCollatorWithPadding,
    EvalPrediction,
    set_seed,
)

from hf_elmo import ElmoTokenizer


@dataclass
class TextModelArguments(ModelArguments):
    """The model's arguments, and those of the classifier of texts."""

    classifier_pooling: str = explained(
        "How the words of a text become one vector.", "max", choices=("mean", "max", "last", "biattentive")
    )


@dataclass
class TextDataArguments(DataArguments):
    """The files, and what is in them."""

    text_column_names: str | None = explained(
        "The column of the text, or two, separated by a comma. Default: sentence or text.", None
    )
    label_column_name: str = explained("The column of the label.", "label")
    column_names: str | None = explained("The columns of CSV and TSV files without a header: label,sentence.", None)


class Problem(NamedTuple):
    """What kind of labels there are.

    Attributes:
        problem_type: As in the configuration.
        scores: What is measured, from arrays of right and of predicted labels.
        best: The score that chooses the best model, by being large.
    """

    problem_type: str
    scores: Callable[[np.ndarray, np.ndarray], dict[str, float]]
    best: str


CLASSES = Problem("single_label_classification", class_scores, "accuracy")
SEVERAL_LABELS = Problem("multi_label_classification", several_labels_scores, "f1")
REGRESSION = Problem("regression", regression_scores, "pearson")


def problem_of(dataset: Dataset, label_column: str) -> Problem:
    """What the type of the labels says."""
    feature = dataset.features[label_column]
    if isinstance(feature, List):
        return SEVERAL_LABELS
    if isinstance(feature, Value) and feature.dtype.startswith("float"):
        return REGRESSION
    return CLASSES


def label_names(splits: DatasetDict, column: str, problem: Problem) -> list[str]:
    """The names of all labels, numbers in their order. One that only other splits have is there to be missed."""
    if problem is REGRESSION:
        return ["score"]
    labels: set[Any] = set()
    for dataset in splits.values():
        labels.update(dataset[column] if problem is CLASSES else chain.from_iterable(dataset[column]))
    return [str(label) for label in sorted(labels)]


def choose_text_columns(data_args: TextDataArguments, splits: DatasetDict) -> list[str]:
    """The columns of the texts, one or two.

    Raises:
        ValueError: A split lacks a column, or there are three.
    """
    columns = next(iter(splits.values())).column_names
    names = (data_args.text_column_names or ("sentence" if "sentence" in columns else "text")).split(",")
    if len(names) > 2:
        raise ValueError(f"--text_column_names names {len(names)} columns: a text, or a pair of texts, is classified.")
    check_columns(splits, [*names, data_args.label_column_name])
    return names


def tokenize(
    splits: DatasetDict,
    tokenizer: ElmoTokenizer,
    data_args: TextDataArguments,
    text_columns: list[str],
    problem: Problem,
    label_to_id: dict[str, int],
) -> DatasetDict:
    """Texts and labels as the model takes them."""

    def number_of(label: Any) -> Any:
        if problem is CLASSES:
            return label_to_id[str(label)]
        if problem is REGRESSION:
            return label
        found = {label_to_id[str(name)] for name in label}
        return [float(number in found) for number in range(len(label_to_id))]

    def preprocess(examples: dict[str, list[Any]]) -> BatchEncoding:
        result = tokenizer(
            *(examples[name] for name in text_columns),
            truncation=data_args.max_seq_length is not None,
            max_length=data_args.max_seq_length,
            return_length=True,
            return_token_type_ids=len(text_columns) == 2,
        )
        result["labels"] = [number_of(label) for label in examples[data_args.label_column_name]]
        return result

    return splits.map(
        preprocess,
        batched=True,
        num_proc=data_args.preprocessing_num_workers,
        remove_columns=next(iter(splits.values())).column_names,
        desc="Tokenizing",
    )


def main() -> None:
    """Trains, evaluates and predicts."""
    with plain_errors():
        model_args, data_args, training_args = parse_arguments(
            __doc__, TextModelArguments, TextDataArguments, TaskTrainingArguments
        )
        start_logging(training_args)
        set_seed(training_args.seed)
        column_names = data_args.column_names.split(",") if data_args.column_names else None
        splits = load_splits(data_args, training_args, model_args.cache_dir, column_names)
        text_columns = choose_text_columns(data_args, splits)
        problem = problem_of(next(iter(splits.values())), data_args.label_column_name)
        training_args.choose_best_by(problem.best)

        names = label_names(splits, data_args.label_column_name, problem)
        tokenizer = load_tokenizer(model_args)
        if training_args.do_train:

            def sentences_of(dataset: Dataset) -> Iterator[list[str]]:
                texts = chain.from_iterable(dataset[name] for name in text_columns)
                return map(splitter.tokenize, texts)

            splitter = tokenizer
            tokenizer = with_words_of(tokenizer, splits, sentences_of, model_args)
        config = load_config(
            model_args,
            tokenizer,
            names if training_args.do_train else None,
            problem_type=problem.problem_type,
            classifier_pooling=model_args.classifier_pooling,
        )
        label_to_id = label_numbers(config, names)
        model = load_model(AutoModelForSequenceClassification, model_args, config, tokenizer)
        splits = tokenize(splits, tokenizer, data_args, text_columns, problem, label_to_id)
        splits = with_layers(splits, model, tokenizer, model_args, training_args)

    def decide(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if problem is CLASSES:
            return logits.argmax(dim=-1)
        return logits.squeeze(-1) if problem is REGRESSION else (logits > 0).long()

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        return problem.scores(prediction.label_ids, prediction.predictions)

    predictions = run_trainer(
        model,
        tokenizer,
        splits,
        training_args,
        compute_metrics,
        data_collator=DataCollatorWithPadding(tokenizer),
        bilm_learning_rate=model_args.bilm_learning_rate,
        preprocess_logits_for_metrics=decide,
    )
    if predictions is not None:
        path = Path(training_args.output_dir, "predictions.txt")
        path.write_text("".join(f"{shown(row, problem, config.id2label)}\n" for row in predictions), encoding="utf-8")


def shown(prediction: Any, problem: Problem, names: dict[int, str]) -> str:
    """A prediction as a line of text."""
    if problem is REGRESSION:
        return f"{prediction:.4f}"
    if problem is CLASSES:
        return names[int(prediction)]
    return " ".join(names[number] for number, is_on in enumerate(prediction.tolist()) if is_on)


if __name__ == "__main__":
    main()
