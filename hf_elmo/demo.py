"""`hf-elmo demo`: what makes ELMo's vectors different, with a trained model, offline, showing each line it runs."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from transformers.utils import logging

MODEL = "elmo-tiny-english"
WORD = "watch"
# Three that show the time, three that look.
SENTENCES = (
    "He took a gold watch from his pocket .",
    "My watch says that it is nearly ten .",
    "She looked at her watch and went home .",
    "I will watch the children play .",
    "They watch the ships from the window .",
    "We must watch him , or he will go .",
)
OTHER_SENTENCES = Path(__file__).parent / "demo_sentences.txt"

LOAD = """
    import torch
    from transformers import AutoModel, AutoTokenizer
    from hf_elmo import ElmoEmbedder, bundled_model

    folder = bundled_model("{model}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder)
"""
ENCODE = """
    sentences = {sentences}
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        layers = model(**inputs, output_hidden_states=True).hidden_states
"""
COMPARE = """
    places = [1 + sentence.split().index("{word}") for sentence in sentences]  # 1 for <S>
    rows = range(len(sentences))
    similarities = []
    for layer in layers:
        vectors = layer[rows, places]
        similarities.append(torch.cosine_similarity(vectors[:, None], vectors, dim=-1))
"""
NEAREST = """
    from hf_elmo.demo import demo_sentences

    embedder = ElmoEmbedder(model, tokenizer)
    others = demo_sentences()
    nearest = [embedder.nearest(sentences[row], "{word}", others, top_k=3) for row in (0, 3)]
"""
PREDICT = """
    from transformers import AutoModelForPreTraining
    from hf_elmo.pretraining.predictions import predict

    language_model = AutoModelForPreTraining.from_pretrained(folder)
    expected = [predict(language_model, tokenizer, sentences[row], top_k=6)[places[row] - 1] for row in (0, 3)]
"""
CONVERT = """
    from hf_elmo.conversion import convert_checkpoint, export_checkpoint

    export_checkpoint(folder, "original")
    convert_checkpoint("original", "elmo")
    again = AutoModel.from_pretrained("elmo")
    with torch.no_grad():
        difference = (again(**inputs).last_hidden_state - model(**inputs).last_hidden_state).abs().max().item()
"""


def run_demo(output_dir: Path | None = None, console: Console | None = None) -> None:
    """Looks at one ambiguous word with the trained model of the package, and converts the model back and forth.

    Args:
        output_dir: Where to keep the model in the original layout, and converted again; by default they are removed.
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
    console.print(f"The original layout is in {output_dir}/original, the converted folder in {output_dir}/elmo.")


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
    facts = {"model": MODEL, "sentences": list(SENTENCES), "word": WORD}
    names: dict[str, Any] = {}

    def show(title: str, code: str) -> None:
        code = dedent(code).strip().format(**facts)
        console.print(f"\n[bold]{title}[/bold]")
        console.print(Syntax(code, "python", background_color="default", word_wrap=True))
        exec(code, names)

    console.print(
        f"[bold]hf-elmo demo[/bold]: no network is needed. The model, {MODEL}, read public-domain novels for"
        " half an hour on one processor core."
    )
    show("1. A model that comes with the package, loaded like any other", LOAD)
    show(f"2. `{WORD}` in six sentences: three that show the time, three that look", ENCODE)
    show("3. How similar are the six vectors of the word?", COMPARE)
    console.print(heat_map(names["similarities"][0].tolist(), SENTENCES, WORD, "Token layer: the word alone"))
    console.print(heat_map(names["similarities"][-1].tolist(), SENTENCES, WORD, "Top layer: the word in its sentence"))
    console.print(
        "The token layer sees the letters of the word, and a static embedding could do no more: all six are the same."
        " The biLM reads the sentence around it, and the two meanings come apart."
    )
    show(f"4. The nearest words among {len(demo_sentences())} other sentences (table 4 of the paper)", NEAREST)
    for row, found in zip((0, 3), names["nearest"], strict=True):
        console.print(neighbor_table(SENTENCES[row], WORD, found))
    show("5. What the language model expects in the place of the word", PREDICT)
    for row, word in zip((0, 3), names["expected"], strict=True):
        console.print(expectation_table(SENTENCES[row], WORD, word))
    show("6. To the layout of AllenNLP and bilm-tf, options.json and weights.hdf5, and back", CONVERT)
    console.print(f"Largest difference of any number after the way there and back: {names['difference']:.1e}\n")


def heat_map(similarities: list[list[float]], sentences: tuple[str, ...], word: str, title: str) -> Table:
    """A table of similarities (n, n), the higher the brighter between the lowest and the highest."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for number in range(1, len(sentences) + 1):
        table.add_column(f"({number}) ", justify="right", no_wrap=True)
    lowest = min(min(row) for row in similarities)
    for number, (sentence, row) in enumerate(zip(sentences, similarities, strict=True), start=1):
        cells = [Text(f"{value:5.2f} ", style=heat(value, lowest)) for value in row]
        table.add_row(marked(f"({number}) {sentence} ", word), *cells)
    return table


def heat(value: float, lowest: float) -> Style:
    """A colour from dark blue at the lowest to yellow at 1."""
    share = 1.0 if lowest > 0.999 else max(0.0, min(1.0, (value - lowest) / (1 - lowest)))
    cold, warm = (40, 44, 120), (250, 220, 60)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(cold, warm, strict=True))
    return Style(color="black" if share > 0.5 else "white", bgcolor=f"rgb({red},{green},{blue})")


def marked(sentence: str, word: str) -> Text:
    """A sentence with a word in bold."""
    text = Text(sentence)
    text.highlight_words([f" {word} "], style="bold yellow")
    return text


def neighbor_table(sentence: str, word: str, neighbors: list[Any]) -> Table:
    """The nearest words, each in its sentence."""
    table = Table(title=marked(sentence, word), title_justify="left", box=None, show_header=False, pad_edge=False)
    for neighbor in neighbors:
        text = Text()
        for position, each in enumerate(neighbor.words):
            text.append(f"{each} ", style="bold green" if position == neighbor.position else "")
        table.add_row(f"  {neighbor.similarity:.2f}", text)
    return table


def expectation_table(sentence: str, word: str, expected: Any) -> Table:
    """The words that the language model expects from the left, from the right and from both."""
    table = Table(title=marked(sentence, word), title_justify="left", box=None, show_header=False, pad_edge=False)
    for name, words in (("left", expected.left), ("right", expected.right), ("both", expected.combined)):
        table.add_row(f"  from {'the ' if name != 'both' else ''}{name}", ", ".join(each for each, _ in words))
    return table


def demo_sentences() -> list[str]:
    """Sentences of novels that the model has not read."""
    return OTHER_SENTENCES.read_text(encoding="utf-8").splitlines()
