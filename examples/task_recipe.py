"""What the two recipes share: arguments, tokenizer and model, and the run of the Trainer."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import datasets
import torch
import transformers
from datasets import Dataset, DatasetDict
from task_data import ALL_FORMATS, load_files
from transformers import (
    AutoConfig,
    AutoTokenizer,
    EarlyStoppingCallback,
    EvalPrediction,
    HfArgumentParser,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from hf_elmo import ElmoConfig, ElmoTokenizer, load_word_vectors, parameter_groups, precompute_layers
from hf_elmo.bundled import resolve_model
from hf_elmo.lexicon_elmo import WordVocabulary
from hf_elmo.pretraining.vocabulary import build_vocabulary

logger = logging.getLogger(__name__)


def explained(text: str, default: Any, **metadata: Any) -> Any:
    """A field of arguments with the help that `--help` shows."""
    metadata["help"] = text.replace("%", "%%")
    return field(default=default, metadata=metadata)


@dataclass
class ModelArguments:
    """Which ELMo, and the task network on it: [x; ELMo] -> BiLSTM -> [h; ELMo] -> classifier."""

    _argument_group_name = "model"

    model_name_or_path: str = explained(
        "A folder, a repository of the Hub, or a model in the package (elmo-tiny-english, elmo-tiny-russian).",
        "elmo-tiny-english",
    )
    word_splitter: str | None = explained(
        "How texts become words: whitespace (they are words between blanks), treebank, punctuation. Default: the "
        "model's own.",
        None,
    )
    elmo_at_input: bool = explained(
        "Give the task network a mix of ELMo's layers at its input. With this and --elmo_at_output off, what is left "
        "is the paper's baseline, which needs --task_embedding_size.",
        True,
    )
    elmo_at_output: bool = explained("Give the classifier a second mix beside the BiLSTM's output.", False)
    task_embedding_size: int | None = explained(
        "Size of the word vectors x_k beside ELMo, trained with the task, for the words of the training data.",
        None,
    )
    task_min_count: int = explained(
        "How often a word must occur in the training data for a vector x_k of its own. All others share that of "
        "<UNK>; at 2 it is trained by the words that occur once.",
        2,
    )
    word_vectors: str | None = explained(
        "Vectors that x_k starts from, for all words that have one: a text file as of GloVe or word2vec.",
        None,
    )
    task_hidden_size: int = explained("Size of the BiLSTM in each direction.", 128)
    task_num_layers: int = explained("Layers of the BiLSTM; 0 for none: straight to the classifier.", 1)
    task_dropout: float = explained("Dropout before the BiLSTM and between its layers.", 0.5)
    representation_dropout: float = explained("Dropout of the mixes of ELMo's layers.", 0.5)
    classifier_dropout: float | None = explained("Dropout before the classifier. Default: as --task_dropout.", None)
    mix_l2: float = explained("Weight of the squared scalars of the mixes in the loss (the paper: 0.001, or 1).", 0.0)
    mix_layers: list[int] | None = field(
        default=None, metadata={"help": "The layers that are mixed: 0 is the token layer, -1 the last. Default: all."}
    )
    mix_trainable: bool = explained("Learn the weights of the mixes; off: equal weights.", True)
    mix_layer_norm: bool = explained("Normalise each layer before it is mixed.", False)
    freeze_bilm: bool = explained("Keep the biLM as it is; off: fine-tune it, too.", True)
    bilm_learning_rate: float | None = explained(
        "Learning rate of the biLM where it is not frozen. Default: a tenth of --learning_rate.", None
    )
    precompute_layers: str | None = explained(
        "Folder for the layers of all splits, computed once and read in every epoch; a second run over the same data "
        "finds them there. For a frozen biLM.",
        None,
    )
    cache_dir: str | None = explained("Folder for downloads and for data sets. Default: those of the libraries.", None)

    def __post_init__(self) -> None:
        """Checks what excludes each other."""
        if not (self.elmo_at_input or self.elmo_at_output or self.task_embedding_size):
            raise ValueError("Without ELMo the task network needs word vectors: give --task_embedding_size.")
        if self.precompute_layers and not self.freeze_bilm:
            raise ValueError("Layers can be computed once for a frozen biLM only: drop --precompute_layers.")
        if self.word_vectors and not self.task_embedding_size:
            raise ValueError("--word_vectors needs --task_embedding_size, the number of values of each vector.")
        self.task_embedding_size = self.task_embedding_size or None


# The arguments that are fields of the configuration.
TASK_NETWORK = (
    "elmo_at_input",
    "elmo_at_output",
    "task_embedding_size",
    "task_hidden_size",
    "task_num_layers",
    "task_dropout",
    "representation_dropout",
    "classifier_dropout",
    "mix_l2",
    "mix_layers",
    "mix_trainable",
    "mix_layer_norm",
    "freeze_bilm",
)


@dataclass
class DataArguments:
    """The files."""

    _argument_group_name = "data"

    train_file: str | None = explained(
        f"Training data: {', '.join(ALL_FORMATS)}; packed or not (.gz, .xz, .bz2). A slice of its examples may "
        "follow: dev.conllu.xz[:-60].",
        None,
    )
    validation_file: str | None = explained("Data that chooses the best checkpoint.", None)
    test_file: str | None = explained("Data to report on.", None)
    file_format: str | None = explained(
        "The format of all files, where their endings do not say it.", None, choices=ALL_FORMATS
    )
    max_train_samples: int | None = explained("Use this many training examples only.", None)
    max_eval_samples: int | None = explained("Use this many examples of the validation data only.", None)
    max_predict_samples: int | None = explained("Use this many examples of the test data only.", None)
    shuffle_train_dataset: bool = explained("Shuffle the training data before --max_train_samples cuts it.", False)
    shuffle_seed: int = explained("The seed of this shuffling.", 42)
    preprocessing_num_workers: int | None = explained("Processes that tokenize.", None)
    max_seq_length: int | None = explained("Cut examples after this many words, boundaries included.", None)


@dataclass
class TaskTrainingArguments(TrainingArguments):
    """The arguments of Trainer, with defaults for a small network on frozen vectors."""

    _argument_group_name = "training: transformers' TrainingArguments, with other defaults"

    learning_rate: float = 1e-3
    num_train_epochs: float = 20.0
    per_device_train_batch_size: int = 32
    per_device_eval_batch_size: int = 64
    eval_strategy: str = "epoch"
    save_strategy: str = "epoch"
    logging_strategy: str = "epoch"
    load_best_model_at_end: bool = True
    save_total_limit: int | None = 1
    # Texts of about one length make a batch: little padding to compute. Lengths are read from a column.
    train_sampling_strategy: str = "group_by_length"
    remove_unused_columns: bool = False
    dataloader_pin_memory: bool = torch.cuda.is_available()
    # HfArgumentParser reads the union in this order.
    report_to: None | str | list[str] = "none"  # noqa: RUF036
    early_stopping_patience: int | None = explained(
        "Stop after this many evaluations without a better one. Default: never.", None
    )

    def __post_init__(self) -> None:
        """Without training there is nothing to save, nor to choose from."""
        if not self.do_train:
            self.eval_strategy = self.save_strategy = "no"
            self.load_best_model_at_end = False
        self.best_is_open = self.metric_for_best_model is None
        super().__post_init__()

    def choose_best_by(self, score: str) -> None:
        """Lets a score, the larger the better, choose the best checkpoint, unless the user named one."""
        if self.best_is_open and self.do_train and self.eval_strategy != "no":
            self.metric_for_best_model, self.greater_is_better = score, True


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and the description with its lines as they are."""


def parse_arguments(description: str | None, *classes: type) -> tuple[Any, ...]:
    """The arguments of the command line, or of one JSON or YAML file that is named there."""
    parser = HfArgumentParser(classes, description=description, formatter_class=HelpFormatter)
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        return parser.parse_json_file(sys.argv[1])
    if len(sys.argv) == 2 and sys.argv[1].endswith((".yaml", ".yml")):
        return parser.parse_yaml_file(sys.argv[1])
    return parser.parse_args_into_dataclasses()


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """What is wrong with arguments and files is said in one sentence, without a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        sys.exit(f"Error: {error}")


def start_logging(training_args: TrainingArguments) -> None:
    """Messages as in transformers' examples."""
    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s - %(message)s",
        datefmt="%m/%d/%Y %H:%M:%S",
        handlers=[logging.StreamHandler(sys.stdout)],
    )
    level = training_args.get_process_log_level()
    logging.getLogger().setLevel(level)
    datasets.utils.logging.set_verbosity(max(level, logging.WARNING))
    transformers.utils.logging.set_verbosity(level)


def load_splits(
    data_args: DataArguments,
    training_args: TrainingArguments,
    cache_dir: str | None,
    column_names: Sequence[str] | None = None,
) -> DatasetDict:
    """The splits of all files that are given, cut as asked.

    Raises:
        ValueError: There is nothing to do, or a file is missing or cannot be read.
    """
    files = {
        "train": (data_args.train_file, training_args.do_train, data_args.max_train_samples),
        "validation": (
            data_args.validation_file,
            training_args.do_eval or training_args.eval_strategy != "no",
            data_args.max_eval_samples,
        ),
        "test": (data_args.test_file, training_args.do_predict, data_args.max_predict_samples),
    }
    if not (training_args.do_train or training_args.do_eval or training_args.do_predict):
        raise ValueError("There is nothing to do: give --do_train, --do_eval or --do_predict.")
    for split, (name, is_needed, _) in files.items():
        if is_needed and not name:
            raise ValueError(f"Give --{split}_file.")
    splits = load_files(
        {split: name for split, (name, _, _) in files.items()}, data_args.file_format, column_names, cache_dir
    )
    if data_args.shuffle_train_dataset and "train" in splits:
        splits["train"] = splits["train"].shuffle(seed=data_args.shuffle_seed)
    for split, dataset in splits.items():
        most = files[split][2]
        if most is not None:
            splits[split] = dataset.select(range(min(most, len(dataset))))
    return splits


def check_columns(splits: DatasetDict, columns: Sequence[str]) -> None:
    """Every split has the columns.

    Raises:
        ValueError: One is missing.
    """
    for split, dataset in splits.items():
        missing = [column for column in columns if column not in dataset.column_names]
        if missing:
            raise ValueError(
                f"The {split} data has no column {missing[0]!r}, only {', '.join(dataset.column_names)}: name the "
                "columns by the options for columns."
            )


def label_numbers(config: ElmoConfig, names: Iterable[str]) -> dict[str, int]:
    """The number of each label.

    Raises:
        ValueError: The data has a label that the model does not have.
    """
    unknown = sorted(set(names) - set(config.label2id))
    if unknown:
        raise ValueError(f"The data has the label {unknown[0]!r}, which is none of the model's.")
    return dict(config.label2id)


def load_config(
    model_args: ModelArguments, tokenizer: ElmoTokenizer, label_names: Sequence[str] | None, **settings: Any
) -> ElmoConfig:
    """The model's configuration: with the settings of the task network for training, otherwise as it is.

    Args:
        model_args: The arguments.
        tokenizer: The tokenizer.
        label_names: The names of the classes, or None for a model that is trained.
        **settings: Further fields.
    """
    options: dict[str, Any] = {"cache_dir": model_args.cache_dir}
    if label_names is not None:
        own = {name: getattr(model_args, name) for name in TASK_NETWORK}
        numbers = {name: number for number, name in enumerate(label_names)}
        options.update(num_labels=len(numbers), id2label=dict(enumerate(label_names)), label2id=numbers, **own)
        options.update(settings)
        if model_args.task_embedding_size:
            options["word_vocab_size"] = len(tokenizer.word_vocabulary)
    return AutoConfig.from_pretrained(resolve_model(model_args.model_name_or_path), **options)


def load_tokenizer(model_args: ModelArguments) -> ElmoTokenizer:
    """The model's tokenizer."""
    options = {"word_splitter": model_args.word_splitter} if model_args.word_splitter else {}
    name = resolve_model(model_args.model_name_or_path)
    return AutoTokenizer.from_pretrained(name, cache_dir=model_args.cache_dir, **options)


def with_words_of(
    tokenizer: ElmoTokenizer,
    splits: DatasetDict,
    sentences_of: Callable[[Dataset], Iterable[Sequence[str]]],
    model_args: ModelArguments,
) -> ElmoTokenizer:
    """The tokenizer with the words that have vectors x_k, where the task network has such vectors.

    These are the words of the training data that occur often enough and, beside them, the words of all data for which
    `--word_vectors` has a vector.

    Args:
        tokenizer: The tokenizer.
        splits: The data.
        sentences_of: Gives the sentences of a split as lists of words.
        model_args: The arguments.
    """
    if not model_args.task_embedding_size:
        return tokenizer
    words = build_vocabulary(sentences_of(splits["train"]), min_count=model_args.task_min_count)
    if model_args.word_vectors:
        candidates = build_vocabulary(chain.from_iterable(map(sentences_of, splits.values())))
        found = load_word_vectors(model_args.word_vectors, candidates).found[1:].tolist()
        known = set(words)
        words += [word for word, has_vector in zip(candidates, found, strict=True) if has_vector and word not in known]
    name = resolve_model(model_args.model_name_or_path)
    return AutoTokenizer.from_pretrained(
        name,
        cache_dir=model_args.cache_dir,
        word_splitter=tokenizer.word_splitter,
        word_vocabulary=WordVocabulary(words),
    )


def load_model(
    model_class: Any, model_args: ModelArguments, config: ElmoConfig, tokenizer: ElmoTokenizer
) -> PreTrainedModel:
    """The model of an Auto class, with the vectors x_k of `--word_vectors`."""
    name = resolve_model(model_args.model_name_or_path)
    model = model_class.from_pretrained(name, config=config, cache_dir=model_args.cache_dir)
    if model_args.word_vectors:
        found = load_word_vectors(model_args.word_vectors, tokenizer, model)
        logger.info("%.1f%% of the words have a vector in %s.", 100 * found.coverage, model_args.word_vectors)
    return model


def with_layers(
    splits: DatasetDict,
    model: PreTrainedModel,
    tokenizer: ElmoTokenizer,
    model_args: ModelArguments,
    training_args: TrainingArguments,
) -> DatasetDict:
    """The splits with the layers of the biLM in the place of character ids, where that was asked for."""
    if not model_args.precompute_layers or not (model.config.elmo_at_input or model.config.elmo_at_output):
        return splits
    with training_args.main_process_first(desc="the layers"):
        return precompute_layers(splits, model, tokenizer, output_dir=model_args.precompute_layers)


def run_trainer(
    model: PreTrainedModel,
    tokenizer: ElmoTokenizer,
    splits: DatasetDict,
    training_args: TaskTrainingArguments,
    compute_metrics: Callable[[EvalPrediction], dict[str, float]],
    data_collator: Callable[[list[dict[str, Any]]], Any],
    bilm_learning_rate: float | None = None,
    **options: Any,
) -> Any:
    """Trains, chooses the best checkpoint, evaluates and predicts, each if asked for, and writes what came out.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        splits: `train`, `validation` and `test`, tokenized.
        training_args: The arguments of Trainer.
        compute_metrics: Scores of predictions.
        data_collator: What makes batches.
        bilm_learning_rate: That of a biLM that is not frozen.
        **options: Further arguments of Trainer.

    Returns:
        The predictions for the test data, in the process that writes them; or None.
    """
    # Trainer alone would let the mixes decay.
    if training_args.do_train and (training_args.weight_decay or not model.config.freeze_bilm):
        options["optimizers"] = (optimizer_of(model, training_args, bilm_learning_rate), None)
    if training_args.early_stopping_patience is not None:
        options["callbacks"] = [EarlyStoppingCallback(training_args.early_stopping_patience)]
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
        data_collator=lambda examples: data_collator([without_length(example) for example in examples]),
        **options,
    )
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()
        report(trainer, "train", result.metrics, splits["train"])
        trainer.save_state()
    if training_args.do_eval:
        report(trainer, "eval", trainer.evaluate(), splits["validation"])
    if not training_args.do_predict:
        return None
    # Batches of similar lengths would mix up the order of the predictions.
    training_args.train_sampling_strategy = "sequential"
    # The labels of the test data are there to be scored; no decision is taken on them.
    predicted = trainer.predict(splits["test"], metric_key_prefix="predict")
    report(trainer, "predict", predicted.metrics, splits["test"])
    return predicted.predictions if trainer.is_world_process_zero() else None


def optimizer_of(
    model: PreTrainedModel, training_args: TrainingArguments, bilm_learning_rate: float | None
) -> torch.optim.Optimizer:
    """AdamW as Trainer would set it up, but slower on the biLM than on the task network, and no decay of the mixes."""
    groups = parameter_groups(
        model.to(training_args.device), training_args.learning_rate, bilm_learning_rate, training_args.weight_decay
    )
    betas = (training_args.adam_beta1, training_args.adam_beta2)
    return torch.optim.AdamW(groups, lr=training_args.learning_rate, betas=betas, eps=training_args.adam_epsilon)


def without_length(example: dict[str, Any]) -> dict[str, Any]:
    """An example without the column that only chooses the batches."""
    return {name: value for name, value in example.items() if name != "length"}


def report(trainer: Trainer, name: str, metrics: dict[str, float], dataset: Dataset) -> None:
    """Shows the scores of a split and writes them, also into all_results.json."""
    metrics[f"{name}_samples"] = len(dataset)
    trainer.log_metrics(name, metrics)
    trainer.save_metrics(name, metrics)
