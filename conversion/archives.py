"""Unpacks archives from anybody into a temporary folder: plain files inside that folder, within stated limits."""

import contextlib
import gzip
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from .errors import ConversionError

LARGEST_TOTAL = 16 * 2**30
"""Bytes that the files of an archive may take together; no published ELMo takes a quarter of it."""

LARGEST_NUMBER = 10_000
"""Entries that an archive may have, folders included."""

LARGEST_RATIO = 100
"""How many times larger than the archive its files may be; weights hardly shrink, bombs do."""

SMALLEST_SUSPECT = 2**28
"""Bytes below which the ratio does not matter."""

LARGEST_DEPTH = 16
"""Folders inside each other that an archive may have."""

LARGEST_HEADER = 2**12
"""Bytes around the content of a tar's entry, on average."""

LARGEST_READ = 2**20
"""Bytes that are in memory at once; no name or other header of an honest archive is as long."""

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
ZIP_MAGIC = b"PK\x03\x04"
GZIP_MAGIC = b"\x1f\x8b"
TAR_MAGIC = b"ustar"
TAR_MAGIC_OFFSET = 257

TORCH_SUFFIXES = (".th", ".pth", ".pt", ".pkl", ".bin", ".npz")
"""Files that are zips, too, and that readers open themselves."""

# What the archive modules raise on damaged files depends on where the damage is.
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    OverflowError,
    MemoryError,
)


@dataclass(frozen=True)
class Entry:
    """One file or folder in an archive.

    Args:
        name: Name as the archive states it.
        size: Bytes as the archive states them; 0 for a folder.
        problem: Why it cannot be unpacked, `None` when it can.
        open: Opens the content; gives `None` for a folder.
    """

    name: str
    size: int
    problem: str | None
    open: Callable[[], IO[bytes] | None]


class Refused(Exception):
    """Why an archive is not unpacked, as the end of a sentence that starts with its name."""


def is_archive(path: Path) -> bool:
    """Whether a path is a .zip, .tar, .tar.gz or .tgz, by its name or, for other names, by its first bytes."""
    if not path.is_file() or path.name.lower().endswith(TORCH_SUFFIXES):
        return False
    if path.name.lower().endswith(SUFFIXES):
        return True
    with path.open("rb") as file:
        start = file.read(TAR_MAGIC_OFFSET + len(TAR_MAGIC))
    return start.startswith((ZIP_MAGIC, GZIP_MAGIC)) or start[TAR_MAGIC_OFFSET:] == TAR_MAGIC


@contextlib.contextmanager
def unpacked(source: Path, recognised: Callable[[Path], bool]) -> Iterator[Path]:
    """The folder of a checkpoint in an archive, for as long as the block lasts; any other source as it is.

    Errors in the block name the archive in the place of the temporary folder.

    Args:
        source: An archive, or anything else.
        recognised: Whether a folder holds a checkpoint. It is looked for at the top of the archive, then in its
            folders, then in theirs.

    Raises:
        ConversionError: When the archive is damaged, unsafe, beyond a limit, or holds several checkpoints.
    """
    try:
        wanted = is_archive(source)
    except OSError as error:
        raise ConversionError(f"The source {source} cannot be read: {error.strerror or error}.") from error
    if not wanted:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="hf-elmo-") as name:
        folder = Path(name).resolve()
        try:
            unpack(source, folder)
            yield find_checkpoint(folder, recognised)
        except ConversionError as error:
            problems = [problem.replace(str(folder), str(source)) for problem in error.problems]
            raise ConversionError(error.summary.replace(str(folder), str(source)), problems) from error


def find_checkpoint(folder: Path, recognised: Callable[[Path], bool]) -> Path:
    """The one folder that holds a checkpoint; the top when there is none."""
    level = [folder]
    for _ in range(3):
        found = [path for path in level if recognised(path)]
        if len(found) > 1:
            listed = ", ".join(str(path.relative_to(folder)) for path in found)
            raise ConversionError(
                f"{folder} holds several checkpoints ({listed}); unpack it and name the one you want."
            )
        if found:
            return found[0]
        level = sorted(path for parent in level for path in parent.iterdir() if path.is_dir())
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks an archive into an empty folder.

    Args:
        archive: A .zip, .tar, .tar.gz or .tgz.
        folder: An empty folder.

    Raises:
        ConversionError: When the archive is damaged, unsafe or beyond a limit.
    """
    try:
        packed = archive.stat().st_size
        budget = min(LARGEST_TOTAL, max(SMALLEST_SUSPECT, LARGEST_RATIO * packed))
        with archive.open("rb") as file:
            entries = zip_entries(file, budget) if starts_with(file, ZIP_MAGIC) else tar_entries(file, budget)
            number = total = 0
            for number, entry in enumerate(entries, start=1):
                total += entry.size
                check_limits(number, total, budget)
                unpack_entry(entry, folder)
        if not number:
            raise Refused("holds no files")
    except Refused as error:
        raise ConversionError(f"The archive {archive} {error}.") from error
    except DAMAGE as error:
        raise ConversionError(
            f"The archive {archive} cannot be unpacked; it is damaged, cut short or in another format ({error})."
        ) from error


def starts_with(file: IO[bytes], magic: bytes) -> bool:
    """Whether a file starts with some bytes; leaves it at its start."""
    start = file.read(len(magic))
    file.seek(0)
    return start == magic


def check_limits(number: int, total: int, budget: int) -> None:
    """Refuses too many entries and too many bytes."""
    if number > LARGEST_NUMBER:
        raise Refused(f"has more than {LARGEST_NUMBER:,} entries, and no checkpoint has as many")
    if total > budget:
        raise Refused(
            f"would take more than {budget / 2**30:.3g} GiB unpacked; the limits are {LARGEST_TOTAL // 2**30} GiB and "
            f"{LARGEST_RATIO} times the size of the archive"
        )


def zip_entries(file: IO[bytes], budget: int) -> Iterator[Entry]:
    """The entries of a zip; the sizes of all are looked at before the first is unpacked."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        check_limits(len(members), sum(member.file_size for member in members), budget)
        for member in members:
            yield Entry(
                name=member.orig_filename,
                size=0 if member.is_dir() else member.file_size,
                problem=zip_problem(member),
                open=partial(open_zipped, archive, member),
            )


def open_zipped(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes] | None:
    """The content of a member of a zip, `None` for a folder."""
    return None if member.is_dir() else archive.open(member)


def zip_problem(member: zipfile.ZipInfo) -> str | None:
    """Why a member of a zip cannot be unpacked, `None` when it can."""
    kind = stat.S_IFMT(member.external_attr >> 16)
    if member.flag_bits & 0x1:
        return "is encrypted; unpack it with its password and convert the folder"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device; only plain files are unpacked"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed in another way than deflate"
    return None


class BoundedReader:
    """A tar's bytes, read forwards within the limits, so that no header can ask for endless memory or work.

    Args:
        file: The plain or the decompressed file.
        budget: Bytes of content that are allowed.
    """

    def __init__(self, file: IO[bytes], budget: int) -> None:
        self.file = file
        self.budget = budget
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        """Reads at most `size` bytes."""
        if not 0 <= size <= LARGEST_READ:
            raise Refused("has a header of more than a megabyte, as no honest archive has")
        self.last = self.file.read(size)
        self.check(self.file.tell())
        return self.last

    def seek(self, position: int) -> int:
        """Goes to a position."""
        self.check(position)
        return self.file.seek(position)

    def check(self, position: int) -> None:
        """Refuses a position that the content and the headers of all entries together cannot have."""
        check_limits(0, position - LARGEST_NUMBER * LARGEST_HEADER, self.budget)

    def tell(self) -> int:
        """The position."""
        return self.file.tell()


def tar_entries(file: IO[bytes], budget: int) -> Iterator[Entry]:
    """The entries of a tar, compressed or not, one after the other."""
    compressed = starts_with(file, GZIP_MAGIC)
    opened: Any = gzip.GzipFile(fileobj=file) if compressed else file
    reader: Any = BoundedReader(opened, budget)
    with tarfile.TarFile(fileobj=reader) as archive:
        while (member := archive.next()) is not None:
            yield Entry(
                name=member.name,
                size=member.size if member.isreg() else 0,
                problem=tar_problem(member),
                open=partial(archive.extractfile, member),
            )
        if reader.last != bytes(tarfile.BLOCKSIZE):
            raise Refused("is damaged or cut short: it has no end mark")
    # Only at its end does a compressed file say whether all of it was right.
    while reader.read(LARGEST_READ):
        pass


def tar_problem(member: tarfile.TarInfo) -> str | None:
    """Why a member of a tar cannot be unpacked, `None` when it can."""
    if member.isdir():
        return None
    if not member.isreg() or member.issparse():
        return "is a link or a device; only plain files are unpacked"
    return "has a negative size" if member.size < 0 else None


def unpack_entry(entry: Entry, folder: Path) -> None:
    """Unpacks one entry into its place below a folder."""
    parts = safe_parts(entry.name)
    if entry.problem:
        raise Refused(f"is refused: the entry {entry.name!r} {entry.problem}")
    if not parts or is_leftover(parts):
        return
    path = folder.joinpath(*parts)
    content = entry.open()
    try:
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.open("xb")
    except (FileExistsError, NotADirectoryError) as error:
        raise Refused(f"is refused: it has the entry {entry.name!r} twice") from error
    except OSError as error:
        raise unwritable(error) from error
    left = entry.size
    with target, content:
        while block := content.read(min(LARGEST_READ, left + 1)):
            left -= len(block)
            if left < 0:
                raise Refused(f"is refused: the entry {entry.name!r} is larger than it says")
            try:
                target.write(block)
            except OSError as error:
                raise unwritable(error) from error
    if left:
        raise Refused(f"is damaged or cut short: the entry {entry.name!r} is smaller than it says")


def unwritable(error: OSError) -> Refused:
    """The message for a temporary folder that cannot be written."""
    return Refused(
        f"cannot be unpacked in {tempfile.gettempdir()}: {error.strerror or error}; "
        "the environment variable TMPDIR names another place"
    )


def safe_parts(name: str) -> list[str]:
    """The parts of an entry's name, all of which lead downwards."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    strange = not name.isprintable() or "\\" in name or ":" in name
    if strange or name.startswith("/") or ".." in parts or len(parts) > LARGEST_DEPTH:
        raise Refused(f"is refused: the entry {name[:100]!r} lies outside it or has a name that no checkpoint has")
    return parts


def is_leftover(parts: list[str]) -> bool:
    """Whether an entry is what macOS adds to archives."""
    return "__MACOSX" in parts or parts[-1] == ".DS_Store" or parts[-1].startswith("._")
