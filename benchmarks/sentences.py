"""The sentences that the benchmarks read: real text, in file order."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

SHORTEST, LONGEST = 8, 60
SENTENCE_ENDS = frozenset(".!?")

Sentence = list[str]


def count_words(sentences: list[Sentence]) -> int:
    """Words of all sentences together."""
    return sum(map(len, sentences))


def batches(sentences: list[Sentence], size: int) -> list[list[Sentence]]:
    """The sentences in batches, in order."""
    return [sentences[start : start + size] for start in range(0, len(sentences), size)]


def take_words(sentences: list[Sentence], words: int) -> list[Sentence]:
    """As many sentences from the front as have at least so many words.

    Raises:
        ValueError: When all together have fewer.
    """
    taken: list[Sentence] = []
    count = 0
    for sentence in sentences:
        if count >= words:
            break
        taken.append(sentence)
        count += len(sentence)
    if count < words:
        raise ValueError(
            f"The text has only {count:,} words of sentences where {words:,} are needed; name a longer one."
        )
    return taken


class Text:
    """A text file, one paragraph a line, words apart.

    Args:
        path: The file.

    Raises:
        ValueError: When there is no such file.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ValueError(
                f"There is no text {path}; name one with --sentences, a paragraph a line, words at blanks."
            )
        self.path = path
        self.lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]

    def short_lines(self, count: int, skip: int = 0) -> list[Sentence]:
        """`count` lines of 8 to 60 words in file order, after the first `skip` of them.

        Raises:
            ValueError: When the file has fewer.
        """
        fitting = (line for line in self.lines if SHORTEST <= len(line) <= LONGEST)
        sentences = list(islice(fitting, skip, skip + count))
        if len(sentences) < count:
            raise ValueError(
                f"{self.path} has only {skip + len(sentences)} lines of {SHORTEST} to {LONGEST} words; "
                f"{skip + count} are needed."
            )
        return sentences

    def sentences(self) -> list[Sentence]:
        """All sentences of 8 to 60 words in file order: lines cut after full stops, question and exclamation marks."""
        return [sentence for line in self.lines for sentence in cut(line) if SHORTEST <= len(sentence) <= LONGEST]

    def stretches(self, words: int) -> list[Sentence]:
        """The text as sentences of exactly so many words, whatever stands there; a rest is dropped."""
        stream = [word for line in self.lines for word in line]
        return [stream[start : start + words] for start in range(0, len(stream) - words + 1, words)]


def cut(line: Sentence) -> Iterator[Sentence]:
    """The sentences of a line."""
    start = 0
    for index, word in enumerate(line):
        if word in SENTENCE_ENDS:
            yield line[start : index + 1]
            start = index + 1
    if start < len(line):
        yield line[start:]
