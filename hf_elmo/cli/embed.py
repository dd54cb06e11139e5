"""Commands that turn text into vectors, and show what is in them: embed, neighbors, plot."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .main import app, friendly_errors

if TYPE_CHECKING:
    from ..embedding.embedder import ElmoEmbedder
    from ..embedding.engines import Engine
    from ..embedding.job import JobReport, Progress
    from ..embedding.selection import Layers

WRONG, CHANGED, FAILED = 2, 3, 4
SHOWN = 5


def parse_layers(text: str) -> Layers:
    """`mix`, `all`, `top`, `average`, a number, or several with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    if all(part.removeprefix("-").isdecimal() for part in parts):
        numbers = [int(part) for part in parts]
        return numbers[0] if len(numbers) == 1 else numbers
    return text


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Different exit codes for a wrong option (2), what the same command cannot mend (3) and what it can (4)."""
    from ..embedding.errors import ChangedError, OutputError, SettingError, WorkerError

    try:
        yield
    except SettingError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(WRONG) from error
    except ChangedError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(CHANGED) from error
    except (OutputError, MemoryError, WorkerError) as error:
        if isinstance(error, WorkerError) and error.details:
            typer.echo(error.details.rstrip(), err=True)
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(FAILED) from error


@app.command()
def embed(
    input: Annotated[
        str,
        typer.Argument(
            help="The sentences: plain text (one a line), .conllu, .jsonl, .csv, .tsv or .parquet, also packed as "
            ".gz or .xz; - is standard input.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Argument(
            help="What to write: a name that ends in .hdf5, .parquet, .npz or .safetensors (a folder of shards), or "
            "one without an ending (a folder for `datasets`).",
            show_default=False,
        ),
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="A folder, or a repository on the Hub.")],
    layers: Annotated[
        str,
        typer.Option(
            help="mix (the learned mix), all, top, average, or numbers such as 0 or 0,2; 0 is the words alone."
        ),
    ] = "mix",
    pool: Annotated[
        str | None,
        typer.Option(help="One vector a sentence: mean, max, sum, first or last of its words.", show_default=False),
    ] = None,
    boundaries: Annotated[
        bool, typer.Option("--boundaries", help="Take <S> and </S> for words, as sentence-transformers does.")
    ] = False,
    dtype: Annotated[
        str, typer.Option(help="The numbers written: float32, float16 or bfloat16 (bfloat16 in .safetensors).")
    ] = "float32",
    layout: Annotated[
        str,
        typer.Option(
            help="Of .hdf5: allennlp (keys are line numbers) or elmoformanylangs (keys are the words, with tabs "
            "between them)."
        ),
    ] = "allennlp",
    shards: Annotated[
        bool, typer.Option("--shards", help="Of .parquet: a folder of files, which takes no room twice.")
    ] = False,
    input_format: Annotated[
        str | None,
        typer.Option(
            help="text, conllu, jsonl, csv, tsv or parquet; by default by the ending of INPUT.", show_default=False
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="The column or field with the sentence, a text or a list of words.", show_default=False),
    ] = None,
    pretokenized: Annotated[
        bool, typer.Option("--pretokenized", help="The words of a text are those between blanks; do not split it.")
    ] = False,
    on_error: Annotated[
        str,
        typer.Option(
            help="At a line that cannot be used: stop, or skip (it is counted, named, and keeps its number)."
        ),
    ] = "stop",
    max_words: Annotated[int, typer.Option(help="The longest sentence.")] = 100_000,
    max_line_bytes: Annotated[int, typer.Option(help="The longest line.")] = 1 << 20,
    batch_words: Annotated[
        int | None,
        typer.Option(help="Words in a batch; by default 4096 on a CPU, 16384 on a GPU.", show_default=False),
    ] = None,
    shard_lines: Annotated[int, typer.Option(help="Lines in a shard, which is what a stopped run may lose.")] = 1000,
    precision: Annotated[
        str | None,
        typer.Option(
            help="What the model computes in: float32, bfloat16 or float16; by default that of the model.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...; by default a GPU if there is one.", show_default=False)
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of each process; by default all, shared out.", show_default=False),
    ] = None,
    num_proc: Annotated[
        int,
        typer.Option("--num-proc", help="Processes, each with a model of its own and, of several GPUs, its own GPU."),
    ] = 1,
    engine: Annotated[
        str, typer.Option(help="local (this machine), or ray (Ray Data; --num-proc is the number of actors).")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="A running Ray cluster: auto, or host:port; by default RAY_ADDRESS, or a new one on this machine.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            help="With Ray, GPUs of each actor, such as 0.5 for two on a GPU; by default 1 where there are any.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove what an earlier run wrote for this OUTPUT, and start anew.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, for logs.")] = False,
) -> None:
    """Turn a corpus into vectors; a run that was stopped goes on when the same command is given again.

    Every line counts: blank lines keep their number and have no words. While it runs, what is done lies in
    OUTPUT.unfinished; OUTPUT appears when it is whole, with a manifest that says what it was made of. However often it
    was stopped, and with however many processes, the same machine writes the same bytes, as long as --threads is the
    same (a run that goes on keeps it).

    With `--engine ray` on a cluster, INPUT is on the machine where the command runs, OUTPUT lies in a folder that all
    machines share, and the model is in such a folder, too, or on the Hub.

    **Examples**

    `hf-elmo embed sentences.txt vectors.hdf5 --model elmo-original --layers all` as `allennlp elmo` writes it

    `hf-elmo embed corpus.txt.gz vectors.parquet --model elmo-original --pool mean --dtype float16`

    `hf-elmo embed corpus.txt vectors.parquet --shards --model /shared/elmo --engine ray --num-proc 16 --address auto`

    `zcat *.jsonl.gz | hf-elmo embed - vectors --input-format jsonl --column text --model someone/elmo --on-error skip`

    **Exit codes**

    0: done, or done before; lines that were skipped are named. 1: the input or the model cannot be used. 2: the
    command is wrong. 3: OUTPUT belongs to another model, input or other options; nothing was touched. 4: it could not
    go on (a full disk, too little memory, processes that were ended); mend that and give the same command again. 129,
    130, 143: it was stopped, and the same command goes on.
    """
    stopped = "Interrupted; what is done is kept, and the same command goes on from there."
    with friendly_errors(ValueError, interrupted=stopped), exit_codes():
        from transformers.utils.logging import disable_progress_bar

        from ..embedding.job import run_job
        from ..embedding.settings import JobSettings

        disable_progress_bar()
        where = engine_for(engine, num_proc, address, gpus)
        settings = JobSettings(
            input,
            output,
            model,
            layers=parse_layers(layers),
            pool=pool,
            boundaries=boundaries,
            dtype=dtype,
            layout=layout,
            keep_shards=shards,
            input_format=input_format,
            column=column,
            pretokenized=pretokenized,
            on_error=on_error,
            most_words=max_words,
            most_line_bytes=max_line_bytes,
            shard_lines=shard_lines,
            batch_words=batch_words,
            precision=precision,
            device=device,
            threads=threads,
        )
        started = time.monotonic()
        with progress_bar(quiet) as show:
            report = run_job(settings, show, overwrite, where)
        typer.echo(summary(report, time.monotonic() - started))


def engine_for(name: str, count: int, address: str | None, gpus: float | None) -> Engine:
    """The engine that the options ask for.

    Raises:
        SettingError: There is none, or it is not installed.
    """
    from ..embedding.engines import ThisProcess
    from ..embedding.errors import SettingError
    from ..embedding.processes import Processes

    if name not in ("local", "ray"):
        raise SettingError(f"--engine must be local or ray, not {name!r}.")
    if name == "local":
        if address is not None or gpus is not None:
            raise SettingError("--address and --gpus are for --engine ray.")
        return ThisProcess() if count == 1 else Processes(count)
    try:
        from ..embedding.on_ray import RayData
    except ImportError as error:
        raise SettingError("--engine ray needs Ray: pip install 'hf-elmo[ray]'.") from error
    return RayData(count, address, gpus)


def summary(report: JobReport, seconds: float) -> str:
    """What was done, for people."""
    if report.was_complete:
        lines = [f"{report.output} is complete already: {report.lines:,} lines, {report.words:,} words."]
    else:
        lines = [f"{report.output}: {report.lines:,} lines, {report.words:,} words, in {duration(seconds)}."]
    if report.resumed_lines and not report.was_complete:
        lines.append(f"{report.resumed_lines:,} of the lines were done by an earlier run.")
    if report.skipped_count:
        lines.append(f"Skipped, without vectors: {report.skipped_count:,}")
        lines += [f"  line {number + 1:,} {why}" for number, why in report.skipped[:SHOWN]]
        if report.skipped_count > SHOWN:
            lines.append("  ... (the manifest names more)")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Seconds as people say them: 5 s, 3:20 min, 2:05 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr with words a second and the time left; nothing where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Embedding", total=None, figures="")
        started = time.monotonic()
        began_at: float | None = None

        def show(progress: Progress) -> None:
            nonlocal began_at, started
            if progress.assembling is not None:
                done, total = progress.assembling
                bar.update(task, description="Assembling", total=total, completed=done, figures=f"{done:,}/{total:,}")
                return
            if not progress.new_words:  # the model has just been loaded, or what an earlier run did is passed over
                began_at, started = progress.fraction, time.monotonic()
            seconds = time.monotonic() - started
            figures = f"{progress.lines:,} lines, {progress.new_words / max(seconds, 0.1):,.0f} words/s"
            if progress.fraction is not None:
                since = progress.fraction - (began_at or 0.0)
                if since > 0 and progress.new_words:
                    figures += f", {duration(seconds * (1 - progress.fraction) / since)} left"
                bar.update(task, total=1.0, completed=progress.fraction)
            bar.update(task, figures=figures)

        yield show


FILE_HELP = "The sentences, in any format that `hf-elmo embed` reads."
LAYER_HELP = "top, mix, average, or the number of a layer; 0 is the words alone."
ModelArgument = Annotated[str, typer.Argument(help="A folder, or a repository on the Hub.", show_default=False)]
FileArgument = Annotated[str, typer.Argument(help=FILE_HELP, show_default=False)]
WordOption = Annotated[str, typer.Option("--word", "-w", help="The word.", show_default=False)]
IgnoreCaseOption = Annotated[bool, typer.Option("--ignore-case", "-i", help="Capitals make no difference.")]
FormatOption = Annotated[
    str | None, typer.Option(help="As of `hf-elmo embed`; by default by the ending.", show_default=False)
]
ColumnOption = Annotated[str | None, typer.Option(help="The column with the sentence.", show_default=False)]
PretokenizedOption = Annotated[bool, typer.Option("--pretokenized", help="Words are those between blanks.")]


@app.command()
def neighbors(
    model: ModelArgument,
    file: FileArgument,
    word: WordOption,
    top: Annotated[int, typer.Option(help="Neighbours of each occurrence.")] = 5,
    occurrences: Annotated[int, typer.Option(help="Occurrences to show, the first ones of FILE.")] = 5,
    layer: Annotated[str, typer.Option(help=LAYER_HELP)] = "top",
    same_word: Annotated[bool, typer.Option("--same-word", help="Only other occurrences of the word.")] = False,
    ignore_case: IgnoreCaseOption = False,
    input_format: FormatOption = None,
    column: ColumnOption = None,
    pretokenized: PretokenizedOption = False,
) -> None:
    """Show where a word occurs in a file, and the words nearest to it there, in context (the paper's table 4).

    **Examples**

    `hf-elmo neighbors elmo-original news.txt --word bank`

    `hf-elmo neighbors elmo-original news.txt --word play --same-word --occurrences 20 --top 3`
    """
    with friendly_errors(ValueError), exit_codes():
        from rich.console import Console

        from ..embedding.showing import sentences_of, show_occurrences

        embedder = load_quietly(model)
        read = sentences_of(file, input_format, column, pretokenized)
        found = embedder.occurrences(word, read, top, parse_layers(layer), occurrences, same_word, ignore_case)
        show_occurrences(found, Console())


plot_app = typer.Typer(
    help="Draw a word in context, or the weights of layers, as PNG or SVG.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(plot_app, name="plot")


@plot_app.command("word")
def plot_word_command(
    model: ModelArgument,
    file: FileArgument,
    output: Annotated[Path, typer.Argument(help="The .png or .svg to write.", show_default=False)],
    word: WordOption,
    occurrences: Annotated[int, typer.Option(help="Occurrences to draw, the first ones of FILE.")] = 24,
    ignore_case: IgnoreCaseOption = False,
    input_format: FormatOption = None,
    column: ColumnOption = None,
    pretokenized: PretokenizedOption = False,
) -> None:
    """Draw the occurrences of a word in two dimensions, layer by layer (principal components).

    **Example**

    `hf-elmo plot word elmo-original news.txt bank.png --word bank`
    """
    with friendly_errors(ValueError), exit_codes():
        from ..embedding.plots import check_plot_output, in_context, plot_word
        from ..embedding.showing import sentences_of, vectors_of_occurrences

        check_plot_output(output)
        embedder = load_quietly(model)
        read = sentences_of(file, input_format, column, pretokenized)
        found, vectors = vectors_of_occurrences(embedder, read, word, occurrences, ignore_case)
        plot_word(vectors, [in_context(words, position) for _, position, words in found], word, output)
        typer.echo(f"{output}: {len(found)} occurrences of {word!r}, {vectors.shape[1]} layers.")


@plot_app.command("weights")
def plot_weights_command(
    models: Annotated[list[str], typer.Argument(help="Folders, or repositories on the Hub.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .png or .svg to write.", show_default=False)],
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="What to call a model, once for each; by default its folder.", show_default=False),
    ] = None,
) -> None:
    """Draw the weights of the layers that fine-tuned models have learned, as figure 2 of the paper.

    **Example**

    `hf-elmo plot weights elmo-sst5 elmo-ner elmo-snli --output weights.svg`
    """
    with friendly_errors(ValueError), exit_codes():
        from ..embedding.plots import check_plot_output, plot_layer_weights

        check_plot_output(output)
        if names and len(names) != len(models):
            raise ValueError(f"--name is given {len(names)} times for {len(models)} models; give it once for each.")
        learned = [load_quietly(model).model.layer_weights() for model in models]
        titles = names or [Path(model).name or model for model in models]
        plot_layer_weights(
            [one.weights.float().numpy() for one in learned],
            titles,
            output,
            [one.gamma.float().numpy() for one in learned],
        )
        typer.echo(f"{output}: the layer weights of {', '.join(titles)}.")


def load_quietly(model: str) -> ElmoEmbedder:
    """Loads a model without transformers' progress bars."""
    from transformers.utils.logging import disable_progress_bar

    from ..embedding.embedder import ElmoEmbedder

    disable_progress_bar()
    return ElmoEmbedder.from_pretrained(model)
