"""How fast the tokenizer turns words into character ids: python benchmarks/tokenizer_speed.py [FILE]."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_elmo.character_ids_elmo import words_to_rows
from hf_elmo.tokenization_elmo import ElmoTokenizer
from hf_elmo.word_splitters_elmo import WORD_PATTERNS

DEFAULT_FILE = Path(__file__).resolve().parents[2] / "shared" / "data" / "wikitext2" / "valid.txt"


def best_time(action: Callable[[], Any], repeats: int) -> float:
    """The shortest of several runs, in seconds: the others waited for something else."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def main(
    file: Annotated[Path, typer.Argument(help="A text, one sentence or paragraph a line.")] = DEFAULT_FILE,
    batch_size: Annotated[int, typer.Option(help="Lines in one call.")] = 1000,
    repeats: Annotated[int, typer.Option(help="Runs of which the best counts.")] = 5,
) -> None:
    """Prints words a second, from words or text to ids, in one process."""
    texts = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    lists = [text.split() for text in texts]
    words = [word for line in lists for word in line]
    typer.echo(f"{file}: {len(texts):,} lines, {len(words):,} words; {batch_size} lines a call, best of {repeats}")

    def report(label: str, action: Callable[[], Any], count: int = len(words), unit: str = "words/s") -> None:
        typer.echo(f"{label:<58}{count / best_time(action, repeats):>14,.0f} {unit}")

    def in_batches(tokenizer: ElmoTokenizer, batch: Sequence[Any], **options: Any) -> None:
        for start in range(0, len(batch), batch_size):
            tokenizer(batch[start : start + batch_size], **options)

    tokenizer = ElmoTokenizer()
    split: dict[str, Any] = {"is_split_into_words": True}
    report("one step: words_to_rows(words)", lambda: words_to_rows(words, 50, tokenizer.boundaries))
    typer.echo("lists of words, the whole call: tokenizer(lists, is_split_into_words=True)")
    report("  as it is", lambda: in_batches(tokenizer, lists, **split))
    report("  and the Rust encodings of every line", lambda: all_encodings(tokenizer, lists))
    report("  return_offsets_mapping=True", lambda: in_batches(tokenizer, lists, return_offsets_mapping=True, **split))
    cut = {"truncation": True, "max_length": 20, **split}
    kept = sum(min(len(line), 18) for line in lists)
    report("  truncation=True, max_length=20 (words kept)", lambda: in_batches(tokenizer, lists, **cut), kept)
    report("  one line a call", lambda: [tokenizer(line, **split) for line in lists])
    padded = {"padding": True, "return_tensors": "pt", **split}
    ordered = sorted(lists, key=len)
    report(
        "  padding=True, return_tensors='pt', lines sorted by length", lambda: in_batches(tokenizer, ordered, **padded)
    )
    typer.echo("texts, the whole call: tokenizer(texts)")
    for name in WORD_PATTERNS:
        splitter = ElmoTokenizer(name)
        found = sum(len(splitter.tokenize(text)) for text in texts)
        report(f"  {name} ({found:,} words)", lambda tokenizer=splitter: in_batches(tokenizer, texts), found)  # type: ignore[misc]


def all_encodings(tokenizer: ElmoTokenizer, lists: Sequence[Sequence[str]]) -> None:
    """Encodes lists of words and asks for what is otherwise made on demand."""
    encodings = tokenizer(lists, is_split_into_words=True).encodings or []
    list(encodings)


if __name__ == "__main__":
    typer.run(main)
