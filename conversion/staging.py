"""Folders that appear complete or not at all."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from .errors import ConversionError

try:
    import fcntl
except ImportError:  # Windows: leftovers of a killed run stay until somebody removes them
    fcntl = None  # type: ignore[assignment]

MARK = ".unfinished-"


def check_output(output: Path) -> None:
    """Refuses, before any work, an output folder that is in use or can never be written.

    Raises:
        ConversionError: When the folder has content or is a file, or when it lies below a file or a read-only folder.
    """
    try:
        if output.is_dir() and any(output.iterdir()):
            raise ConversionError(f"The output folder {output} exists and is not empty; choose another.")
        if (output.exists() and not output.is_dir()) or output.is_symlink():
            raise ConversionError(f"The output {output} exists and is not a folder; choose another.")
        if output.exists() and (output.samefile(Path.cwd()) or os.path.ismount(output)):
            raise ConversionError(f"The output folder {output} is in use by the system; name a new folder inside it.")
    except OSError as error:
        raise ConversionError(f"The output folder {output} cannot be used: {error.strerror or error}.") from error
    parent = nearest_existing(Path(os.path.abspath(output)).parent)
    if not parent.is_dir():
        raise ConversionError(f"The output folder {output} cannot be written: {parent} is not a folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConversionError(f"The output folder {output} cannot be written: no permission in {parent}.")


def nearest_existing(path: Path) -> Path:
    """The path itself, or the first of its ancestors that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


@contextlib.contextmanager
def staged_folder(output: Path) -> Iterator[Path]:
    """A new folder beside `output` that becomes `output` when the block ends, and vanishes when it fails.

    The last step is a rename, so nobody ever sees half an output. A process that is killed outright leaves the
    folder under its hidden name; the next run for the same output removes it.

    Args:
        output: The folder to make; its parents are made, too, and removed again on failure.

    Raises:
        ConversionError: When the folder cannot be written.
    """
    check_output(output)
    output = Path(os.path.abspath(output))
    parent = output.parent
    missing = [path for path in (parent, *parent.parents) if not path.exists()]
    staging = parent / f".{output.name}{MARK}{secrets.token_hex(4)}"
    lock = None
    try:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(parent, output.name)
            staging.mkdir()
            lock = hold(staging)
        except OSError as error:
            raise unwritable(output, error) from error
        yield staging
        try:
            if output.is_dir():
                output.rmdir()
            staging.rename(output)
        except OSError as error:
            raise unwritable(output, error) from error
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    finally:
        if lock is not None:
            os.close(lock)


def unwritable(output: Path, error: OSError) -> ConversionError:
    """The message for an output that the system does not let us write."""
    return ConversionError(f"The output folder {output} cannot be written: {error.strerror or error}.")


def hold(folder: Path) -> int | None:
    """Locks a folder for as long as this process lives or until the returned descriptor is closed."""
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove_abandoned(parent: Path, name: str) -> None:
    """Removes what killed runs for the same output left; folders of running ones are locked and stay."""
    if fcntl is None:
        return
    for folder in parent.iterdir():
        if not folder.name.startswith(f".{name}{MARK}"):
            continue
        with contextlib.suppress(OSError):
            lock = hold(folder)
            shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)
