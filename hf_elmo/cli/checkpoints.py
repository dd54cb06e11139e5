"""Commands for checkpoints: convert, push, verify, catalog, export."""

import contextlib
import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..conversion.errors import ConversionError
from .main import app, friendly_errors


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="The original weights file, the folder or archive with it, or a name of the catalog.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Argument(help="The folder to write; it must not exist or be empty.", show_default=False)
    ],
    options: Annotated[
        Path | None,
        typer.Option(help="The original options file; looked for beside the weights.", show_default=False),
    ] = None,
    format: Annotated[
        str,
        typer.Option(help="The format of SOURCE; auto recognises it, and an unknown name lists all of them."),
    ] = "auto",
    word_splitter: Annotated[
        str | None,
        typer.Option(
            help="How the tokenizer finds words in text: whitespace (text is tokenized already), "
            "treebank (English, as in ELMo's training text) or punctuation (other languages). By default what the "
            "catalog says, otherwise whitespace.",
            show_default=False,
        ),
    ] = None,
    catalog_name: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="NAME", help="The name in the catalog of files fetched by hand.", show_default=False
        ),
    ] = None,
    force_download: Annotated[
        bool, typer.Option("--force-download", help="Download again what is in the cache.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option to be used in the place of the original's, such as lstm.cell_clip=5 or "
            "char_cnn.activation=tanh; several may be given.",
            show_default=False,
        ),
    ] = None,
    push_to_hub: Annotated[
        str | None,
        typer.Option(metavar="REPO_ID", help="Push the folder to this repository then.", show_default=False),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="With --push-to-hub: make it private.")] = False,
) -> None:
    """Convert an original checkpoint into a folder for transformers, and compare the two.

    SOURCE is an HDF5 file of AllenNLP or bilm-tf with its options.json beside it, a training checkpoint of bilm-tf or
    DeepPavlov (its folder, or a file of it), a TF-Hub module, a model of NLPL, RusVectores, CLARIN or
    ELMoForManyLangs, or a task model of AllenNLP: a folder, or the .zip or .tar.gz as it was downloaded. OUTPUT
    becomes a complete folder: configuration, weights, tokenizer, code for loading without this package, README. It
    appears only when the model in it has been loaded again and gives the original's numbers.

    **Examples**

    `hf-elmo convert downloads/elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5 elmo-original --word-splitter treebank`

    `hf-elmo convert elmo-ru-news elmo-ru-news-converted` downloads it first; `hf-elmo catalog` lists the names

    `hf-elmo convert weights.hdf5 elmo-mine --options other/options.json`

    `hf-elmo convert unpacked/elmo_ru-news elmo-ru-news --set char_cnn.activation=relu`

    `hf-elmo convert weights.hdf5 elmo-mine --push-to-hub someone/elmo-mine --private`

    **Then, in Python**

    `import hf_elmo; from transformers import AutoModel; model = AutoModel.from_pretrained("elmo-original")`
    """
    with friendly_errors(), contextlib.ExitStack() as stack:
        from ..conversion import convert_checkpoint
        from ..conversion.catalog import find, named_by
        from ..conversion.options import parse_settings

        check_push_options(push_to_hub, private)
        entry = named_by(source) if catalog_name is None else find(catalog_name)
        if force_download and (catalog_name is not None or entry is None):
            raise ConversionError(f"--force-download is for a name of the catalog; {source} is not downloaded.")
        if catalog_name is None and entry is not None:
            from ..conversion.download import downloaded

            source = stack.enter_context(downloaded(entry, output, progress=True, force_download=force_download))
        report = convert_checkpoint(
            source,
            output,
            options,
            format,
            word_splitter,
            progress=True,
            catalog_entry=entry,
            overrides=parse_settings(settings or []),
        )
        typer.echo(report.summary())
    if push_to_hub is not None:
        push_converted(output, push_to_hub, private)


def check_push_options(repo_id: str | None, private: bool) -> None:
    """Refuses before the conversion what could not be pushed after it.

    Raises:
        ConversionError: When the repository's name is malformed, there is no token, or nothing to make private.
    """
    if repo_id is not None:
        from ..conversion.push import check_destination

        check_destination(repo_id)
    elif private:
        raise ConversionError("--private says how --push-to-hub makes a repository; give both, or neither.")


def push_converted(folder: Path, repo_id: str, private: bool) -> None:
    """Pushes what was just converted; if that fails, the folder stays and the message says how to push it later."""
    later = f"{folder} is complete and stays; to push it: {push_command(folder, repo_id, private)}"
    with friendly_errors(interrupted=f"Interrupted. {later}"):
        from ..conversion import PushError, push_folder

        try:
            typer.echo("\n" + push_folder(folder, repo_id, private).summary())
        except ConversionError as error:
            raise PushError(f"{error}\n{later}") from error


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="A folder with an ELMo model, its tokenizer and a README.md.")],
    repo_id: Annotated[
        str, typer.Argument(help="The repository, as owner/name; it is made if need be.", show_default=False)
    ],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check and list the files, offline.")] = False,
) -> None:
    """Push a folder to the Hub in one commit: weights, configuration, tokenizer, code and card.

    The token is the one that `hf auth login` saved, or HF_TOKEN. After an interruption the same command goes on. A
    README.md in the repository that a person wrote or changed is left as it is.

    **Examples**

    `hf-elmo push elmo-original someone/elmo-original --dry-run`

    `hf-elmo push elmo-original someone/elmo-original --private`
    """
    again = push_command(folder, repo_id, private)
    with friendly_errors(interrupted=f"Interrupted; the Hub never shows half a push. To go on: {again}"):
        from ..conversion import push_folder

        typer.echo(push_folder(folder, repo_id, private, dry_run).summary())


def push_command(folder: Path, repo_id: str, private: bool) -> str:
    """The command that pushes a folder."""
    return shlex.join(["hf-elmo", "push", str(folder), repo_id, *(["--private"] if private else [])])


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A folder that was converted, or downloaded from the Hub.")],
    against: Annotated[
        Path,
        typer.Option(
            help="The original weights file, or the folder or the archive with it.",
            metavar="SOURCE",
            show_default=False,
        ),
    ],
    options: Annotated[
        Path | None,
        typer.Option(help="The original options file; looked for beside the weights.", show_default=False),
    ] = None,
    format: Annotated[str, typer.Option(help="The format of SOURCE; auto recognises it.")] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="What the conversion was given with --set.", show_default=False
        ),
    ] = None,
) -> None:
    """Compare a converted folder with its original again: every tensor bit for bit, and the vectors of some words.

    **Examples**

    `hf-elmo verify elmo-original --against downloads/elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5`

    `hf-elmo verify elmo-ru-news --against elmo_ru-news.tar.gz`
    """
    with friendly_errors():
        from ..conversion import verify_folder
        from ..conversion.options import parse_settings

        overrides = parse_settings(settings or [])
        typer.echo(verify_folder(folder, against, options, format, overrides, progress=True).summary())


@app.command()
def catalog(
    name: Annotated[str | None, typer.Argument(help="Show this one in full.", show_default=False)] = None,
    language: Annotated[
        str | None, typer.Option(help="Only this language, by its ISO 639 code.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the public ELMo checkpoints, or show one in full.

    **Examples**

    `hf-elmo catalog --language ru`

    `hf-elmo catalog elmo-ru-news`
    """
    with friendly_errors():
        from ..conversion.catalog import CATALOG, by_language, find
        from ..conversion.listing import print_record, print_table, record

        if name is not None and language is not None:
            raise ConversionError("--language lists every checkpoint of a language; give it or a name, not both.")
        found = by_language(language) if language is not None else list(CATALOG.values())
        if name is not None:
            found = [find(name)]
        if as_json:
            records = [record(entry) for entry in found]
            typer.echo(json.dumps(records if name is None else records[0], ensure_ascii=False, indent=2))
        elif name is None:
            print_table(found)
        else:
            print_record(found[0])


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="A folder with an ELMo model, with or without a head.")],
    output: Annotated[
        Path, typer.Argument(help="The folder to write; it must not exist or be empty.", show_default=False)
    ],
) -> None:
    """Write a model back as options.json and weights.hdf5, for AllenNLP and bilm-tf.

    **Example**

    `hf-elmo export elmo-original exported`
    """
    with friendly_errors():
        from ..conversion import export_checkpoint

        report = export_checkpoint(folder, output, progress=True)
        typer.echo(report.summary())
