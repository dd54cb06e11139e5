"""Commands that ask a language model: perplexity, predict."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from .main import app, friendly_errors

Model = Annotated[
    str,
    typer.Argument(
        help="The model: a folder, a repository of the Hub, or one that comes with the package.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def perplexity(
    model: Model,
    files: Annotated[
        list[str],
        typer.Argument(
            help="Text, one sentence a line: files (plain, .gz or .xz), folders, or patterns in quotes.",
            show_default=False,
        ),
    ],
    protocol: Annotated[
        str,
        typer.Option(
            help="sentence: each sentence by itself; stream: sentences flow through parallel streams, which carry"
            " their states on, as the original programs measure."
        ),
    ] = "sentence",
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="sentence: how many at a time (64), which changes nothing; stream: how many parallel streams (256, as"
            " bilm-tf), which changes the figures.",
            show_default=False,
        ),
    ] = None,
    to_the_end: Annotated[
        bool,
        typer.Option(
            "--to-the-end",
            help="stream: read all streams to their end. The originals stop where the first one finds no more"
            " sentence, and leave out what the others still hold.",
        ),
    ] = False,
    word_splitter: Annotated[
        str | None,
        typer.Option(
            help="How a line becomes words: whitespace (it is tokenized), treebank (English) or punctuation (other"
            " languages); by default as the model does it.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, mps.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure how well a language model expects a text: forward, backward and average perplexity.

    Always with the full softmax, over all words of the vocabulary. Figures compare only where vocabulary, text and
    protocol are the same: unknown words count as `<UNK>`, which is easy to expect, so that a small vocabulary makes a
    perplexity low.

    **Examples**

    `hf-elmo perplexity elmo-tiny-english test.txt`

    `hf-elmo perplexity elmo-converted heldout/ --protocol stream --batch-size 128 --json`
    """
    with friendly_errors(ValueError, interrupted="Interrupted."):
        from ..bundled import resolve_model
        from ..pretraining.corpus import Corpus
        from ..pretraining.loading import check_device, load_language_model
        from ..pretraining.perplexity import PROTOCOLS
        from ..pretraining.perplexity import perplexity as measure

        if protocol not in PROTOCOLS:
            raise ValueError(f"--protocol must be one of {', '.join(PROTOCOLS)}, but is {protocol}.")
        if to_the_end and protocol != "stream":
            raise ValueError("--to-the-end is for --protocol stream; sentences are always read to their end.")
        language_model, tokenizer = load_language_model(resolve_model(model), check_device(device))
        corpus = Corpus(files, word_splitter or tokenizer)
        report = measure(
            language_model, tokenizer, corpus, protocol, batch_size, keep_incomplete=to_the_end, progress=True
        )
        typer.echo(json.dumps(report.as_dict()) if as_json else report.summary())


@app.command()
def predict(
    model: Model,
    text: Annotated[str, typer.Argument(help="A sentence.", show_default=False)],
    top: Annotated[int, typer.Option(help="How many words for each place.")] = 5,
    special: Annotated[
        bool, typer.Option("--special", help="Let the unknown word and the boundaries of sentences be among them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which words a language model expects in the place of each word of a sentence.

    From the left: what the words before it let expect. From the right: what the words after it let expect. Both: the
    product of the two, scaled to a sum of 1: words that could stand there instead.

    **Example**

    `hf-elmo predict elmo-tiny-english "She sat down by the river ."`
    """
    with friendly_errors(ValueError, interrupted="Interrupted."):
        from ..bundled import resolve_model
        from ..pretraining.loading import load_language_model
        from ..pretraining.predictions import predict as ask
        from ..pretraining.predictions import print_predictions

        language_model, tokenizer = load_language_model(resolve_model(model))
        predictions = ask(language_model, tokenizer, text, top, keep_special=special)
        if as_json:
            typer.echo(json.dumps([asdict(prediction) for prediction in predictions], ensure_ascii=False))
        else:
            print_predictions(predictions)
