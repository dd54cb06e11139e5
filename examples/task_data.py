"""Files of labelled text -> `datasets`, without loading scripts: what the two recipes read.

| format | by the ending | columns of the data set |
|---|---|---|
| `csv`, `tsv` | .csv, .tsv, .txt | those of the header, or `column_names` |
| `json`, `parquet` | .json, .jsonl, .parquet | those of the file |
| `conll` | .conll, .bio, .iob2 | `tokens` (first column), `tags` (last column) |
| `conllu` | .conllu | `tokens`, `lemmas`, `upos`, `xpos`, `feats`, `deprel` |
| `srl` | (name it) | `tokens`, `tags`, `predicate` (its place from 0), `roleset`: an example a predicate |

Each may be packed as .gz, .xz or .bz2 and may end in a slice of its examples: `dev.conllu.xz[:-60]`.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from datasets import Dataset, DatasetDict, Features, List, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob2": "conll",
    ".conllu": "conllu",
}
SLICE = re.compile(r"(.+)\[(-?\d*):(-?\d*)\]")
# Columns of the CoNLL-U format, and what they are called in the data set.
CONLLU_COLUMNS = {"tokens": 1, "lemmas": 2, "upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
# Columns of the span files ahead of the columns of the predicates.
SRL_WORD, SRL_ROLESET, SRL_FIRST_PREDICATE = 1, 4, 5

WORDS = List(Value("string"))


class Sentence(NamedTuple):
    """The rows of one sentence.

    Attributes:
        rows: The columns of each word.
        line: The number of the first row in the file, from 1.
    """

    rows: list[list[str]]
    line: int


def open_text(path: Path) -> TextIO:
    """Opens a text file, packed or not."""
    return PACKED.get(path.suffix, open)(path, "rt", encoding="utf-8-sig")


def read_sentences(path: Path, comments: bool) -> Iterator[Sentence]:
    """The sentences of a file of columns; blank lines end them.

    Args:
        path: The file; columns are separated by tabs, or, in a line without a tab, by blanks.
        comments: Whether a line that begins with `#` is a comment. It cannot be one in files whose first column is a
            word, where hashtags stand.

    Raises:
        ValueError: The file is not UTF-8, or the rows of a sentence have different numbers of columns.
    """
    rows: list[list[str]] = []
    first = number = 0
    with open_text(path) as lines:
        try:
            for number, line in enumerate(lines, start=1):
                line = line.rstrip("\r\n")
                if not line.strip():
                    if rows:
                        yield Sentence(rows, first)
                    rows = []
                    continue
                if comments and line.startswith("#"):
                    continue
                columns = line.split("\t") if "\t" in line else line.split()
                if columns[0] == "-DOCSTART-":
                    continue
                first = first if rows else number
                if rows and len(columns) != len(rows[0]):
                    raise ValueError(
                        f"Line {number} of {path} has {len(columns)} columns, but line {first}, where its sentence "
                        f"begins, has {len(rows[0])}."
                    )
                rows.append(columns)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not valid UTF-8 after line {number}; convert it to UTF-8.") from error
    if rows:
        yield Sentence(rows, first)


def conll_examples(path: Path) -> Iterator[dict[str, Any]]:
    """Sentences of words (first column) and tags (last column).

    Raises:
        ValueError: There is one column only.
    """
    for rows, line in read_sentences(path, comments=False):
        if len(rows[0]) < 2:
            raise ValueError(f"Line {line} of {path} has one column; a word and its tag are needed.")
        yield {"tokens": [row[0] for row in rows], "tags": [row[-1] for row in rows]}


def conllu_examples(path: Path) -> Iterator[dict[str, Any]]:
    """Sentences of the words of a treebank: rows of multiword tokens (`4-5`) and empty nodes (`8.1`) are left out.

    Raises:
        ValueError: There are not ten columns.
    """
    for rows, line in read_sentences(path, comments=True):
        if len(rows[0]) < 10:
            raise ValueError(f"Line {line} of {path} has {len(rows[0])} columns; CoNLL-U has ten.")
        words = [row for row in rows if row[0].isdigit()]
        yield {name: [row[place] for row in words] for name, place in CONLLU_COLUMNS.items()}


def srl_examples(path: Path) -> Iterator[dict[str, Any]]:
    """Sentences of words with the BIO labels of one predicate; a sentence comes once for each of its predicates.

    Raises:
        ValueError: A sentence has not as many columns of labels as predicates.
    """
    for rows, line in read_sentences(path, comments=True):
        if len(rows[0]) < SRL_FIRST_PREDICATE:
            raise ValueError(
                f"Line {line} of {path} has {len(rows[0])} columns; index, word, UPOS, XPOS, roleset and one for each "
                "predicate are needed."
            )
        predicates = [place for place, row in enumerate(rows) if row[SRL_ROLESET] != "_"]
        count = len(rows[0]) - SRL_FIRST_PREDICATE
        if len(predicates) != count:
            raise ValueError(
                f"The sentence at line {line} of {path} has {len(predicates)} predicates (column 5), but {count} "
                "columns of labels."
            )
        tokens = [row[SRL_WORD] for row in rows]
        for number, place in enumerate(predicates):
            yield {
                "tokens": tokens,
                "tags": [row[SRL_FIRST_PREDICATE + number] for row in rows],
                "predicate": place,
                "roleset": rows[place][SRL_ROLESET],
            }


class ColumnFormat(NamedTuple):
    """A format of columns: what reads it, and what the data set then has."""

    examples: Callable[[Path], Iterator[dict[str, Any]]]
    features: Features


COLUMN_FORMATS = {
    "conll": ColumnFormat(conll_examples, Features({"tokens": WORDS, "tags": WORDS})),
    "conllu": ColumnFormat(conllu_examples, Features(dict.fromkeys(CONLLU_COLUMNS, WORDS))),
    "srl": ColumnFormat(
        srl_examples,
        Features({"tokens": WORDS, "tags": WORDS, "predicate": Value("int32"), "roleset": Value("string")}),
    ),
}
ALL_FORMATS = ("csv", "tsv", "json", "parquet", *COLUMN_FORMATS)


def column_examples(path: str, file_format: str, stamp: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """The examples of a file of columns; `stamp` is there so that `datasets` reads a file again that was changed.

    Raises:
        ValueError: There are none.
    """
    is_empty = True
    for example in COLUMN_FORMATS[file_format].examples(Path(path)):
        is_empty = False
        yield example
    if is_empty:
        raise ValueError(f"{path} holds no examples.")


def load_file(
    name: str,
    file_format: str | None = None,
    column_names: Sequence[str] | None = None,
    cache_dir: str | None = None,
) -> Dataset:
    """One file as a data set, in the cache of `datasets`.

    Args:
        name: The file, and a slice of its examples if wanted: `dev.conllu.xz[:-60]`.
        file_format: One of `ALL_FORMATS`; by default what the ending says.
        column_names: The columns of a CSV or TSV file without a header.
        cache_dir: The cache; by default that of `datasets`.

    Raises:
        ValueError: There is no such file, its format is unknown, or it is not of its format.
    """
    path, part = Path(name), slice(None)
    if not path.exists() and (match := SLICE.fullmatch(name)):
        path = Path(match[1])
        part = slice(*(int(number) if number else None for number in match.groups()[1:]))
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    suffix = path.with_suffix("").suffix if path.suffix in PACKED else path.suffix
    file_format = file_format or FORMATS.get(suffix.lower())
    if file_format not in ALL_FORMATS:
        raise ValueError(f"The format of {path} is unknown; name it, one of {', '.join(ALL_FORMATS)}.")
    try:
        dataset = _load(path, file_format, column_names, cache_dir)
    except DatasetGenerationError as error:
        cause = error.__cause__ or error
        if isinstance(cause, ValueError) and path.name in str(cause):
            raise cause from error
        raise ValueError(f"{path} cannot be read as {file_format}: {cause}") from error
    if part == slice(None):
        return dataset
    places = range(len(dataset))[part]
    if not places:
        raise ValueError(f"The slice at the end of {name} leaves none of the {len(dataset)} examples.")
    return dataset.select(places)


def _load(path: Path, file_format: str, column_names: Sequence[str] | None, cache_dir: str | None) -> Dataset:
    if file_format in COLUMN_FORMATS:
        status = path.stat()
        return Dataset.from_generator(
            column_examples,
            features=COLUMN_FORMATS[file_format].features,
            cache_dir=cache_dir,
            gen_kwargs={
                "path": str(path.resolve()),
                "file_format": file_format,
                "stamp": (status.st_size, status.st_mtime_ns),
            },
        )
    options: dict[str, Any] = {}
    if file_format in ("csv", "tsv"):
        # A word may be NA or null; a quotation mark in a TSV file is a word like any other.
        options["keep_default_na"] = False
        if column_names:
            options["column_names"] = list(column_names)
        if file_format == "tsv":
            options.update(sep="\t", quoting=csv.QUOTE_NONE)
    builder = "csv" if file_format == "tsv" else file_format
    return load_dataset(builder, data_files=str(path), split="train", cache_dir=cache_dir, **options)


def load_files(files: dict[str, str | None], *options: Any) -> DatasetDict:
    """A data set for each name of a split; those without a file are left out. The options are those of `load_file`."""
    return DatasetDict({split: load_file(name, *options) for split, name in files.items() if name})
