"""Commands that train a language model: pretrain, adapt."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .embed import plot_app
from .main import app, friendly_errors

TRAINING = "How to train"
TEXT = "Text and words"
WATCHING = "Checkpoints and progress"

Train = Annotated[
    list[str],
    typer.Option(
        "--train",
        metavar="FILES",
        help="Training text, one sentence a line: a file (plain, .gz or .xz), a folder, or a pattern in quotes; may be"
        " given several times.",
        show_default=False,
    ),
]
Valid = Annotated[
    list[str] | None,
    typer.Option(
        "--valid",
        metavar="FILES",
        help="Text to measure perplexity on, given like --train.",
        show_default=False,
    ),
]
Protocol = Annotated[
    str,
    typer.Option(
        help="stream: parallel streams of sentences, a few words of each at a time, LSTM states carried on, as ELMo"
        " was trained. sentence: whole sentences, each on its own, as ELMo is used.",
        rich_help_panel=TRAINING,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        help="Stop after this many steps, in the place of --epochs.", rich_help_panel=TRAINING, show_default=False
    ),
]
Unroll = Annotated[
    int, typer.Option("--unroll-steps", help="Words of each stream in a batch.", rich_help_panel=TRAINING)
]
MaxWords = Annotated[
    int | None,
    typer.Option(
        help="With --protocol sentence: words in a batch, in the place of --batch-size sentences.",
        rich_help_panel=TRAINING,
        show_default=False,
    ),
]
Accumulate = Annotated[
    int, typer.Option(help="Batches that make one step: memory of one, gradient of all.", rich_help_panel=TRAINING)
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="By default what suits the optimizer.", rich_help_panel=TRAINING, show_default=False),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="constant, linear or cosine (both down to 0 at the last step); by default constant for Adagrad, linear"
        " for AdamW.",
        rich_help_panel=TRAINING,
        show_default=False,
    ),
]
Warmup = Annotated[
    float | None,
    typer.Option(
        help="Share of the steps in which the learning rate rises from 0.",
        rich_help_panel=TRAINING,
        show_default=False,
    ),
]
Clip = Annotated[
    float | None,
    typer.Option(
        help="Norm at which gradients are cut; by default 10 for Adagrad, 1 for AdamW.",
        rich_help_panel=TRAINING,
        show_default=False,
    ),
]
Sampled = Annotated[
    int | None,
    typer.Option(
        "--sampled-words",
        help="Words that the softmax draws in training, 0 for all of them; by default 8192, or all where more than"
        " half would be drawn.",
        rich_help_panel=TRAINING,
        show_default=False,
    ),
]
Precision = Annotated[
    str, typer.Option(help="float32; bf16 (also on CPU) or fp16 for mixed precision.", rich_help_panel=TRAINING)
]
Seed = Annotated[int, typer.Option(help="Of weights, dropout and order.", rich_help_panel=TRAINING)]
SaveEvery = Annotated[
    int,
    typer.Option(help="Steps between checkpoints: what an interruption costs at most.", rich_help_panel=WATCHING),
]
Keep = Annotated[int, typer.Option(help="Checkpoints to keep.", rich_help_panel=WATCHING)]
LogEvery = Annotated[int, typer.Option(help="Steps between lines of the log.", rich_help_panel=WATCHING)]


@contextmanager
def training_errors() -> Iterator[None]:
    """`friendly_errors` for training, which can be gone on with."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    with friendly_errors(ValueError, interrupted="Interrupted; the same command goes on from the last checkpoint."):
        yield


def drawn_words(sampled: int | None) -> dict[str, Any]:
    """The field of the configuration for --sampled-words."""
    return {} if sampled is None else {"num_sampled_words": sampled or None}


@app.command()
def pretrain(
    train: Train,
    output: Annotated[
        Path,
        typer.Option(
            help="The folder of the run: its checkpoints, and in the end the model. Where it holds a run with the same"
            " options, that one goes on.",
            metavar="DIR",
            show_default=False,
        ),
    ],
    valid: Valid = None,
    config: Annotated[
        str,
        typer.Option(
            metavar="SIZE|FILE",
            help="tiny (1.3 million parameters with 5,000 words), small (13.6), medium (28), original (94), each"
            " and the softmax; or a config.json, or an options.json of bilm-tf.",
        ),
    ] = "small",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="A field of the configuration that differs, such as projection_size=96; may be given several times.",
            show_default=False,
        ),
    ] = None,
    word_splitter: Annotated[
        str,
        typer.Option(
            help="How a line becomes words: whitespace (it is tokenized), treebank (English) or punctuation (other"
            " languages). The model keeps it.",
            rich_help_panel=TEXT,
        ),
    ] = "whitespace",
    vocabulary: Annotated[
        Path | None,
        typer.Option(
            help="A vocabulary file, one word a line, `<S>`, `</S>`, `<UNK>` first and then by falling frequency; by"
            " default it is built from the training text.",
            rich_help_panel=TEXT,
            show_default=False,
        ),
    ] = None,
    vocabulary_size: Annotated[
        int | None,
        typer.Option(help="Words that can be predicted; all by default.", rich_help_panel=TEXT, show_default=False),
    ] = None,
    minimum_count: Annotated[
        int, typer.Option(help="How often a word must occur to be predicted.", rich_help_panel=TEXT)
    ] = 1,
    protocol: Protocol = "stream",
    epochs: Annotated[float, typer.Option(help="How often to read the text.", rich_help_panel=TRAINING)] = 10,
    steps: Steps = None,
    batch_size: Annotated[
        int,
        typer.Option(help="Streams or sentences of a batch, in all processes together.", rich_help_panel=TRAINING),
    ] = 128,
    unroll_steps: Unroll = 20,
    max_words: MaxWords = None,
    accumulate: Accumulate = 1,
    optimizer: Annotated[
        str,
        typer.Option(
            help="adagrad: as published, at a constant 0.2. adamw: at 0.002, falling to 0.", rich_help_panel=TRAINING
        ),
    ] = "adagrad",
    learning_rate: LearningRate = None,
    schedule: Schedule = None,
    warmup: Warmup = None,
    clip: Clip = None,
    dropout: Annotated[
        float, typer.Option(help="Dropout at the input and the output of the LSTMs.", rich_help_panel=TRAINING)
    ] = 0.1,
    sampled_words: Sampled = None,
    precision: Precision = "float32",
    seed: Seed = 0,
    save_every: SaveEvery = 1000,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            help="Steps between measurements on --valid; by default --save-every.",
            rich_help_panel=WATCHING,
            show_default=False,
        ),
    ] = None,
    log_every: LogEvery = 100,
    keep: Keep = 2,
) -> None:
    """Train an ELMo from text: ELMo's first stage.

    Two language models, one from left to right, one from right to left, learn to predict the next word. All that is
    needed is text with one sentence a line; labels come later, with a task. What a command without options does is
    what the authors did: 10 epochs, 128 streams, Adagrad.

    The number of steps follows from the text. While it runs, the perplexity of the training text is shown (how many
    words the model hesitates between, on average; lower is better), and that of --valid whenever it is measured. Stop
    it at any time: the same command goes on from the last checkpoint, as if it had not stopped. With TensorBoard
    installed its curves are in DIR/runs.

    Several processes or GPUs share the batch out: `torchrun --nproc-per-node 4 -m hf_elmo.cli pretrain ...`.

    **Examples**

    A small model of a language:

    `hf-elmo pretrain --train 'news/*.txt.gz' --valid dev.txt --vocabulary-size 100000 --output elmo-mine`

    A tiny one, in an hour on one processor core (much as elmo-tiny-english was made: its card has the command):

    `hf-elmo pretrain --train novels.txt --config tiny --vocabulary-size 5000 --optimizer adamw --learning-rate 0.008
    --epochs 1 --batch-size 32 --sampled-words 0 --output elmo-tiny`

    Then: `hf-elmo perplexity elmo-tiny test.txt`, `hf-elmo predict elmo-tiny "She sat on the river bank ."`, or
    AutoModel.from_pretrained("elmo-tiny").
    """
    with training_errors():
        from ..pretraining.choices import TrainingChoices
        from ..pretraining.pretrain import parse_fields
        from ..pretraining.pretrain import pretrain as run

        choices = TrainingChoices(
            protocol=protocol,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            unroll_steps=unroll_steps,
            max_words=max_words,
            accumulate=accumulate,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup=warmup,
            clip=clip,
            precision=precision,
            seed=seed,
            save_every=save_every,
            evaluate_every=evaluate_every,
            log_every=log_every,
            keep=keep,
        )
        report = run(
            train,
            output,
            valid=valid or (),
            config=config,
            settings={"bilm_dropout": dropout, **drawn_words(sampled_words), **parse_fields(settings or [])},
            vocabulary=vocabulary,
            vocabulary_size=vocabulary_size,
            minimum_count=minimum_count,
            word_splitter=word_splitter,
            choices=choices,
            tell=typer.echo,
        )
        typer.echo(report.summary())


@app.command()
def adapt(
    model: Annotated[
        str,
        typer.Argument(
            help="The model: a folder, a repository of the Hub, or one that comes with the package.",
            show_default=False,
        ),
    ],
    train: Train,
    valid: Valid = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the run: its checkpoints, and in the end the adapted model; by default the model's"
            " name with -adapted behind it, in the current folder.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    word_splitter: Annotated[
        str | None,
        typer.Option(
            help="How a line becomes words; by default as the model does it.", rich_help_panel=TEXT, show_default=False
        ),
    ] = None,
    vocabulary_size: Annotated[
        int | None,
        typer.Option(
            help="For a model without a softmax: words of the new one; all by default.",
            rich_help_panel=TEXT,
            show_default=False,
        ),
    ] = None,
    minimum_count: Annotated[
        int,
        typer.Option(
            help="For a model without a softmax: how often a word must occur to be predicted.", rich_help_panel=TEXT
        ),
    ] = 1,
    protocol: Protocol = "stream",
    epochs: Annotated[float, typer.Option(help="How often to read the text.", rich_help_panel=TRAINING)] = 3,
    steps: Steps = None,
    batch_size: Annotated[
        int,
        typer.Option(help="Streams or sentences of a batch, in all processes together.", rich_help_panel=TRAINING),
    ] = 32,
    unroll_steps: Unroll = 20,
    max_words: MaxWords = None,
    accumulate: Accumulate = 1,
    optimizer: Annotated[str, typer.Option(help="adamw or adagrad.", rich_help_panel=TRAINING)] = "adamw",
    learning_rate: LearningRate = None,
    schedule: Schedule = None,
    warmup: Warmup = None,
    clip: Clip = None,
    sampled_words: Sampled = None,
    precision: Precision = "float32",
    seed: Seed = 0,
    save_every: SaveEvery = 500,
    log_every: LogEvery = 50,
    keep: Keep = 2,
) -> None:
    """Train a language model further on the text of a domain, and tell its perplexity before and after.

    A task on reviews profits from an ELMo that has read reviews (the paper's table 7). The text needs no labels: one
    sentence a line, that of the task's training part for instance. The words that can be predicted stay the model's;
    a model that was converted without its softmax, as those from HDF5 are, gets a new one over the words of this text.

    Stop it at any time: the same command goes on from the last checkpoint.

    **Examples**

    `hf-elmo adapt elmo-tiny-english --train reviews.txt --valid reviews-dev.txt --output elmo-reviews`

    `hf-elmo adapt elmo-original --train 'abstracts/*.gz' --precision bf16 --batch-size 128 --epochs 1`
    """
    with training_errors():
        from ..bundled import resolve_model
        from ..pretraining.adapt import adapt as run
        from ..pretraining.choices import TrainingChoices

        choices = TrainingChoices(
            protocol=protocol,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            unroll_steps=unroll_steps,
            max_words=max_words,
            accumulate=accumulate,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup=warmup,
            clip=clip,
            precision=precision,
            seed=seed,
            save_every=save_every,
            log_every=log_every,
            keep=keep,
        )
        report = run(
            resolve_model(model),
            train,
            output or Path(f"{Path(model).name}-adapted"),
            valid=valid or (),
            vocabulary_size=vocabulary_size,
            minimum_count=minimum_count,
            word_splitter=word_splitter,
            settings=drawn_words(sampled_words),
            choices=choices,
            tell=typer.echo,
        )
        typer.echo(report.summary())


@plot_app.command("training")
def plot_training_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders that pretrain or adapt wrote, finished or not.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .png or .svg to write.", show_default=False)],
) -> None:
    """Draw learning curves: the perplexity of training and validation text over the words read.

    **Example**

    `hf-elmo plot training elmo-mine --output curve.svg`
    """
    with friendly_errors(ValueError):
        from ..pretraining.curves import plot_training

        plot_training(runs, output)
        typer.echo(f"{output}: the learning curves of {', '.join(run.name for run in runs)}.")
