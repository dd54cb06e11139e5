"""`hf-elmo demo`: from an original checkpoint to contextual vectors, offline, showing every line that it runs."""

import tempfile
from pathlib import Path
from textwrap import dedent
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

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
    ElmoModel(ElmoConfig.from_size("small")).save_pretrained("{work}/random")
    ElmoTokenizer().save_pretrained("{work}/random")
    export_checkpoint("{work}/random", "{work}/original")
"""
CONVERT = """
    convert_checkpoint("{work}/original", "{work}/elmo")
"""
LOAD = """
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("{work}/elmo")
    model = AutoModel.from_pretrained("{work}/elmo")
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
            console.print("The files of this demo are removed again; `hf-elmo demo --output DIR` keeps them.")
        return
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ValueError(f"{output_dir} exists already; name an empty or a new folder for the demo.")
    _run(output_dir, console)
    console.print(f"The original checkpoint is in {output_dir}/original, the converted one in {output_dir}/elmo.")


def _run(work: Path, console: Console) -> None:
    facts = {"work": work.as_posix(), "seed": SEED, "sentences": list(SENTENCES), "word": WORD}
    names: dict[str, Any] = {}

    def show(title: str, code: str) -> None:
        code = dedent(code).strip().format(**facts)
        console.print(f"\n[bold]{title}[/bold]")
        console.print(Syntax(code, "python", background_color="default"))
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
    console.print(_comparison(names["cosines"], names["distances"]))
    console.print(
        "The token layer sees the characters of the word alone, so that both vectors are the same there; the layers "
        "of the biLM read the sentence around it."
    )
    show("6. The representation is gamma * sum of weight * layer; a task learns these numbers", WEIGHTS)
    weights = " + ".join(f"{weight:.3f} * layer {index}" for index, weight in enumerate(names["weights"][0].tolist()))
    console.print(f"ELMo = {names['gamma'].item():.3f} * ({weights})\n")


def _comparison(cosines: list[float], distances: list[float]) -> Table:
    table = Table(title=f"`{WORD}` in: " + " / ".join(SENTENCES), title_justify="left")
    table.add_column("layer")
    table.add_column("cosine", justify="right")
    table.add_column("how far apart", justify="right")
    table.add_column("")
    names = ["0  token layer"]
    names += [f"{index}  biLM" for index in range(1, len(cosines) - 1)]
    names += ["mix (last_hidden_state)"]
    farthest = max(distances) or 1.0
    for name, cosine, distance in zip(names, cosines, distances, strict=True):
        table.add_row(name, f"{cosine:.4f}", f"{distance:.4f}", "█" * round(24 * distance / farthest))
    return table
