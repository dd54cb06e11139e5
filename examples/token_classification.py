"""Fine-tune ELMo to label words: entities, parts of speech, semantic roles. A recipe on the Trainer of transformers.

    python examples/token_classification.py --task_name ner --do_train --do_eval --do_predict \\
        --train_file wnut17/train.conll --validation_file wnut17/dev.conll --test_file wnut17/test.conll \\
        --task_embedding_size 50 --use_crf --label_scheme BIO \\
        --precompute_layers layers/wnut17 --output_dir runs/wnut17
    python examples/token_classification.py arguments.json     # or .yaml: the same names as keys

Tasks and their scores: ner (F1 of entities, by seqeval), pos (accuracy), srl (F1 of the arguments of given predicates;
reads span files, which have a column for each predicate). The best checkpoint on the validation data is kept, and the
test data is labelled once, with it. In the output folder: the model, all_results.json, and predictions.txt (a line an
example). `examples/task_data.py` describes the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import DatasetDict
from task_metrics import TOKEN_METRICS
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
    AutoModelForTokenClassification,
    BatchEncoding,
    DataCollatorForTokenClassification,
    EvalPrediction,
    set_seed,
)

from hf_elmo import ElmoTokenizer

NO_LABEL = -100


@dataclass
class TokenModelArguments(ModelArguments):
    """The model's arguments, and those of the classifier of words."""

    use_crf: bool = explained("Choose the labels of a sentence together, by a linear-chain CRF.", False)
    label_scheme: str | None = explained(
        "With --use_crf: allow only sequences of labels of this scheme.", None, choices=("BIO", "BIOES")
    )


@dataclass
class TokenDataArguments(DataArguments):
    """The files, and what is in them."""

    task_name: str = explained(
        "ner, pos or srl: how the labels are scored, and, for srl, that the predicate is marked.",
        "ner",
        choices=tuple(TOKEN_METRICS),
    )
    text_column_name: str = explained("The column of the words.", "tokens")
    label_column_name: str | None = explained("The column of the labels. Default: tags, or upos.", None)

    def __post_init__(self) -> None:
        """The span files cannot be told by their ending."""
        if self.task_name == "srl" and self.file_format is None:
            self.file_format = "srl"


def choose_label_column(data_args: TokenDataArguments, splits: DatasetDict) -> str:
    """The column of the labels.

    Raises:
        ValueError: A split lacks a column.
    """
    columns = next(iter(splits.values())).column_names
    name = data_args.label_column_name or ("upos" if "upos" in columns else "tags")
    predicate = ["predicate"] if data_args.task_name == "srl" else []
    check_columns(splits, [data_args.text_column_name, name, *predicate])
    return name


def labels_of(splits: DatasetDict, column: str) -> list[str]:
    """All labels. One that only other splits than the training data have is there to be missed."""
    return sorted({label for dataset in splits.values() for labels in dataset[column] for label in labels})


def tokenize(
    splits: DatasetDict,
    tokenizer: ElmoTokenizer,
    data_args: TokenDataArguments,
    label_column: str,
    label_to_id: dict[str, int],
) -> DatasetDict:
    """Words and labels as the model takes them."""

    def tokenize_and_align_labels(examples: dict[str, list[Any]]) -> BatchEncoding:
        tokenized_inputs = tokenizer(
            examples[data_args.text_column_name],
            truncation=data_args.max_seq_length is not None,
            max_length=data_args.max_seq_length,
            return_length=True,
            is_split_into_words=True,
        )
        labels, predicate_marks = [], []
        for i, label in enumerate(examples[label_column]):
            word_ids = tokenized_inputs.word_ids(batch_index=i)
            labels.append([-100 if word is None else label_to_id[label[word]] for word in word_ids])
            if data_args.task_name == "srl":
                predicate_marks.append([int(word == examples["predicate"][i]) for word in word_ids])
        tokenized_inputs["labels"] = labels
        if predicate_marks:
            tokenized_inputs["token_type_ids"] = predicate_marks
        return tokenized_inputs

    return splits.map(
        tokenize_and_align_labels,
        batched=True,
        num_proc=data_args.preprocessing_num_workers,
        remove_columns=next(iter(splits.values())).column_names,
        desc="Tokenizing",
    )


def counted_labels(
    predictions: np.ndarray, references: np.ndarray, names: dict[int, str]
) -> tuple[list[list[str]], list[list[str]]]:
    """The names of the predicted labels and of the right ones, boundaries and padding left out.

    Args:
        predictions: Numbers of labels, shape (examples, words).
        references: The right ones, -100 where there is none, shape (examples, words).
        names: The names of the labels.
    """
    counted = references != NO_LABEL
    found, wanted = (
        [[names[number] for number in row[kept].tolist()] for row, kept in zip(numbers, counted, strict=True)]
        for numbers in (predictions, references)
    )
    return found, wanted


def main() -> None:
    """Trains, evaluates and predicts."""
    with plain_errors():
        model_args, data_args, training_args = parse_arguments(
            __doc__, TokenModelArguments, TokenDataArguments, TaskTrainingArguments
        )
        start_logging(training_args)
        set_seed(training_args.seed)
        metric = TOKEN_METRICS[data_args.task_name]
        training_args.choose_best_by(metric.best)

        splits = load_splits(data_args, training_args, model_args.cache_dir)
        label_column = choose_label_column(data_args, splits)
        label_names = labels_of(splits, label_column)
        tokenizer = load_tokenizer(model_args)
        if training_args.do_train:
            tokenizer = with_words_of(
                tokenizer, splits, lambda dataset: dataset[data_args.text_column_name], model_args
            )
        config = load_config(
            model_args,
            tokenizer,
            label_names if training_args.do_train else None,
            use_crf=model_args.use_crf,
            label_scheme=model_args.label_scheme,
            use_predicate_indicator=data_args.task_name == "srl",
        )
        label_to_id = label_numbers(config, label_names)
        model = load_model(AutoModelForTokenClassification, model_args, config, tokenizer)
        splits = tokenize(splits, tokenizer, data_args, label_column, label_to_id)
        splits = with_layers(splits, model, tokenizer, model_args, training_args)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        found, wanted = counted_labels(prediction.predictions, prediction.label_ids, config.id2label)
        return metric.scores(wanted, found)

    def choose_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.argmax(dim=-1)

    predictions = run_trainer(
        model,
        tokenizer,
        splits,
        training_args,
        compute_metrics,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        bilm_learning_rate=model_args.bilm_learning_rate,
        preprocess_logits_for_metrics=choose_labels,
    )
    if predictions is not None:
        rows = (
            [config.id2label[number] for number, label in zip(row.tolist(), labels, strict=False) if label != NO_LABEL]
            for row, labels in zip(predictions, splits["test"]["labels"], strict=True)
        )
        path = Path(training_args.output_dir, "predictions.txt")
        path.write_text("".join(f"{' '.join(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
