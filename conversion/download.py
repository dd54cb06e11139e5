"""From a name of the catalog to its files."""

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from urllib.parse import unquote, urlsplit

from datasets import DownloadConfig, DownloadManager, config

from .catalog import CatalogEntry
from .errors import ConversionError
from .http_files import PREFIX, register
from .staging import check_output


@contextlib.contextmanager
def downloaded(
    entry: CatalogEntry,
    output_dir: str | PathLike[str],
    progress: bool = False,
    force_download: bool = False,
    cache_dir: str | PathLike[str] | None = None,
) -> Iterator[Path]:
    """The files of a checkpoint under their original names, for as long as the context lasts.

    Args:
        entry: The catalog's record.
        output_dir: The folder that will be written; checked first, and named in messages.
        progress: Whether to show progress bars on stderr.
        force_download: Whether to fetch files again that are in the cache.
        cache_dir: Where downloads are kept; by default where `datasets` keeps its own.

    Yields:
        The file, or the folder with all of them where there are several.

    Raises:
        ConversionError: When a file cannot be fetched; it says what to do by hand. Also in the place of one that is
            raised within the context, to say that the files may be damaged and how to fetch them again.

    Example:
        >>> from hf_elmo.conversion import convert_checkpoint
        >>> from hf_elmo.conversion.catalog import find
        >>> entry = find("elmo-small")
        >>> with downloaded(entry, "elmo-small") as source:
        ...     convert_checkpoint(source, "elmo-small", catalog_entry=entry)
    """
    output = Path(output_dir)
    # Before gigabytes are fetched.
    check_output(output)
    cache = Path(config.DOWNLOADED_DATASETS_PATH if cache_dir is None else cache_dir)
    paths = fetch_files(entry, output, cache, progress, force_download)
    with tempfile.TemporaryDirectory(prefix=f"{entry.name}-", dir=cache) as folder:
        files = [Path(folder) / file_name(url) for url in entry.urls]
        for path, file in zip(paths, files, strict=True):
            share(path, file)
        try:
            yield files[0] if len(files) == 1 else Path(folder)
        except ConversionError as error:
            hint = f"The files of {entry.name} are kept in {cache}; --force-download fetches them again."
            raise ConversionError(f"{error}\n{hint}") from error


def fetch_files(entry: CatalogEntry, output: Path, cache: Path, progress: bool, force_download: bool) -> list[Path]:
    """The files in the cache, in the order of the record's URLs; what is not there yet is downloaded.

    Raises:
        ConversionError: When a file cannot be fetched.
    """
    if not entry.urls:
        raise ConversionError(
            f"No direct address of the files of {entry.name} is known: get them by hand as {entry.page} describes, "
            f"and run `{command(entry, output)}`."
        )
    register()
    settings = DownloadConfig(
        cache_dir=str(cache),
        force_download=force_download,
        # These files never change: what is in the cache is used without asking the server, also offline.
        use_etag=False,
        disable_tqdm=not progress,
        download_desc=f"Downloading {entry.name}",
    )
    manager = DownloadManager(dataset_name=entry.name, download_config=settings)
    try:
        return [Path(manager.download(f"{PREFIX}{url}")) for url in entry.urls]
    except OSError as error:
        # Offline mode and connection errors are OSErrors too.
        reason = str(error).replace(PREFIX, "").rstrip(".")
        raise ConversionError(
            f"{entry.name} cannot be downloaded ({reason}): fetch {' and '.join(entry.urls)} by hand"
            f"{' into one folder' * (len(entry.urls) > 1)}, and run `{command(entry, output)}`."
        ) from error


def command(entry: CatalogEntry, output: Path) -> str:
    """The command for files that were fetched by hand."""
    source = file_name(entry.urls[0]) if len(entry.urls) == 1 else "FOLDER" if entry.urls else "FILE_OR_FOLDER"
    return f"hf-elmo convert {source} {shlex.quote(str(output))} --as {entry.name}"


def file_name(url: str) -> str:
    """The name of a file at its source."""
    return unquote(urlsplit(url).path).rsplit("/", 1)[-1]


def share(path: Path, file: Path) -> None:
    """Makes a file of the cache known under another name, without copying it where the system can."""
    for link in (file.hardlink_to, file.symlink_to):
        with contextlib.suppress(OSError):
            link(path)
            return
    shutil.copyfile(path, file)
