"""HDF5 in the layouts of `allennlp elmo` and of ELMoForManyLangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .write_safetensors import OpenShard, SafetensorsShards

# Beyond this many letters the index of sentences, which HDF5 takes in one piece, is left out.
MOST_INDEXED = 1 << 30
SENTENCE_TO_INDEX = "sentence_to_index"


class Hdf5Format(SafetensorsShards):
    """One file with a dataset for each line.

    AllenNLP's layout: the keys are the numbers of the lines, from 0, and `sentence_to_index` holds JSON, the text of
    a line -> its key, the last one where a text is there twice. A blank line has no words, and a line that was
    skipped has none either, with the reason as the attribute `error`; so the number of keys is that of the lines.

    ELMoForManyLangs' layout: the keys are the words of a line with tabs between them, `.` and `/` replaced as there;
    of equal lines the first is kept, and lines without words are left out.
    """

    name = "HDF5"
    ending = ".hdf5"

    def merge(self, shards: list[Path], output: Path, about: dict[str, Any]) -> Iterator[int]:
        """Writes the file."""
        import h5py

        columns, layer_axis = self.shape.columns, self.shape.layer_axis
        by_number = self.layout == "allennlp"
        index = SentenceIndex()
        with h5py.File(output, "w") as file:
            for done, path in enumerate(shards, start=1):
                shard = OpenShard(path)
                for line, text in enumerate(shard.texts):
                    number = shard.record.first_line + line
                    key = str(number) if by_number else tab_key(shard.words[line])
                    if not by_number and (not shard.words[line] or number in shard.errors or key in file):
                        continue
                    dataset = file.create_dataset(
                        key, data=shard.vectors(line, columns, layer_axis), track_times=False
                    )
                    if number in shard.errors:
                        dataset.attrs["error"] = shard.errors[number]
                    elif by_number:
                        index.add(text, key)
                yield done
            if by_number and index.fits:
                dataset = file.create_dataset(
                    SENTENCE_TO_INDEX, (1,), dtype=h5py.string_dtype("utf-8"), track_times=False
                )
                dataset[0] = index.to_json()


def tab_key(words: list[str]) -> str:
    """The key of a sentence in ELMoForManyLangs' layout; HDF5 has no name with a zero character in it."""
    key = "\t".join(words).replace(".", "$period$").replace("/", "$backslash$")
    return key.replace("\0", "$null$")


class SentenceIndex:
    """The text of each line -> its key, as JSON; where a text comes again, a reader of JSON keeps the last key."""

    def __init__(self) -> None:
        self._entries: list[str] = []
        self._size = 0

    def add(self, text: str, key: str) -> None:
        """Adds a line, while there is room."""
        self._size += len(text)
        if self.fits:
            self._entries.append(f"{json.dumps(text)}: {json.dumps(key)}")
        else:
            self._entries.clear()

    @property
    def fits(self) -> bool:
        """Whether the index is small enough to be written."""
        return self._size <= MOST_INDEXED

    def to_json(self) -> str:
        """All of it."""
        return "{" + ", ".join(self._entries) + "}"
