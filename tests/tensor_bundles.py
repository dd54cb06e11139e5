"""Writes TensorFlow's checkpoint format without TensorFlow and without the package's reader, whole or spoiled."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c
import numpy as np

MAGIC = 0xDB4775248B80FB57
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "bool": 10, "bfloat16": 14, "float16": 19}


def varint(value: int) -> bytes:
    """A number, seven bits a byte."""
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def number_field(number: int, value: int) -> bytes:
    """A number in a protocol buffer; zeros are left out, as its writers do."""
    return varint(number << 3) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def checksum(content: bytes) -> bytes:
    value = google_crc32c.value(content)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) % 2**32)


def header(num_shards: int = 1, endianness: int = 0) -> bytes:
    return number_field(1, num_shards) + number_field(2, endianness) + bytes_field(3, number_field(1, 1))


@dataclass
class BundleEntry:
    """What the index says of a tensor; any of it may be wrong."""

    dtype: int
    shape: Sequence[int]
    content: bytes
    shard: int = 0
    offset: int = 0
    size: int | None = None
    extra: bytes = b""

    def encode(self) -> bytes:
        shape = b"".join(bytes_field(2, number_field(1, size)) for size in self.shape)
        size = len(self.content) if self.size is None else self.size
        return (
            number_field(1, self.dtype)
            + bytes_field(2, shape)
            + number_field(3, self.shard)
            + number_field(4, self.offset)
            + number_field(5, size)
            + b"\x35"
            + checksum(self.content)
            + self.extra
        )


@dataclass
class Table:
    """A sorted string table.

    Attributes:
        block_size: Pairs a block.
        restart_interval: Pairs after which a key is written whole.
        kind: The compression that the blocks claim.
    """

    block_size: int = 8
    restart_interval: int = 4
    kind: int = 0
    content: bytearray = field(default_factory=bytearray)

    def write(self, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
        handles = []
        for start in range(0, len(pairs), self.block_size):
            block = pairs[start : start + self.block_size]
            handles.append((block[-1][0], self.add_block(block, self.kind)))
        meta, index = self.add_block([], 0), self.add_block(handles, 0)
        self.content += (meta + index).ljust(40, b"\0") + struct.pack("<Q", MAGIC)
        return bytes(self.content)

    def add_block(self, pairs: Sequence[tuple[bytes, bytes]], kind: int) -> bytes:
        block, restarts, last = bytearray(), [], b""
        for position, (key, value) in enumerate(pairs):
            shared = 0
            if position % self.restart_interval == 0:
                restarts.append(len(block))
            else:
                while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                    shared += 1
            block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
            last = key
        restarts = restarts or [0]
        block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + bytes([kind])
        handle = varint(len(self.content)) + varint(len(block) - 1)
        self.content += block + checksum(bytes(block))
        return handle


def write_index(prefix: Path, entries: Mapping[str, BundleEntry], first: bytes | None = None, **table: int) -> Path:
    """Writes `PREFIX.index`; `first` is the header."""
    pairs = [(name.encode(), entry.encode()) for name, entry in entries.items()]
    path = prefix.with_name(f"{prefix.name}.index")
    path.write_bytes(Table(**table).write([(b"", header() if first is None else first), *sorted(pairs)]))
    return path


def write_bundle(prefix: Path, tensors: Mapping[str, np.ndarray], num_shards: int = 1, **table: int) -> Path:
    """Writes a whole bundle, its tensors spread over the shards, and returns the prefix.

    Arrays of uint16 are taken as bfloat16.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    shards = [bytearray() for _ in range(num_shards)]
    entries = {}
    for position, (name, array) in enumerate(sorted(tensors.items())):
        array = np.asarray(array)
        shard = position % num_shards
        dtype = DTYPES["bfloat16" if array.dtype == np.uint16 else array.dtype.name]
        content = array.astype(array.dtype.newbyteorder("<")).tobytes()
        entries[name] = BundleEntry(dtype, array.shape, content, shard, len(shards[shard]))
        shards[shard] += content
    for shard, data in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}").write_bytes(data)
    write_index(prefix, entries, header(num_shards), **table)
    return prefix
