"""Archives that somebody made to harm whoever unpacks them; each has the files of a good checkpoint in it, too."""

import gzip
import io
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

Files = Mapping[str, bytes]


def write_zip(path: Path, files: Files, *more: tuple[zipfile.ZipInfo | str, bytes]) -> Path:
    """A zip with files and further entries."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in (*files.items(), *more):
            archive.writestr(*entry)
    return path


def zip_of(*names: str, files_first: bool = True) -> Callable[[Path, Files], Path]:
    """Writes a zip with entries of given names."""

    def write(path: Path, files: Files) -> Path:
        more = [(name, b"escaped") for name in names]
        return write_zip(path, files, *more) if files_first else write_zip(path, dict(more), *files.items())

    return write


def zip_with_mode(mode: int) -> Callable[[Path, Files], Path]:
    """Writes a zip with an entry of a given mode, such as a link."""

    def write(path: Path, files: Files) -> Path:
        entry = zipfile.ZipInfo("link")
        entry.create_system = 3
        entry.external_attr = mode << 16
        return write_zip(path, files, (entry, b"/etc/passwd"))

    return write


def zip_with_a_second(path: Path, files: Files) -> Path:
    """A zip in which every file is twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return write_zip(path, files, *files.items())


def encrypted_zip(path: Path, files: Files) -> Path:
    """A zip whose entries say that they are encrypted."""
    content = bytearray(write_zip(path, files).read_bytes())
    for magic, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(magic)
        while start >= 0:
            content[start + place] |= 1
            start = content.find(magic, start + 4)
    path.write_bytes(content)
    return path


def zip_bomb(path: Path, files: Files) -> Path:
    """A zip with megabytes of zeros, which says so."""
    return write_zip(path, files, ("zeros", bytes(2**25)))


def lying_zip_bomb(path: Path, files: Files) -> Path:
    """A zip with megabytes of zeros, which says that they are a few bytes."""
    content = bytearray(zip_bomb(path, files).read_bytes())
    for size in (content.find(struct.pack("<I", 2**25)), content.rfind(struct.pack("<I", 2**25))):
        content[size : size + 4] = struct.pack("<I", 64)
    path.write_bytes(content)
    return path


def zip_of_many(path: Path, files: Files) -> Path:
    """A zip with more entries than any checkpoint has."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        for number in range(10_001):
            archive.writestr(f"{number}", b"")
    return path


def write_tar(path: Path, files: Files, *more: tuple[tarfile.TarInfo, bytes]) -> Path:
    """A .tar.gz with files and further entries."""
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member, content in more:
            if member.isreg():
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def tar_of(name: str, type: bytes = tarfile.REGTYPE, target: str = "") -> Callable[[Path, Files], Path]:
    """Writes a .tar.gz with an entry of a given name and type."""

    def write(path: Path, files: Files) -> Path:
        member = tarfile.TarInfo(name)
        member.type = type
        member.linkname = target
        return write_tar(path, files, (member, b"escaped"))

    return write


def tar_through_a_link(path: Path, files: Files) -> Path:
    """A .tar.gz with a link to a folder outside, and a file below that link."""
    link = tarfile.TarInfo("outside")
    link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
    return write_tar(path, files, (link, b""), (tarfile.TarInfo("outside/escaped"), b"escaped"))


def tar_with_a_second(path: Path, files: Files) -> Path:
    """A .tar.gz in which a file is twice."""
    name = next(iter(files))
    return write_tar(path, files, (tarfile.TarInfo(f"./{name}"), b"the second"))


def tar_bomb(path: Path, files: Files) -> Path:
    """A .tar.gz with megabytes of zeros."""
    return write_tar(path, files, (tarfile.TarInfo("zeros"), bytes(2**25)))


def raw_tar(path: Path, content: bytes) -> Path:
    """A .tar.gz of given blocks."""
    path.write_bytes(gzip.compress(content, 9))
    return path


def header(name: str, size: int, type: bytes) -> bytes:
    """One header of a tar."""
    member = tarfile.TarInfo(name)
    member.type = type
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


def tar_with_a_long_header(path: Path, files: Files) -> Path:
    """A .tar.gz whose extended header is megabytes long, which a careless reader takes into memory."""
    return raw_tar(path, header("pax", 2**24, tarfile.XHDTYPE) + bytes(2**24) + header("file", 0, tarfile.REGTYPE))


def tar_with_nested_headers(path: Path, files: Files) -> Path:
    """A .tar.gz with thousands of headers about headers."""
    return raw_tar(path, (header("././@LongLink", 10, tarfile.GNUTYPE_LONGNAME) + b"name".ljust(512, b"\0")) * 5000)


def tar_with_a_negative_size(path: Path, files: Files) -> Path:
    """A .tar.gz with an entry that ends before it starts, so that a careless reader goes round in circles."""
    block = bytearray(header("file", 0, tarfile.REGTYPE))
    block[124:136] = b"\xff" * 10 + (-1024).to_bytes(2, "big", signed=True)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return raw_tar(path, bytes(block) + bytes(1024))


def tar_of_many(path: Path, files: Files) -> Path:
    """A .tar.gz with more entries than any checkpoint has."""
    return raw_tar(path, b"".join(header(str(number), 0, tarfile.REGTYPE) for number in range(10_001)) + bytes(1024))


def endless_gzip(path: Path, files: Files) -> Path:
    """A .tar.gz that goes on with megabytes of zeros after its end."""
    write_tar(path, files)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(2**27), 9))
    return path


def nested_zip(path: Path, files: Files) -> Path:
    """A zip with nothing but a zip."""
    inner = write_zip(path.with_name("inner.zip"), files)
    content = inner.read_bytes()
    inner.unlink()
    return write_zip(path, {"inner.zip": content})


def wrong_checksum(path: Path, files: Files) -> Path:
    """A zip with a stored file that is not the one of its checksum."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    name, content = max(files.items(), key=lambda item: len(item[1]))
    damaged = bytearray(path.read_bytes())
    damaged[damaged.find(content) + len(content) // 2] ^= 1
    path.write_bytes(damaged)
    assert zlib.crc32(content)
    return path


ZIPS: dict[str, Callable[[Path, Files], Path]] = {
    "parent": zip_of("../escaped"),
    "parent inside": zip_of("a/../../escaped"),
    "absolute": zip_of("/tmp/escaped"),
    "drive": zip_of("C:/escaped"),
    "backslash": zip_of("..\\escaped"),
    "control character": zip_of("a\nb"),
    "deep": zip_of("a/" * 100 + "b"),
    "a file and a folder": zip_of("a", "a/b"),
    "traversal first": zip_of("../escaped", files_first=False),
    "link": zip_with_mode(0o120777),
    "device": zip_with_mode(0o020666),
    "pipe": zip_with_mode(0o010666),
    "twice": zip_with_a_second,
    "encrypted": encrypted_zip,
    "bomb": zip_bomb,
    "lying bomb": lying_zip_bomb,
    "many": zip_of_many,
    "nested": nested_zip,
    "wrong checksum": wrong_checksum,
}
"""What it is -> writes such a .zip."""

TARS: dict[str, Callable[[Path, Files], Path]] = {
    "parent": tar_of("../escaped"),
    "parent inside": tar_of("a/../../escaped"),
    "absolute": tar_of("/tmp/escaped"),
    "symbolic link": tar_of("link", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": tar_of("link", tarfile.LNKTYPE, "options.json"),
    "through a link": tar_through_a_link,
    "character device": tar_of("device", tarfile.CHRTYPE),
    "block device": tar_of("device", tarfile.BLKTYPE),
    "pipe": tar_of("pipe", tarfile.FIFOTYPE),
    "sparse": tar_of("sparse", tarfile.GNUTYPE_SPARSE),
    "twice": tar_with_a_second,
    "bomb": tar_bomb,
    "long header": tar_with_a_long_header,
    "nested headers": tar_with_nested_headers,
    "negative size": tar_with_a_negative_size,
    "many": tar_of_many,
    "endless": endless_gzip,
}
"""What it is -> writes such a .tar.gz."""
