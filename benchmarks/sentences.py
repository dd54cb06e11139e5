"""The sentences that the benchmarks read: real text, in file order."""

from itertools import islice
from pathlib import Path

SHORTEST, LONGEST = 8, 60


def read_sentences(path: Path, count: int) -> list[list[str]]:
    """The first `count` lines of `path` with 8 to 60 words, split at blanks.

    Raises:
        ValueError: When the file has fewer.
    """
    with path.open(encoding="utf-8") as lines:
        split = (line.split() for line in lines)
        sentences = list(islice((words for words in split if SHORTEST <= len(words) <= LONGEST), count))
    if len(sentences) < count:
        raise ValueError(
            f"{path} has only {len(sentences)} lines of {SHORTEST} to {LONGEST} words; {count} are needed."
        )
    return sentences


def batches(sentences: list[list[str]], size: int) -> list[list[list[str]]]:
    """The sentences in batches, in order."""
    return [sentences[start : start + size] for start in range(0, len(sentences), size)]
