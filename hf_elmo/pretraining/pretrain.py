"""Training a biLM from text: vocabulary, model, batches and trainer put together, and gone on with after a stop."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import set_seed

from ..configuration_elmo import SIZES, ElmoConfig
from ..language_model_elmo import ElmoForPreTraining
from ..lexicon_elmo import WordVocabulary
from ..tokenization_elmo import ElmoTokenizer
from .arguments import ElmoPreTrainingArguments
from .checkpoints import TRAINER_STATE, UNFINISHED, last_checkpoint, sync_folder, write_through
from .choices import TrainingChoices
from .corpus import Corpus, TextFile
from .processes import in_first_process
from .runs import fingerprint, open_run
from .sentences import SentenceBatches
from .streams import StreamBatches
from .survey import begin_run
from .trainer import ElmoPreTrainer, TrainingBatches
from .vocabulary import build_vocabulary, check_vocabulary, read_vocabulary

# The size of the models in `hf_elmo/models`: 1.3 million parameters with 5,000 words, 2.6 MB in half precision.
TINY: dict[str, Any] = {
    "character_embedding_size": 16,
    "filters": [[1, 16], [2, 16], [3, 32], [4, 64], [5, 64]],
    "num_highway_layers": 1,
    "projection_size": 64,
    "cell_size": 384,
}
SIZE_NAMES = ("tiny", *SIZES)


@dataclass(frozen=True)
class PretrainingReport:
    """What a run did.

    Attributes:
        output: The folder with the trained model.
        steps: Steps done in all, before an interruption too.
        resumed_from: The checkpoint that the run went on from, or None.
        perplexity: On the validation text at the end, or None where there is none.
    """

    output: Path
    steps: int
    resumed_from: Path | None
    perplexity: float | None

    def summary(self) -> str:
        """A sentence or two for people."""
        lines = [f"The trained model is in {self.output} ({self.steps:,} steps)."]
        if self.perplexity is not None:
            lines.append(f"Perplexity of the validation text: {self.perplexity:.2f}.")
        return " ".join(lines)


def read_config(name: str, num_words: int, **overrides: Any) -> ElmoConfig:
    """The architecture to train.

    Args:
        name: `tiny`, `small`, `medium`, `original`, or the path of a config.json of this package or of an
            options.json of bilm-tf.
        num_words: Words of the vocabulary.
        **overrides: Fields of the configuration.

    Raises:
        ValueError: The name is unknown, or the file holds no architecture.
    """
    fields = {**architecture(name), "word_vocab_size": num_words, "freeze_bilm": False, **overrides}
    try:
        return ElmoConfig.from_dict(fields)
    except StrictDataclassError as error:
        raise ValueError(f"The configuration cannot be used: {str(error).splitlines()[-1].strip()}") from error


def architecture(name: str) -> dict[str, Any]:
    """The fields of a configuration, by the name of a size or of a file.

    Raises:
        ValueError: The name is unknown, or the file holds no architecture.
    """
    if name == "tiny":
        return TINY
    if name in SIZES:
        return dict(SIZES[name])
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"--config must be one of {', '.join(SIZE_NAMES)}, or a file; there is no file {name}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"The configuration {path} is no JSON: {error}") from error
    if isinstance(content, dict) and "char_cnn" in content:
        from ..conversion.options import parse_options

        return parse_options(content, str(path)).fields
    if not isinstance(content, dict) or content.get("model_type", ElmoConfig.model_type) != ElmoConfig.model_type:
        raise ValueError(f"The configuration {path} is none of ELMo's.")
    return content


def parse_fields(assignments: Sequence[str]) -> dict[str, Any]:
    """Fields of the configuration from `FIELD=VALUE`, the value as JSON or a plain string.

    Raises:
        ValueError: There is no such field.
    """
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or name not in ElmoConfig.__dataclass_fields__:
            raise ValueError(f"--set takes FIELD=VALUE with a field of ElmoConfig, but was given {assignment!r}.")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def pretrain(
    train: Sequence[str],
    output: Path,
    *,
    valid: Sequence[str] = (),
    config: str = "small",
    settings: Mapping[str, Any] | None = None,
    vocabulary: Path | None = None,
    vocabulary_size: int | None = None,
    minimum_count: int = 1,
    word_splitter: str = "whitespace",
    choices: TrainingChoices | None = None,
    tell: Callable[[str], None] = print,
) -> PretrainingReport:
    """Trains a biLM from text, or goes on with a run that was interrupted.

    Args:
        train: Files of training text (plain, .gz, .xz), folders and patterns.
        output: The folder of the run: its checkpoints, and in the end the model.
        valid: Files of validation text.
        config: `tiny`, `small`, `medium`, `original`, or a file; see `read_config`.
        settings: Fields of the configuration that differ.
        vocabulary: A vocabulary file; by default the vocabulary is built from the training text.
        vocabulary_size: How many words it may have.
        minimum_count: How often a word must occur to be in it.
        word_splitter: How a line of text becomes words: `whitespace`, `treebank` or `punctuation`.
        choices: How to train.
        tell: What to do with a line about what is going on.

    Raises:
        ValueError: An option, a file or the folder cannot be used as it is.
        OSError: A file cannot be read or written.
    """
    choices = choices or TrainingChoices()
    corpus = Corpus(list(train), word_splitter=word_splitter)
    valid_corpus = Corpus(list(valid), word_splitter=word_splitter) if valid else None
    given_words = None if vocabulary is None else read_vocabulary(vocabulary)
    read_config(config, len(given_words) if given_words else vocabulary_size or 2, **(settings or {}))
    identity = {
        "config": config if config in SIZE_NAMES else fingerprint(Path(config)),
        **{f"field {name}": value for name, value in (settings or {}).items()},
        "train": [fingerprint(part.path) for part in corpus.parts if isinstance(part, TextFile)],
        "word_splitter": word_splitter,
        "vocabulary": None if vocabulary is None else fingerprint(vocabulary),
        "vocabulary_size": vocabulary_size,
        "minimum_count": minimum_count,
        **choices.identity(),
    }
    if given_words:
        check_vocabulary(given_words, name=str(vocabulary))
    arguments = choices.arguments(output, evaluate=valid_corpus is not None)
    tell = tell if arguments.process_index == 0 else ignore

    def facts_of_the_run() -> dict[str, Any]:
        return open_run(output, identity) or begin_run(
            output,
            identity,
            corpus,
            lambda counts: given_words or build_vocabulary(counts, vocabulary_size, minimum_count),
        )

    facts = in_first_process(arguments, facts_of_the_run)

    tokenizer = ElmoTokenizer(word_splitter=word_splitter, word_vocabulary=WordVocabulary(facts["vocabulary"]))
    set_seed(choices.seed)
    model = ElmoForPreTraining(read_config(config, len(facts["vocabulary"]), **(settings or {})))
    batches = make_batches(corpus, tokenizer, arguments, facts["words"] + facts["sentences"])
    trainer = ElmoPreTrainer(
        model, arguments, train_dataset=batches, eval_dataset=valid_corpus, processing_class=tokenizer
    )
    tell(
        f"{facts['words']:,} words in {facts['sentences']:,} sentences, {len(facts['vocabulary']):,} in the"
        f" vocabulary; {model.num_parameters():,} parameters; {len(batches):,} steps an epoch."
    )
    return run_training(trainer, output, tell)


def make_batches(
    corpus: Corpus, tokenizer: ElmoTokenizer, arguments: ElmoPreTrainingArguments, targets: int
) -> TrainingBatches:
    """The training batches of this process.

    Args:
        corpus: The training text.
        tokenizer: The tokenizer, with a word vocabulary.
        arguments: The trainer's arguments.
        targets: Words that each direction predicts in an epoch, ends of sentences included.
    """
    batch_size, processes = arguments.per_device_train_batch_size, arguments.world_size
    common: dict[str, Any] = {
        "epochs": None,
        "seed": arguments.seed,
        "process_index": arguments.process_index,
        "process_count": processes,
    }
    if arguments.protocol == "stream":
        stream = StreamBatches(corpus, tokenizer, batch_size, arguments.unroll_steps, **common)
        return TrainingBatches(stream, max(targets // (batch_size * processes * arguments.unroll_steps), 1))
    limit = {"batch_size": batch_size} if arguments.max_words is None else {"max_words": arguments.max_words}
    sentences = SentenceBatches(corpus, tokenizer, **limit, **common)
    return TrainingBatches(sentences, sentences.count(1))


def run_training(trainer: ElmoPreTrainer, output: Path, tell: Callable[[str], None]) -> PretrainingReport:
    """Trains to the end, from the last checkpoint if there is one, and leaves the model in the run's folder."""
    checkpoint = last_checkpoint(output)
    if checkpoint is not None:
        tell(f"Going on from {checkpoint}.")
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    reached = None
    if trainer.eval_dataset is not None:
        reached = trainer.evaluate()["eval_perplexity"]
    if trainer.args.should_save:
        put_model(trainer, output)
    trainer.accelerator.wait_for_everyone()
    return PretrainingReport(output, trainer.state.global_step, checkpoint, reached)


def put_model(trainer: ElmoPreTrainer, output: Path) -> None:
    """Puts the model's files into the run's folder, written aside first, so that each is whole."""
    aside = output / UNFINISHED
    shutil.rmtree(aside, ignore_errors=True)
    try:
        trainer.save_model(str(aside))
        trainer.state.save_to_json(str(aside / TRAINER_STATE))
        write_through(aside)
        for path in sorted(aside.iterdir()):
            os.replace(path, output / path.name)
        sync_folder(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def ignore(line: str) -> None:
    """Says nothing: one process speaks for all."""
