"""`hf-elmo demo`: from an original checkpoint to contextual vectors, offline, showing every line that it runs."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from transformers.utils import logging

SEED = 2018
SENTENCES = (
    "She sat on the bank of the river .",
    "The bank raised its interest rates .",
)
WORD = "bank"

CREATE = """
    import torch
    from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
    from hf_elmo.conversion import convert_checkpoint, export_checkpoint

    torch.manual_seed({seed})
    ElmoModel(ElmoConfig.from_size("small")).save_pretrained("random")
    ElmoTokenizer().save_pretrained("random")
    export_checkpoint("random", "original")
"""
CONVERT = """
    convert_checkpoint("original", "elmo")
"""
LOAD = """
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("elmo")
    model = AutoModel.from_pretrained("elmo")
"""
ENCODE = """
    sentences = {sentences}
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
"""
COMPARE = """
    words = [sentence.split() for sentence in sentences]
    places = [(row, 1 + words[row].index("{word}")) for row in range(2)]  # 1 for <S>
    pairs = [[layer[place] for place in places] for layer in outputs.hidden_states]
    pairs.append([outputs.last_hidden_state[place] for place in places])
    cosines = [torch.cosine_similarity(a, b, dim=0).item() for a, b in pairs]
    distances = [(a - b).norm().item() for a, b in pairs]
"""
WEIGHTS = """
    weights, gamma = model.layer_weights()
"""


def run_demo(output_dir: Path | None = None, console: Console | None = None) -> None:
    """Writes a small original checkpoint, converts it, loads it, and compares one word in two sentences.

    Args:
        output_dir: Where to keep the checkpoint and the converted folder; by default they are removed at the end.
        console: Where to print.

    Raises:
        ValueError: When `output_dir` holds files already.
    """
    console = console or Console()
    if output_dir is None:
        with tempfile.TemporaryDirectory(prefix="hf-elmo-demo-") as work:
            _run(Path(work), console)
        console.print("The files of this demo are removed again; `hf-elmo demo DIR` keeps them.")
        return
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ValueError(f"{output_dir} exists already; name an empty or a new folder for the demo.")
    output_dir.mkdir(parents=True, exist_ok=True)
    _run(output_dir, console)
    console.print(f"The original checkpoint is in {output_dir}/original, the converted one in {output_dir}/elmo.")


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Relative paths mean `folder`, and transformers' own progress bars stay away."""
    before, bars = Path.cwd(), logging.is_progress_bar_enabled()
    os.chdir(folder)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        os.chdir(before)
        if bars:
            logging.enable_progress_bar()


def _run(work: Path, console: Console) -> None:
    with _working_in(work):
        _show_everything(console)


def _show_everything(console: Console) -> None:
    facts = {"seed": SEED, "sentences": list(SENTENCES), "word": WORD}
    names: dict[str, Any] = {}

    def show(title: str, code: str) -> None:
        code = dedent(code).strip().format(**facts)
        console.print(f"\n[bold]{title}[/bold]")
        console.print(Syntax(code, "python", background_color="default", word_wrap=True))
        exec(code, names)

    console.print(
        "[bold]hf-elmo demo[/bold]: no network is needed. The weights below are random (a fixed seed): they are "
        "[bold]not trained[/bold], so the numbers show how things work and say nothing about language."
    )
    show("1. A checkpoint of the `small` size in the original AllenNLP layout: options.json and weights.hdf5", CREATE)
    show("2. Convert it, as `hf-elmo convert original elmo` does", CONVERT)
    show("3. Load it like any other model", LOAD)
    show("4. Two sentences to vectors", ENCODE)
    show(f"5. The word `{WORD}` in both sentences, layer by layer", COMPARE)
    console.print(_comparison(names["pairs"], names["cosines"], names["distances"]))
    console.print(
        "The token layer sees the characters of the word alone, so that both vectors are the same there; the layers "
        "of the biLM read the sentence around it."
    )
    show("6. The representation is gamma * sum of weight * layer; a task learns these numbers", WEIGHTS)
    weights = " + ".join(f"{weight:.3f} * layer {index}" for index, weight in enumerate(names["weights"][0].tolist()))
    console.print(f"ELMo = {names['gamma'].item():.3f} * ({weights})\n")


def _comparison(pairs: list[list[Any]], cosines: list[float], distances: list[float]) -> Table:
    table = Table(title=f"`{WORD}` with `river` (1) and with `interest` (2); the first 3 numbers of each vector")
    for name in ("layer", "vector 1", "vector 2", "cosine", "apart"):
        table.add_column(name, justify="right" if name in ("cosine", "apart") else "left", no_wrap=True)
    layers = ["token", *(f"biLM {index}" for index in range(1, len(cosines) - 1)), "mix"]
    for layer, pair, cosine, distance in zip(layers, pairs, cosines, distances, strict=True):
        vectors = [" ".join(f"{number:6.3f}" for number in vector[:3].tolist()) for vector in pair]
        table.add_row(layer, *vectors, f"{cosine:.4f}", f"{distance:.4f}")
    return table
