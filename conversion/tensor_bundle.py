"""Reads TensorFlow's checkpoint format "TensorBundle" (version 2) without TensorFlow.

A bundle is an index, `PREFIX.index`, and data shards, `PREFIX.data-00000-of-00001`. The index is a sorted string table
as LevelDB writes it: blocks of (key, value) pairs in which a key leaves out what it shares with the key before. Its
values are small protocol buffers that say where in which shard a tensor lies.

Source: `tensorflow/core/protobuf/tensor_bundle.proto`, `tensorflow/core/util/tensor_bundle`,
`tensorflow/core/lib/io/table_format.txt`.
"""

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from .checkpoint import FloatArray, StoredTensor
from .errors import ConversionError

INDEX_SUFFIX = ".index"

FOOTER_SIZE = 48
MAGIC = 0xDB4775248B80FB57
BLOCK_TRAILER_SIZE = 5
UNCOMPRESSED, SNAPPY = 0, 1
HEADER_KEY = b""

LARGEST_INDEX = 2**23
LARGEST_KEY = 1024
LARGEST_COUNT = 50_000
LARGEST_RANK = 32
"""Bounds far beyond any language model, so that a damaged index cannot ask for endless work."""

# tensorflow/core/framework/types.proto: name and bytes a number; those without a size are never read.
TYPES = {
    1: ("float32", 4),
    2: ("float64", 8),
    3: ("int32", 4),
    4: ("uint8", 1),
    5: ("int16", 2),
    6: ("int8", 1),
    7: ("string", None),
    8: ("complex64", 8),
    9: ("int64", 8),
    10: ("bool", 1),
    14: ("bfloat16", 2),
    17: ("uint16", 2),
    18: ("complex128", 16),
    19: ("float16", 2),
    20: ("resource", None),
    21: ("variant", None),
    22: ("uint32", 4),
    23: ("uint64", 8),
}
FLOAT_TYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Bundle:
    """A checkpoint of TensorFlow.

    Args:
        prefix: What its files are called before their endings.
        tensors: Name -> tensor; those that hold no floating-point numbers are listed but cannot be loaded.
        files: The index and the shards with tensors in them.
    """

    prefix: Path
    tensors: dict[str, StoredTensor]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


class Damage(ValueError):
    """Bytes that are not what the format says; the message completes "the index ..."."""


def is_index(path: Path) -> bool:
    """Whether a file ends as the index of a bundle does."""
    if not path.is_file() or path.stat().st_size < FOOTER_SIZE:
        return False
    with path.open("rb") as file:
        file.seek(-8, 2)
        return file.read(8) == struct.pack("<Q", MAGIC)


def find_shards(prefix: Path) -> list[Path]:
    """The files beside a prefix that are called like its shards."""
    start = f"{prefix.name}.data-"
    return sorted(path for path in prefix.parent.iterdir() if path.name.startswith(start))


def read_bundle(prefix: Path) -> Bundle:
    """Reads the index of a bundle; tensors are read, and their checksums compared, when they are asked for.

    Args:
        prefix: The path before `.index` and `.data-00000-of-00001`.

    Raises:
        ConversionError: When a file is missing or damaged, or is something that this reader leaves alone (compression,
            big-endian numbers, variables split into slices).
    """
    index = prefix.with_name(prefix.name + INDEX_SUFFIX)
    try:
        with index.open("rb") as file:
            content = file.read(LARGEST_INDEX + 1)
    except OSError as error:
        raise ConversionError(f"The index {index} cannot be read: {error.strerror or error}.") from error
    try:
        num_shards, entries = parse_index(content)
    except Damage as error:
        raise ConversionError(f"The index {index} cannot be used: it {error}.") from error
    used = sorted({entry.shard for entry in entries})
    shards = {number: prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{num_shards:05d}") for number in used}
    check_shards(index, entries, shards)
    tensors = {
        entry.name: StoredTensor(entry.shape, entry.dtype, loader(shards[entry.shard], entry)) for entry in entries
    }
    return Bundle(prefix, tensors, (index, *shards.values()))


def check_shards(index: Path, entries: list[Entry], shards: dict[int, Path]) -> None:
    """Checks that the tensors lie inside the shards and beside one another.

    Raises:
        ConversionError: When a shard is missing, too short, or not large enough for all its tensors.
    """
    problems = []
    by_shard: dict[int, list[Entry]] = {number: [] for number in shards}
    for entry in entries:
        by_shard[entry.shard].append(entry)
    for number, shard in shards.items():
        if not shard.is_file():
            problems.append(f"{shard.name} is missing")
            continue
        length = shard.stat().st_size
        end = 0
        for entry in sorted(by_shard[number], key=lambda entry: entry.offset):
            last = entry.offset + entry.size
            if last > length:
                problems.append(f"{shard.name} is cut short: {entry.name} ends at {last}, but the file at {length}")
            elif entry.size and entry.offset < end:
                problems.append(f"{entry.name} lies over another tensor in {shard.name}")
            end = max(end, last)
    if problems:
        raise ConversionError(f"The data files of {index} cannot be used:", problems)


def loader(shard: Path, entry: Entry) -> Callable[[], FloatArray]:
    """A function that reads one tensor as float32 and compares its checksum."""

    def load() -> FloatArray:
        if entry.dtype not in FLOAT_TYPES:
            raise ConversionError(
                f"The tensor {entry.name} in {shard} has the type {entry.dtype}; weights are {', '.join(FLOAT_TYPES)}."
            )
        try:
            with shard.open("rb") as file:
                file.seek(entry.offset)
                content = np.empty(entry.size, dtype=np.uint8)
                length = file.readinto(content.data)
        except OSError as error:
            raise ConversionError(
                f"The tensor {entry.name} in {shard} cannot be read: {error.strerror or error}."
            ) from error
        if length != entry.size or masked_checksum(content) != entry.checksum:
            raise ConversionError(
                f"The tensor {entry.name} in {shard} is damaged: its checksum is not the one in the index."
            )
        if entry.dtype == "bfloat16":
            stored = (content.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            stored = content.view(np.dtype(entry.dtype).newbyteorder("<"))
        # A float64 beyond float32's range becomes infinite here and is refused with the other infinite values.
        with np.errstate(over="ignore"):
            return np.asarray(stored, dtype=np.float32).reshape(entry.shape)

    return load


def parse_index(content: bytes) -> tuple[int, list[Entry]]:
    """The number of shards and the tensors that an index file states.

    Raises:
        Damage: When the file is no index or a damaged one.
    """
    if len(content) > LARGEST_INDEX:
        raise Damage(f"is larger than {LARGEST_INDEX} bytes, more than a language model can need")
    header = None
    entries = []
    for key, value in read_table(content):
        if key == HEADER_KEY:
            header = parse_header(value)
            continue
        if header is None:
            raise Damage("has no header")
        entries.append(parse_entry(key, value, header))
        if len(entries) > LARGEST_COUNT:
            raise Damage(f"lists more than {LARGEST_COUNT} tensors")
    if header is None:
        raise Damage("has no header")
    return header, entries


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of a sorted string table, in the order of the keys.

    Raises:
        Damage: When the file is no table or a damaged one.
    """
    if len(content) < FOOTER_SIZE or struct.unpack("<Q", content[-8:])[0] != MAGIC:
        raise Damage("does not end as an index of TensorFlow does; it is cut short or another kind of file")
    footer = Reader(content[-FOOTER_SIZE:-8])
    footer.varint(), footer.varint()
    place = footer.varint(), footer.varint()
    end = 0
    last = None
    for _, handle in read_block(content, *place):
        reader = Reader(handle)
        offset, size = reader.varint(), reader.varint()
        if offset < end:
            raise Damage("has blocks in the wrong order")
        end = offset + size
        for key, value in read_block(content, offset, size):
            if last is not None and key <= last:
                raise Damage("has keys in the wrong order")
            last = key
            yield key, value


def read_block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of one block.

    Raises:
        Damage: When the block is damaged or compressed.
    """
    end = offset + size
    if end + BLOCK_TRAILER_SIZE > len(content) - FOOTER_SIZE:
        raise Damage("points beyond its end")
    kind, checksum = struct.unpack("<BI", content[end : end + BLOCK_TRAILER_SIZE])
    if masked_checksum(content[offset : end + 1]) != checksum:
        raise Damage("is damaged: the checksum of a block is wrong")
    if kind != UNCOMPRESSED:
        name = "Snappy" if kind == SNAPPY else f"the unknown method {kind}"
        raise Damage(f"is compressed with {name}, which TensorFlow's own writer does not do")
    block = content[offset:end]
    if size < 4:
        raise Damage("has a block without an end")
    (restarts,) = struct.unpack("<I", block[-4:])
    if 4 * (restarts + 1) > size:
        raise Damage("has a block with a wrong end")
    reader = Reader(block[: size - 4 * (restarts + 1)])
    key = b""
    while reader.rest:
        shared, added, length = reader.varint(), reader.varint(), reader.varint()
        if shared > len(key) or shared + added > LARGEST_KEY:
            raise Damage("has a key that is no name")
        key = key[:shared] + reader.take(added)
        yield key, reader.take(length)


def parse_header(value: bytes) -> int:
    """The number of shards in a BundleHeaderProto.

    Raises:
        Damage: When the bundle is one that cannot be read.
    """
    fields = dict(read_message(value))
    if fields.get(2, 0) != 0:
        raise Damage("belongs to a big-endian machine's checkpoint; only little-endian ones are read")
    num_shards = fields.get(1, 0)
    if not isinstance(num_shards, int) or not 1 <= num_shards <= LARGEST_COUNT:
        raise Damage("states no sensible number of data files")
    return num_shards


def parse_entry(key: bytes, value: bytes, num_shards: int) -> Entry:
    """One tensor, a BundleEntryProto.

    Raises:
        Damage: When it contradicts itself or is stored in slices.
    """
    try:
        name = key.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Damage("has a name that is not UTF-8") from error
    fields: dict[int, int | bytes] = {}
    for number, field in read_message(value):
        if number == 7 or name.startswith("\0"):
            raise Damage(f"has the variable {name.strip(chr(0))!r} in slices (a partitioned variable)")
        fields[number] = field
    kind, shard, offset, size, checksum = (fields.get(number, 0) for number in (1, 3, 4, 5, 6))
    shape_field = fields.get(2, b"")
    if not isinstance(shape_field, bytes) or not all(
        isinstance(item, int) and item < 2**63 for item in (kind, shard, offset, size, checksum)
    ):
        raise Damage(f"describes {name!r} with fields of the wrong kind")
    dtype, width = TYPES.get(int(kind), (f"number {kind!r}", None))
    shape = parse_shape(name, shape_field)
    if int(shard) >= num_shards:
        raise Damage(f"puts {name!r} into the data file {shard!r} of {num_shards}")
    if width is not None and math.prod(shape) * width != size:
        raise Damage(f"gives {name!r} {size!r} bytes, but {dtype} of shape {shape} takes {math.prod(shape) * width}")
    return Entry(name, dtype, shape, int(shard), int(offset), int(size), int(checksum))


def parse_shape(name: str, value: bytes) -> tuple[int, ...]:
    """The sizes in a TensorShapeProto.

    Raises:
        Damage: When one is unknown.
    """
    shape = []
    for number, field in read_message(value):
        if number == 2 and isinstance(field, bytes):
            size = dict(read_message(field)).get(1, 0)
            if not isinstance(size, int) or size >= 2**40:
                raise Damage(f"gives {name!r} an impossible shape")
            shape.append(size)
        elif number == 3 and field:
            raise Damage(f"gives {name!r} no shape")
    if len(shape) > LARGEST_RANK:
        raise Damage(f"gives {name!r} {len(shape)} dimensions")
    return tuple(shape)


def read_message(value: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The (number, value) pairs of a protocol buffer: integers, and bytes for everything with a length.

    Raises:
        Damage: When it is none.
    """
    reader = Reader(value)
    while reader.rest:
        tag = reader.varint()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, reader.varint()
        elif kind == 1:
            yield tag >> 3, int.from_bytes(reader.take(8), "little")
        elif kind == 2:
            yield tag >> 3, reader.take(reader.varint())
        elif kind == 5:
            yield tag >> 3, int.from_bytes(reader.take(4), "little")
        else:
            raise Damage("holds a value that is no protocol buffer")


class Reader:
    """Walks over bytes and never beyond them."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0

    @property
    def rest(self) -> int:
        """How many bytes are left."""
        return len(self.content) - self.position

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > self.rest:
            raise Damage("is damaged: a value ends too early")
        self.position += count
        return self.content[self.position - count : self.position]

    def varint(self) -> int:
        """The next number, seven bits a byte, of at most 64 bits."""
        result = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
        raise Damage("is damaged: a number does not end")


def masked_checksum(content: bytes | np.ndarray) -> int:
    """The CRC-32C of some bytes, changed as TensorFlow and LevelDB change it before storing it."""
    if isinstance(content, np.ndarray):
        view = content.view()
        view.flags.writeable = False  # the library takes nothing else
        checksum = google_crc32c.value(view)
    else:
        checksum = google_crc32c.value(content)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
