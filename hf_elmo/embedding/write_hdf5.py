"""HDF5 in the layouts of `allennlp elmo` and of ELMoForManyLangs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .shards import UNFINISHED
from .write_safetensors import OpenShard, SafetensorsShards

# Beyond this many bytes the index of sentences is left out: programs read it in one piece, as an array of NumPy.
MOST_INDEXED = (1 << 31) - 1
# Groups of HDF5 1.8 (2008) on: those before grow in memory with the number of keys.
LIBRARIES = ("v108", "v108")
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
        place = None
        with SentenceIndex(output.with_name(SENTENCE_TO_INDEX + UNFINISHED)) as index:
            with h5py.File(output, "w", libver=LIBRARIES) as file:
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
                if by_number:
                    index.finish()
                    if index.size <= MOST_INDEXED:
                        place = reserved_text(file, SENTENCE_TO_INDEX, index.size)
            if place is not None:
                index.copy_to(output, place)


def reserved_text(file: Any, name: str, size: int) -> int:
    """Makes a dataset of one text of so many bytes, still to be written; returns where it stands in the file.

    HDF5 takes a text in one piece, and this one grows with the corpus, so it is copied into its place instead.
    """
    import h5py

    text = h5py.h5t.C_S1.copy()
    text.set_size(size)
    text.set_strpad(h5py.h5t.STR_NULLPAD)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    dataset = h5py.h5d.create(file.id, name.encode("ascii"), text, h5py.h5s.create_simple((1,)), properties)
    place = dataset.get_offset()
    assert place is not None
    return int(place)


def tab_key(words: list[str]) -> str:
    """The key of a sentence in ELMoForManyLangs' layout; HDF5 has no name with a zero character in it."""
    key = "\t".join(words).replace(".", "$period$").replace("/", "$backslash$")
    return key.replace("\0", "$null$")


class SentenceIndex:
    """The text of each line -> its key, as JSON in a file; of a text that comes again a reader of JSON keeps the last.

    Args:
        path: The file, which is removed at the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0

    def __enter__(self) -> SentenceIndex:
        self._file = self.path.open("w+b")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    def add(self, text: str, key: str) -> None:
        """Adds a line."""
        self._write(f"{', ' if self.size else '{'}{json.dumps(text)}: {json.dumps(key)}")

    def finish(self) -> None:
        """Makes it whole."""
        self._write("}" if self.size else "{}")

    def _write(self, text: str) -> None:
        if self.size <= MOST_INDEXED:
            self._file.write(text.encode("ascii"))
            self.size += len(text)

    def copy_to(self, output: Path, place: int) -> None:
        """Writes all of it into a file, from a place on."""
        self._file.seek(0)
        with output.open("r+b") as file:
            file.seek(place)
            shutil.copyfileobj(self._file, file, 1 << 20)
