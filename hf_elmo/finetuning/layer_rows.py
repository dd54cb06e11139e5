"""A tokenized data set, read in windows: the words of its rows and the texts that they are, and rows with layers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..embedding.batching import grouped

if TYPE_CHECKING:
    from datasets import Dataset, Features

LAYERS, IDS, MASK, TYPES = "layers", "input_ids", "attention_mask", "token_type_ids"
WORDS, LENGTH = "word_input_ids", "length"
SHARD_ROWS = 10_000


@dataclass(frozen=True)
class Reads:
    """What a model reads, and how much it computes.

    Attributes:
        characters: Character ids of a word.
        begin_sentence: The character id that marks `<S>`.
        end_sentence: The character id that marks `</S>`.
        has_begin: Whether a head takes the first word of a text for `<S>`.
        has_end: Whether a head takes the last word of a text for `</S>`.
        word_ids: Whether it reads `word_input_ids`.
        pairs: Whether a row may hold a pair of texts, which are read one by one.
        layers_size: Numbers of all layers of a word, P + 2PL.
    """

    characters: int
    begin_sentence: int
    end_sentence: int
    has_begin: bool
    has_end: bool
    word_ids: bool
    pairs: bool
    layers_size: int


@dataclass(frozen=True)
class Rows:
    """Some rows of a data set, their words one after the other.

    Attributes:
        table: The rows as they are, without `input_ids`.
        offsets: Where the words of each row begin, and the end: shape (rows + 1,).
        ids: The character ids of all words, shape (words, characters), int32.
        mask: Whether a word is none of padding, shape (words,).
        second: Whether a word is of the second text of a pair, shape (words,).
        word_ids: The word ids, shape (words,), or None.
    """

    table: Any
    offsets: np.ndarray
    ids: np.ndarray
    mask: np.ndarray
    second: np.ndarray
    word_ids: np.ndarray | None

    def positions_of_texts(self) -> list[np.ndarray]:
        """For each text the places of its words; padding belongs to none."""
        texts = 2 * row_of_each_word(self.offsets) + self.second
        words = np.flatnonzero(self.mask)
        words = words[texts[words].argsort(kind="stable")]
        return np.split(words, np.flatnonzero(np.diff(texts[words])) + 1) if len(words) else []

    def fingerprint(self) -> str:
        """The SHA-256 of all that the rows hold."""
        found = hashlib.sha256(self.ids.tobytes())
        found.update(self.offsets.tobytes())
        for field in self.table.schema:
            found.update(f"{field.name} {field.type}\n".encode())
            found.update(json.dumps(self.table[field.name].to_pylist(), default=plain).encode("ascii"))
        return found.hexdigest()


def plain(value: Any) -> str:
    """What JSON does not have, as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


class Split:
    """A data set that is read in windows.

    Args:
        dataset: The data set.
        name: The name of the split; None for a data set without splits.
        reads: What the model reads.

    Raises:
        ValueError: It is not tokenized for this model.
    """

    def __init__(self, dataset: Dataset, name: str | None, reads: Reads) -> None:
        self.dataset = dataset
        self.title = "the data set" if name is None else f"the split {name!r}"
        self.reads = reads
        columns = dataset.column_names
        missing = [column for column in (IDS, *([WORDS] if reads.word_ids else [])) if column not in columns]
        if missing:
            raise ValueError(
                f"{sentence_case(self.title)} has no column {' and no column '.join(missing)}: tokenize it first, "
                f"with the tokenizer of the model, through `map`; its columns are {', '.join(columns)}."
            )
        if LAYERS in columns:
            raise ValueError(f"{sentence_case(self.title)} has a column `layers` already: remove it, or use it.")
        self.lengths = self._lengths()

    def _lengths(self) -> np.ndarray:
        """The words of each row, padding included."""
        ids = self.dataset.select_columns([IDS]).with_format("arrow")
        found = [self._list(table, IDS, 0)[0] for table in ids.iter(1000)] if len(ids) else []
        return np.concatenate([np.zeros(0, dtype=np.int64), *found])

    def windows(self, most_words: int) -> list[range]:
        """The rows in windows of so many words; one at least, so that no data set is without a file."""
        groups = grouped(range(len(self.lengths)), SHARD_ROWS, most_words, lambda row: int(self.lengths[row]))
        return [range(group[0], group[-1] + 1) for group in groups] or [range(0)]

    def read(self, window: range) -> Rows:
        """Reads a window.

        Raises:
            ValueError: A row does not fit the model, or its columns each other.
        """
        first, characters = window.start, self.reads.characters
        table = self.dataset.with_format("arrow")[window.start : window.stop]
        lengths, words = self._list(table, IDS, first)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        ids = np.zeros((0, characters), dtype=np.int32)
        if len(words):
            widths, values = flat_list(words)
            if widths is None or (widths != characters).any():
                row = (
                    0
                    if widths is None
                    else int(np.searchsorted(offsets, np.argmax(widths != characters), "right")) - 1
                )
                raise ValueError(
                    f"Row {first + row} of {self.title} holds `input_ids` that are no rows of {characters} "
                    "characters: tokenize it with the tokenizer of the model."
                )
            ids = values.to_numpy(zero_copy_only=False).astype(np.int32).reshape(-1, characters)
        given = {name: self._numbers(table, name, lengths, first) for name in (MASK, TYPES, WORDS)}
        marks = given[MASK]
        mask = np.asarray((ids if marks is None else marks[:, np.newaxis]).any(axis=1))
        others = table.drop_columns([IDS])
        second = self._second(offsets, ids, mask, given[TYPES])
        rows = Rows(others, offsets, ids, mask, second, given[WORDS])
        self._check_boundaries(rows, first)
        return rows

    def _second(self, offsets: np.ndarray, ids: np.ndarray, mask: np.ndarray, types: np.ndarray | None) -> np.ndarray:
        """As of `Rows`, told as the heads tell it: by `token_type_ids` or, without these, by another `<S>`."""
        if not self.reads.pairs:
            return np.zeros_like(mask)
        if types is not None:
            return mask & (types != 0)
        begins = np.concatenate(([0], np.cumsum(mask & (ids[:, 1] == self.reads.begin_sentence))))
        return mask & (begins[1:] - np.repeat(begins[offsets[:-1]], np.diff(offsets)) > 1)

    def _check_boundaries(self, rows: Rows, first: int) -> None:
        """Refuses rows of which a head that has layers alone could not tell where the boundaries are.

        A head takes the first and the last word of each text for them.
        """
        texts = rows.positions_of_texts()
        if not texts:
            return
        words, ends = np.concatenate(texts), np.cumsum([len(text) for text in texts])
        expected = np.zeros(len(words), dtype=bool)
        expected[np.concatenate(([0], ends[:-1]))] = self.reads.has_begin
        expected[ends - 1] |= self.reads.has_end
        found = np.isin(rows.ids[words, 1], [self.reads.begin_sentence, self.reads.end_sentence])
        wrong = words[found != expected]
        if not len(wrong):
            return
        row = first + int(np.searchsorted(rows.offsets, wrong[0], "right")) - 1
        if TYPES in rows.table.column_names and rows.second[wrong].any():
            raise ValueError(
                f"In row {row} of {self.title} `token_type_ids` do not tell a second text with boundaries of its own: "
                "where they tell the predicate, give the tagger itself as the model."
            )
        raise ValueError(
            f"In row {row} of {self.title} the boundaries <S> and </S> are not just at the ends of texts, where a "
            "head looks for them that has layers alone: leave them out of the texts themselves, and tokenize as the "
            "`bos_token_id` and the `eos_token_id` of the model say, with boundaries or, where they are None, without."
        )

    def _list(self, table: Any, name: str, first: int) -> tuple[np.ndarray, Any]:
        """The lengths of the lists of a column, and their items one after the other."""
        lengths, items = flat_list(table[name])
        if lengths is None:
            raise ValueError(
                f"The column {name} of {self.title}, behind row {first}, has rows without a list: tokenize it with "
                "the tokenizer of the model."
            )
        return lengths, items

    def _numbers(self, table: Any, name: str, lengths: np.ndarray, first: int) -> np.ndarray | None:
        """A column with a number for each word, if there is one."""
        if name not in table.column_names:
            return None
        found, numbers = self._list(table, name, first)
        if (found != lengths).any():
            row = int(np.argmax(found != lengths))
            raise ValueError(
                f"Row {first + row} of {self.title} has {lengths[row]} words in `input_ids`, but {found[row]} in "
                f"`{name}`."
            )
        return numbers.to_numpy(zero_copy_only=False).astype(np.int64)

    def features(self, dtype: str) -> Features:
        """The columns of the output."""
        from datasets import Array2D, Features, List, Value

        kept = {name: feature for name, feature in self.dataset.features.items() if name not in (IDS, LENGTH)}
        kept.setdefault(MASK, List(Value("int8")))
        if self.reads.pairs:
            kept.setdefault(TYPES, List(Value("int8")))
        # Array2D is read back without a Python object for each number, or each word.
        layers = Array2D(shape=(None, self.reads.layers_size), dtype=dtype)
        return Features({**kept, LENGTH: Value("int32"), LAYERS: layers})

    def table_of(self, rows: Rows, layers: np.ndarray, schema: Any) -> Any:
        """The rows of the output.

        Raises:
            ValueError: They are too many for Arrow.
        """
        import pyarrow as pa

        if layers.size >= 1 << 31:
            raise ValueError(
                f"{len(layers):,} words are too many for one shard: take a smaller shard_words, or shorter texts."
            )
        offsets = pa.array(rows.offsets.astype(np.int32))
        columns = {name: rows.table[name] for name in rows.table.column_names if name != LENGTH}
        columns.setdefault(MASK, pa.ListArray.from_arrays(offsets, pa.array(rows.mask.astype(np.int8))))
        columns.setdefault(TYPES, pa.ListArray.from_arrays(offsets, pa.array(rows.second.astype(np.int8))))
        columns[LENGTH] = pa.array(np.diff(rows.offsets).astype(np.int32))
        of_words = pa.array((np.arange(len(layers) + 1) * self.reads.layers_size).astype(np.int32))
        numbers = pa.ListArray.from_arrays(of_words, pa.array(layers.reshape(-1)))
        stored = pa.ListArray.from_arrays(offsets, numbers)
        columns[LAYERS] = pa.ExtensionArray.from_storage(schema.field(LAYERS).type, stored)
        arrays = [columns[field.name] for field in schema]
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema)


def row_of_each_word(offsets: np.ndarray) -> np.ndarray:
    """The number of the row of each word."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def sentence_case(text: str) -> str:
    """A text that begins a sentence."""
    return text[:1].upper() + text[1:]


def flat_list(column: Any) -> tuple[np.ndarray | None, Any]:
    """The lengths of the lists of an Arrow column, None where it holds anything else, and their items in a row."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        chunks = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks]
        column = pa.concat_arrays(chunks) if chunks else pa.array([], column.type)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    types = pa.types
    if not any(is_kind(column.type) for is_kind in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        return (np.zeros(0, dtype=np.int64) if not len(column) else None), column
    if column.null_count:
        return None, column
    import pyarrow.compute as pc

    return pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64), column.flatten()


__all__ = ["Reads", "Rows", "Split"]
