"""Shards of safetensors: the vectors of all words, one after the other, and where each line begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .formats import OutputFormat
from .shards import EmbeddedChunk, ShardRecord, as_bytes, write_json

# The names of types in the header of a file.
_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}
_RECORD = "record"


class SafetensorsShards(OutputFormat):
    """Formats whose shards are safetensors.

    A shard has a tensor (words, dim) for each column, or (lines, dim) where pooled; `offsets` (lines + 1), the rows
    of line i being offsets[i] to offsets[i + 1]; and `words` and `texts`, each JSON (a list with an entry a line) as
    bytes. Its metadata has the record.
    """

    shard_ending = ".safetensors"

    def write_shard(self, path: Path, chunk: EmbeddedChunk) -> None:
        """Writes a chunk."""
        tensors = dict(chunk.vectors)
        if chunk.offsets is not None:
            tensors["offsets"] = torch.from_numpy(chunk.offsets.astype(np.int64))
        tensors["texts"], tensors["words"] = json_bytes(chunk.texts), json_bytes(chunk.words)
        write_safetensors(path, tensors, {_RECORD: chunk.record.to_json()})

    def read_record(self, path: Path) -> ShardRecord:
        """Reads the metadata."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="np") as shard:
                return ShardRecord.from_json(shard.metadata()[_RECORD])
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no whole shard: {error}") from error


class SafetensorsFormat(SafetensorsShards):
    """A folder of such shards, and `index.json`, which says which lines are in which."""

    name = "safetensors"
    ending = ".safetensors"
    dtypes = ("float32", "float16", "bfloat16")
    may_keep_shards = True
    may_merge = False

    def complete_folder(self, folder: Path, shards: list[Path], about: dict[str, Any]) -> None:
        """Writes the index."""
        entries = []
        for shard in shards:
            record = self.read_record(shard)
            entries.append({"file": shard.name, "first_line": record.first_line, "lines": record.lines})
        write_json(folder / "index.json", {"shards": entries})


class OpenShard:
    """A shard, read piece by piece.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        with safe_open(path, framework="pt") as shard:
            self.tensors: dict[str, torch.Tensor] = {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
            self.record = ShardRecord.from_json(shard.metadata()[_RECORD])
        self.texts: list[str] = json.loads(bytes(self.tensors.pop("texts").numpy()))
        self.words: list[list[str]] = json.loads(bytes(self.tensors.pop("words").numpy()))
        self.offsets = self.tensors.pop("offsets").tolist() if "offsets" in self.tensors else None
        self.errors = dict(self.record.skipped)

    def vectors(self, line: int, columns: list[str], layer_axis: bool) -> np.ndarray:
        """The vectors of a line of the shard, counted from 0 in it, as `ElmoEmbedder.embed` gives them."""
        rows = line if self.offsets is None else slice(self.offsets[line], self.offsets[line + 1])
        parts = [self.tensors[column][rows].numpy() for column in columns]
        return np.stack(parts) if layer_axis else parts[0]


def json_bytes(content: Any) -> torch.Tensor:
    """JSON as a tensor of bytes."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Writes a safetensors file whose bytes depend on the content alone, metadata included.

    The library's own writer gives the metadata in any order, and dies without an exception on a full disk.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    # The widest types first, as the library writes them: so each tensor begins at a multiple of its item size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in names:
        start, end = end, end + tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": _TYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            if tensors[name].numel():
                file.write(as_bytes(tensors[name]))
