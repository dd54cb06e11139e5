"""Novels -> training text for a language model: one sentence a line, its words separated by blanks.

    python examples/prepare_novels.py litbank_text/train.tar.xz --output en.train.txt
    python examples/prepare_novels.py russian_text/train.tar.xz --output ru.train.xz --word-splitter punctuation

Reads archives (.tar, .tar.xz, .tar.gz) of plain text files, or such files themselves, work after work in the order of
their names, and keeps the order of the sentences. What it does to a text, and nothing else:

- Lines wrapped at a fixed width are joined into paragraphs: a blank line, or a deeper indentation, begins a new one.
  A text whose lines run on has one paragraph a line.
- Marks that are no words go: the underscores of emphasis (`_so_`), numbers of footnotes (`[12]`).
- A sentence ends at `.`, `!`, `?` or an ellipsis, with the quotes and brackets that close after it, where a blank and
  then a capital letter, a digit or an opening quote follow; a full stop after an abbreviation or an initial ends none.
- Words are split by one of the package's word splitters: `treebank` for English, `punctuation` for other languages.
"""

import argparse
import itertools
import lzma
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from hf_elmo.word_splitters_elmo import WORD_PATTERNS, build_word_splitter

ABBREVIATIONS = """
    mr mrs ms dr messrs mme mlle st prof rev hon gen col capt lt sgt maj gov sen rep jr sr esq co vol chap fig viz
    etc vs cf ed jan feb apr aug sept oct nov dec
    т е д г гг св см стр тыс руб коп им ул гл напр
"""
CLOSING = "\"'’”»)\\]"
OPENING = "\"'‘“„«(\\["
BREAK = re.compile(rf"([.!?…]+)[{CLOSING}]*\s+(?=(?:[-–—]+\s*)?[{OPENING}]*[A-ZÀ-ÞЀ-Я0-9])")
LAST_WORD = re.compile(r"[\w-]+$")
FOOTNOTE = re.compile(r"\s?\[\d+\]")
EMPHASIS = re.compile(r"(?<!\w)_+|_+(?!\w)")
# Lines longer than this are no wrapped lines.
WIDEST_WRAPPED_LINE = 100


def texts(paths: list[Path]) -> Iterator[str]:
    """The works in archives and text files."""
    for path in paths:
        if not tarfile.is_tarfile(path):
            yield path.read_text(encoding="utf-8")
            continue
        with tarfile.open(path) as archive:
            members = {member.name: member for member in archive.getmembers() if member.isfile()}
            works = {name: file.read() for name in members if (file := archive.extractfile(name)) is not None}
        for name in sorted(works):
            yield works[name].decode("utf-8")


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a work, each in one line."""
    lines = text.lstrip("\ufeff").splitlines()
    filled = [line for line in lines if line.strip()]
    is_wrapped = sum(len(line) > WIDEST_WRAPPED_LINE for line in filled) < len(filled) / 20
    indentations = Counter(indentation(line) for line in filled)
    usual = indentations.most_common(1)[0][0] if indentations else 0

    joined = ""
    for line in itertools.chain(lines, [""]):
        words = " ".join(line.split())
        if joined and (not words or not is_wrapped or indentation(line) > usual):
            yield joined
            joined = ""
        at_a_hyphen = re.search(r"\w-$", joined) is not None
        joined = joined + words if at_a_hyphen or not joined else f"{joined} {words}"


def indentation(line: str) -> int:
    """How many blanks a line begins with."""
    return len(line) - len(line.lstrip())


def sentences(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph."""
    text = EMPHASIS.sub("", FOOTNOTE.sub("", paragraph))
    start = 0
    for found in BREAK.finditer(text):
        if found.group(1) == "." and is_abbreviation(text[start : found.start()]):
            continue
        yield text[start : found.end()].strip()
        start = found.end()
    yield text[start:].strip()


def is_abbreviation(before: str) -> bool:
    """Whether the full stop after this text ends a word and not a sentence: after `Mr`, after an initial."""
    word = LAST_WORD.search(before)
    if word is None:
        return False
    is_initial = len(word.group()) == 1 and word.group().isupper() and word.group() != "I"
    return is_initial or word.group().lower() in ABBREVIATIONS.split()


def main() -> None:
    """Writes the sentences of all works to one file, which appears when it is complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path, help="archives of text files, or text files")
    parser.add_argument("--output", type=Path, required=True, help="the file to write, .txt or .xz")
    parser.add_argument("--word-splitter", choices=sorted(WORD_PATTERNS), default="treebank")
    arguments = parser.parse_args()

    splitter = build_word_splitter(arguments.word_splitter)
    opened = lzma.open if arguments.output.suffix == ".xz" else open
    unfinished = arguments.output.with_name(f".{arguments.output.name}.unfinished")
    count = words = 0
    try:
        with opened(unfinished, "wt", encoding="utf-8") as file:
            for text in tqdm(texts(arguments.sources), unit=" works"):
                for paragraph in paragraphs(text):
                    for sentence in sentences(paragraph):
                        tokens = [word for word, _ in splitter.pre_tokenize_str(sentence)]
                        if tokens:
                            file.write(" ".join(tokens) + "\n")
                            count, words = count + 1, words + len(tokens)
        os.replace(unfinished, arguments.output)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f"{arguments.output}: {count:,} sentences, {words:,} words")


if __name__ == "__main__":
    main()
