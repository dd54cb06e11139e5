"""Files on the web for `datasets.DownloadManager`, which continue where a broken transfer ended.

The manager asks fsspec for the file system of a URL's protocol. The one here, for `elmo+http` and `elmo+https`, keeps
what has arrived beside the manager's own file, with the version of the content (ETag or date) that the server gave;
the next attempt asks for the rest of that same version only. It needs nothing besides the standard library.
"""

import contextlib
import os
import shutil
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK

PREFIX = "elmo+"
ATTEMPTS = 4
PAUSE = 1.0
"""Seconds before the second attempt; each further one waits twice as long."""

TIMEOUT = 60
CHUNK = 2**20
BUSY = (408, 429, 500, 502, 503, 504)


class TransferError(OSError):
    """A file did not arrive whole; what arrived is kept."""


class ResumingHttpFileSystem(fsspec.AbstractFileSystem):
    """HTTP for reading whole files."""

    protocol = (f"{PREFIX}http", f"{PREFIX}https")
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix(PREFIX)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Name and type; size and version are learned from the transfer itself."""
        return {"name": path, "size": None, "type": "file"}

    def get_file(self, rpath: str, lpath: str, callback: Any = DEFAULT_CALLBACK, **kwargs: Any) -> None:
        """Fetches a file.

        Args:
            rpath: The URL.
            lpath: Where to write it.
            callback: fsspec's callback for progress.

        Raises:
            FileNotFoundError: When the server has no such file.
            OSError: When it cannot be reached or the transfer breaks in every attempt.
        """
        url, part = self._strip_protocol(rpath), Path(f"{lpath}.part")
        for attempt in range(ATTEMPTS):
            try:
                fetch(url, part, callback)
            except urllib.error.HTTPError as error:
                if error.code in (404, 410):
                    raise FileNotFoundError(f"{url} does not exist any more (HTTP status {error.code})") from error
                if error.code not in BUSY or attempt == ATTEMPTS - 1:
                    raise OSError(f"{url} is refused (HTTP status {error.code})") from error
            except (TransferError, TimeoutError, ConnectionResetError, HTTPException) as error:
                if attempt == ATTEMPTS - 1:
                    raise TransferError(f"the transfer of {url} broke off: {error}") from error
            except urllib.error.URLError as error:
                raise OSError(f"{url} cannot be reached: {error.reason}") from error
            else:
                break
            time.sleep(PAUSE * 2**attempt)
        move(part, Path(lpath))
        version_file(part).unlink(missing_ok=True)


def fetch(url: str, part: Path, callback: Any) -> None:
    """Writes a file, or the rest of it, to `part`."""
    request = urllib.request.Request(url, headers={"User-Agent": "hf-elmo", "Accept-Encoding": "identity"})
    version = version_file(part).read_text(encoding="utf-8") if version_file(part).is_file() else ""
    start = part.stat().st_size if version and part.is_file() else 0
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", version)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        # There is no rest: the part is whole or of no use. Only another whole transfer can tell.
        part.unlink()
        return fetch(url, part, callback)
    with response:
        continued = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if response.status == 206 and not continued:
            part.unlink(missing_ok=True)
            raise TransferError("the server sent another part of the file than asked for")
        write_version(part, response.headers)
        length = response.headers.get("Content-Length")
        received = start if continued else 0
        expected = received + int(length) if length is not None else None
        callback.set_size(expected)
        callback.absolute_update(received)
        with part.open("ab" if continued else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                received += len(chunk)
                callback.relative_update(len(chunk))
    if expected is not None and received != expected:
        raise TransferError(f"{received} of {expected} bytes arrived")
    return None


def version_file(part: Path) -> Path:
    """Where the version of a part is written."""
    return part.with_name(f"{part.name}.version")


def write_version(part: Path, headers: Any) -> None:
    """Notes which content a part belongs to; without a reliable mark of it the part is not continued."""
    tag = headers.get("ETag", "")
    version = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
    version_file(part).write_text(version, encoding="utf-8")


def move(source: Path, target: Path) -> None:
    """Moves a file over one that the caller may hold open, which some systems do not let us replace."""
    try:
        os.replace(source, target)
    except PermissionError:
        shutil.copyfile(source, target)
        with contextlib.suppress(OSError):
            source.unlink()


def register() -> None:
    """Makes fsspec know the protocols."""
    for protocol in ResumingHttpFileSystem.protocol:
        fsspec.register_implementation(protocol, ResumingHttpFileSystem, clobber=True)
