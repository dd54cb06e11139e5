"""An archive is unpacked safely or not at all, and nothing of it stays."""

import gzip
import io
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_elmo.conversion import ConversionError, archives, convert_checkpoint

from .checkpoints import write_checkpoint
from .hostile_archives import TARS, ZIPS, Files, write_tar, write_zip
from .shared_files import fixture_path


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of temporary files; small limits, so that bombs are cheap."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(archives, "SMALLEST_SUSPECT", 2**22)
    return tmp_path / "temporary"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """The files of a good checkpoint."""
    source = write_checkpoint(tmp_path / "source")
    return {path.name: path.read_bytes() for path in source.iterdir()}


def is_folder_of(*names: str) -> Callable[[Path], bool]:
    """Recognises a folder by its files."""
    return lambda folder: all((folder / name).is_file() for name in names)


def assert_unpacks(archive: Path, files: Files, recognised: Callable[[Path], bool]) -> None:
    """Checks that exactly the files are there, and gone after the block."""
    with archives.unpacked(archive, recognised) as folder:
        found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        assert {name: path.read_bytes() for name, path in found.items()} == files
    assert not folder.exists()


def assert_refused(archive: Path, message: str | None = None) -> str:
    """Checks that an archive ends in one sentence that names it, and that nothing of it is left."""
    before = {path.name for path in archive.parent.iterdir()}
    with pytest.raises(ConversionError, match=message) as caught:
        convert_checkpoint(archive, archive.parent / "elmo")
    assert str(archive) in str(caught.value)
    assert "hf-elmo-" not in str(caught.value)
    assert os.listdir(tempfile.gettempdir()) == []
    assert {path.name for path in archive.parent.iterdir()} == before
    assert not (archive.parent / "escaped").exists()
    assert not Path("/tmp/escaped").exists()
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "./", "model/", "./a/b/"])
@pytest.mark.parametrize("name", ["model.zip", "model.tar.gz", "model.tgz", "0123456789abcdef"])
def test_files_are_found_at_the_top_or_in_a_folder(name: str, prefix: str, files: Files, tmp_path: Path) -> None:
    write = write_zip if name.endswith(".zip") else write_tar
    archive = write(tmp_path / name, {prefix + file: content for file, content in files.items()})
    assert_unpacks(archive, files, is_folder_of(*files))


def test_a_plain_tar(files: Files, tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "model.tar.gz", files)
    (tmp_path / "model.tar").write_bytes(gzip.decompress(archive.read_bytes()))
    assert_unpacks(tmp_path / "model.tar", files, is_folder_of(*files))


def test_what_macos_adds_is_left_aside(files: Files, tmp_path: Path) -> None:
    added = {"__MACOSX/._weights.hdf5": b"x", "._options.json": b"x", ".DS_Store": b"x"}
    assert_unpacks(write_zip(tmp_path / "model.zip", {**files, **added}), files, is_folder_of(*files))


def test_sources_that_are_no_archives_stay_as_they_are(files: Files, tmp_path: Path) -> None:
    write_zip(tmp_path / "encoder.pkl", files)
    for path in (
        tmp_path / "source",
        tmp_path / "source" / "options.json",
        tmp_path / "nowhere",
        tmp_path / "encoder.pkl",
    ):
        with archives.unpacked(path, lambda folder: True) as found:
            assert found == path


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_an_archive_converts_as_its_folder_does(suffix: str, files: Files, tmp_path: Path, temporary: Path) -> None:
    write = write_zip if suffix == "zip" else write_tar
    archive = write(tmp_path / f"model.{suffix}", {f"model/{name}": content for name, content in files.items()})
    report = convert_checkpoint(archive, tmp_path / "elmo")
    assert list(report.files) == [archive.name, "options.json", "weights.hdf5"]
    assert f"in the archive {archive.name}; format allennlp" in report.summary()
    convert_checkpoint(tmp_path / "source", tmp_path / "plain")
    name = "model.safetensors"
    assert (tmp_path / "elmo" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "parts", [("deeppavlov_hub_ru", "module"), ("elmoformanylangs", "model"), ("bilm_tf_lm",), ("allennlp_tiny",)]
)
@pytest.mark.parametrize("prefix", ["", "a/b/"])
def test_every_format_converts_in_an_archive(parts: tuple[str, ...], prefix: str, tmp_path: Path) -> None:
    source = fixture_path(*parts)
    files = {path.relative_to(source).as_posix(): path for path in source.rglob("*") if path.is_file()}
    contents = {prefix + name: path.read_bytes() for name, path in files.items() if path.suffix != ".npz"}
    convert_checkpoint(write_zip(tmp_path / "model.zip", contents), tmp_path / "elmo")
    convert_checkpoint(source, tmp_path / "plain")
    names = {path.name for path in (tmp_path / "plain").iterdir()}
    assert {path.name for path in (tmp_path / "elmo").iterdir()} == names
    for name in names - {"README.md"}:
        assert (tmp_path / "elmo" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_a_published_archive_converts_as_its_folder_does(tmp_path: Path) -> None:
    convert_checkpoint(fixture_path("deeppavlov_hub_ru", "elmo_ru_tiny.tar.gz"), tmp_path / "elmo")
    convert_checkpoint(fixture_path("deeppavlov_hub_ru", "module"), tmp_path / "plain")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "elmo" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


@pytest.mark.parametrize("kind", list(ZIPS))
def test_hostile_zips(kind: str, files: Files, tmp_path: Path) -> None:
    assert_refused(ZIPS[kind](tmp_path / "model.zip", files))


@pytest.mark.parametrize("kind", list(TARS))
def test_hostile_tars(kind: str, files: Files, tmp_path: Path) -> None:
    assert_refused(TARS[kind](tmp_path / "model.tar.gz", files))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("parent", r"the entry '\.\./escaped' lies outside it"),
        ("link", "the entry 'link' is a link or a device"),
        ("twice", "has the entry 'options.json' twice|has the entry 'weights.hdf5' twice"),
        ("encrypted", "is encrypted; unpack it with its password"),
        ("bomb", "the limits are 16 GiB and 100 times the size of the archive"),
        ("many", "has more than 10,000 entries"),
        ("nested", r"model\.zip is no checkpoint that can be converted.*It holds inner\.zip: name that, or unpack it"),
    ],
)
def test_messages(kind: str, message: str, files: Files, tmp_path: Path) -> None:
    assert len(assert_refused(ZIPS[kind](tmp_path / "model.zip", files), message).splitlines()) == 1


@pytest.mark.parametrize("name", ["model.zip", "model.tar", "model.tar.gz"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 something else", b"\x1f\x8b\x08", bytes(2048), b"<html>" * 200])
def test_what_is_no_archive(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert_refused(tmp_path / name, "cannot be unpacked|is damaged|holds no files|is no checkpoint")


def test_several_checkpoints(files: Files, tmp_path: Path) -> None:
    twice = {f"{folder}/{name}": content for folder in ("one", "two") for name, content in files.items()}
    assert_refused(write_zip(tmp_path / "model.zip", twice), r"holds several checkpoints \(one, two\)")


def test_errors_in_a_file_name_it_inside_the_archive(files: Files, tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "model.zip", {**files, "options.json": b"{"})
    assert_refused(archive, r"The options file \S*model\.zip/options\.json is not valid JSON")


def test_nothing_stays_when_the_work_is_interrupted(files: Files, tmp_path: Path, temporary: Path) -> None:
    archive = write_zip(tmp_path / "model.zip", files)

    def interrupted() -> None:
        with archives.unpacked(archive, is_folder_of(*files)):
            assert list(temporary.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(temporary.iterdir()) == []


def test_a_full_disk(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, content: object) -> int:
            raise OSError(28, "No space left on device")

    archive = write_zip(tmp_path / "model.zip", files)
    original = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode="r": Full() if mode == "xb" else original(path, mode))
    assert_refused(archive, "No space left on device; the environment variable TMPDIR names another place")


def test_every_cut_of_an_archive_is_refused(files: Files, tmp_path: Path) -> None:
    for archive in (write_zip(tmp_path / "model.zip", files), write_tar(tmp_path / "model.tar.gz", files)):
        content = archive.read_bytes()
        for length in (1, 100, len(content) // 3, len(content) // 2, len(content) - 600, len(content) - 1):
            archive.write_bytes(content[:length])
            assert_refused(archive)


def test_a_plain_tar_without_its_end(files: Files, tmp_path: Path) -> None:
    content = gzip.decompress(write_tar(tmp_path / "model.tar.gz", files).read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        last = archive.getmembers()[-1]
    (tmp_path / "model.tar").write_bytes(content[: last.offset_data + last.size])
    assert_refused(tmp_path / "model.tar")


def test_published_archives_are_far_within_the_limits() -> None:
    for archive in (fixture_path("nlpl_zip", "900.zip"), fixture_path("deeppavlov_hub_ru", "elmo_ru_tiny.tar.gz")):
        with archives.unpacked(archive, lambda folder: True) as folder:
            total = sum(path.stat().st_size for path in folder.rglob("*"))
        assert total < archives.LARGEST_RATIO / 2 * archive.stat().st_size
    assert zipfile.is_zipfile(fixture_path("nlpl_zip", "900.zip"))
