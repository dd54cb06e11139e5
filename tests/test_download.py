"""Downloading a checkpoint of the catalog over HTTP, from servers that work and from servers that do not."""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import datasets
import pytest
from typer.testing import CliRunner, Result

from hf_elmo.cli import app
from hf_elmo.conversion import ConversionError, ConversionReport, catalog, convert_checkpoint, http_files
from hf_elmo.conversion.catalog import CatalogEntry
from hf_elmo.conversion.download import downloaded

from .checkpoints import write_checkpoint
from .file_server import FileServer, serve_files
from .shared_files import fixture_path

OPTIONS, WEIGHTS = "tiny/elmo_tiny_options.json", "tiny/elmo_tiny_weights.hdf5"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server with a tiny checkpoint."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache")
    monkeypatch.setattr(http_files, "PAUSE", 0)
    source = write_checkpoint(tmp_path / "published")
    with serve_files() as state:
        state.files[OPTIONS] = (source / "options.json").read_bytes()
        state.files[WEIGHTS] = (source / "weights.hdf5").read_bytes()
        yield state


@pytest.fixture
def entry(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """A record of that checkpoint, in the catalog for as long as the test lasts."""
    return add_record(monkeypatch, server.url(OPTIONS), server.url(WEIGHTS))


def add_record(monkeypatch: pytest.MonkeyPatch, *urls: str) -> CatalogEntry:
    """Adds a record to the catalog."""
    record = CatalogEntry(
        name="elmo-tiny",
        title="Tiny ELMo",
        languages=("en",),
        publisher="the tests",
        format="allennlp",
        page="http://127.0.0.1/tiny",
        urls=urls,
        word_splitter="treebank",
        facts="elmo-pubmed",
    )
    monkeypatch.setattr(catalog, "CATALOG", MappingProxyType({**catalog.CATALOG, record.name: record}))
    return record


def convert(entry: CatalogEntry, output: Path, force_download: bool = False) -> ConversionReport:
    with downloaded(entry, output, force_download=force_download) as source:
        return convert_checkpoint(source, output, catalog_entry=entry)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def breaking_after(number: int) -> list[tuple[str, int]]:
    """Faults of a server that sends so many bytes, and then nothing in all other attempts of a command."""
    return [("break", number), *[("break", 0)] * (http_files.ATTEMPTS - 1)]


def assert_fails(entry: CatalogEntry, output: Path, *messages: str) -> str:
    """Checks that a download or conversion ends in a clear error and leaves nothing behind."""
    before = sorted(path.name for path in output.parent.iterdir())
    with pytest.raises(ConversionError) as caught:
        convert(entry, output)
    for message in messages:
        assert message in str(caught.value)
    assert sorted({path.name for path in output.parent.iterdir()} - {"cache"}) == [n for n in before if n != "cache"]
    return str(caught.value)


def test_convert_by_name(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    result = run("convert", "elmo-tiny", tmp_path / "elmo")
    assert result.exit_code == 0, result.output
    assert server.requests == [(OPTIONS, None), (WEIGHTS, None)]
    card = (tmp_path / "elmo" / "README.md").read_text()
    assert "# Tiny ELMo" in card
    assert f"- <{server.url(WEIGHTS)}>" in card
    assert "`elmo_tiny_weights.hdf5`" in card
    assert "`treebank`" in card
    assert '"word_splitter": "treebank"' in (tmp_path / "elmo" / "tokenizer_config.json").read_text()
    # Nothing but the cache stays of the download.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "elmo", "published"]
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir() or ".part" in path.name] == []


def test_a_splitter_given_by_hand_wins(entry: CatalogEntry, tmp_path: Path) -> None:
    assert run("convert", "elmo-tiny", tmp_path / "elmo", "--word-splitter", "punctuation").exit_code == 0
    assert '"word_splitter": "punctuation"' in (tmp_path / "elmo" / "tokenizer_config.json").read_text()


def test_the_cache_serves_the_second_time_and_offline(
    server: FileServer, entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = convert(entry, tmp_path / "first")
    asked = list(server.requests)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    second = convert(entry, tmp_path / "second")
    assert server.requests == asked
    assert first.files == second.files


def test_one_file(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("options.json", server.files[OPTIONS])
        file.writestr("model.hdf5", server.files[WEIGHTS])
    server.files["20/900.zip"] = archive.getvalue()
    entry = add_record(monkeypatch, server.url("20/900.zip"))
    with downloaded(entry, tmp_path / "elmo") as source:
        assert source.name == "900.zip"
        assert source.read_bytes() == archive.getvalue()
    assert not source.exists()
    assert convert(entry, tmp_path / "elmo").catalog_entry == entry


def packed(folder: Path, kind: str) -> bytes:
    """A folder as an archive with its files at the root."""
    content = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(content, "w") as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, path.name)
    else:
        with tarfile.open(fileobj=content, mode="w:gz") as archive:
            archive.add(folder, ".")
    return content.getvalue()


def original_files(name: str) -> dict[str, bytes]:
    """The files of a fixture, as checkpoints of its format are published."""
    if name == "deeppavlov-hub":
        return {"elmo_ru.tar.gz": fixture_path("deeppavlov_hub_ru", "elmo_ru_tiny.tar.gz").read_bytes()}
    if name == "deeppavlov-lm":
        return {"elmo-lm.tar.gz": packed(fixture_path("deeppavlov_lm_ru"), "tar.gz")}
    if name == "nlpl":
        return {"900.zip": fixture_path("nlpl_zip", "900.zip").read_bytes()}
    if name == "elmoformanylangs":
        return {"136.zip": packed(fixture_path("elmoformanylangs", "model"), "zip")}
    folder = fixture_path("bilm_tf_lm")
    names = ("options.json", "model.ckpt-5.index", "model.ckpt-5.data-00000-of-00001")
    # The published vocabulary has a date in its name.
    return {name: (folder / name).read_bytes() for name in names} | {
        "vocab-2016-09-10.txt": (folder / "vocab.txt").read_bytes()
    }


@pytest.mark.parametrize("name", ["deeppavlov-hub", "deeppavlov-lm", "nlpl", "elmoformanylangs", "bilm-tf"])
def test_every_kind_of_publication_converts_by_name(
    name: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = original_files(name)
    entry = add_record(monkeypatch, *map(server.url, server.files))
    result = run("convert", entry.name, tmp_path / "elmo")
    assert result.exit_code == 0, result.output
    assert "# Tiny ELMo" in (tmp_path / "elmo" / "README.md").read_text()
    vocabularies = {path.name for path in (tmp_path / "elmo").glob("vocab*")}
    assert ("vocab.txt" in vocabularies) == (name not in ("deeppavlov-hub", "nlpl"))
    assert len(list((tmp_path / "cache").iterdir())) == 3 * len(server.files)


def test_a_path_that_exists_is_no_name(entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "published").rename("elmo-tiny")
    assert run("convert", "elmo-tiny", "elmo").exit_code == 0
    assert "# elmo\n" in Path("elmo/README.md").read_text()
    assert not Path("cache").exists()


def test_files_fetched_by_hand(entry: CatalogEntry, tmp_path: Path) -> None:
    result = run("convert", tmp_path / "published", tmp_path / "elmo", "--as", "elmo-tiny")
    assert result.exit_code == 0, result.output
    assert "# Tiny ELMo" in (tmp_path / "elmo" / "README.md").read_text()
    result = run("convert", tmp_path / "published", tmp_path / "other", "--as", "elmo-tyni")
    assert result.exit_code == 1
    assert "elmo-tiny" in result.stderr


def test_without_a_network(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    datasets.config.HF_HUB_OFFLINE = True
    message = assert_fails(entry, tmp_path / "elmo", "cannot be downloaded (Offline mode is enabled")
    assert f"fetch {server.url(OPTIONS)} and {server.url(WEIGHTS)} by hand into one folder" in message
    assert f"run `hf-elmo convert FOLDER {tmp_path / 'elmo'} --as elmo-tiny`" in message
    assert len(message.splitlines()) == 1
    assert server.requests == []


def test_a_record_without_addresses_says_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = add_record(monkeypatch)
    assert_fails(entry, tmp_path / "elmo", "http://127.0.0.1/tiny", "hf-elmo convert FILE_OR_FOLDER", "--as elmo-tiny")


def test_a_missing_file(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    del server.files[WEIGHTS]
    assert_fails(
        entry, tmp_path / "elmo", f"{server.url(WEIGHTS)} does not exist any more (HTTP status 404)", "by hand"
    )
    assert len(server.requests) == 2


def test_a_refused_file(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    server.faults[OPTIONS] = [("status", 403)]
    assert_fails(entry, tmp_path / "elmo", "is refused (HTTP status 403)", "by hand")
    assert len(server.requests) == 1


def test_a_server_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache")
    with serve_files() as gone:
        url = gone.url("900.zip")
    entry = add_record(monkeypatch, url)
    assert_fails(entry, tmp_path / "elmo", f"{url} cannot be reached", "hf-elmo convert 900.zip")


def test_a_busy_server_is_asked_again(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    server.faults[OPTIONS] = [("status", 503), ("drop", 0), ("status", 500)]
    convert(entry, tmp_path / "elmo")
    assert [path for path, _ in server.requests] == [OPTIONS] * 4 + [WEIGHTS]


def test_a_server_that_stays_busy(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    server.faults[OPTIONS] = [("status", 503)] * 10
    assert_fails(entry, tmp_path / "elmo", "is refused (HTTP status 503)")
    assert len(server.requests) == http_files.ATTEMPTS


def test_a_broken_transfer_continues(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    server.faults[WEIGHTS] = [("break", 1000), ("break", 500)]
    convert(entry, tmp_path / "elmo")
    asked = [asked for path, asked in server.requests if path == WEIGHTS]
    assert asked == [None, "bytes=1000-", "bytes=1500-"]


def test_a_command_repeated_after_a_broken_transfer_continues(
    server: FileServer, entry: CatalogEntry, tmp_path: Path
) -> None:
    server.faults[WEIGHTS] = breaking_after(1000)
    length = len(server.files[WEIGHTS])
    assert_fails(entry, tmp_path / "elmo", f"broke off: 1000 of {length} bytes arrived")
    server.requests.clear()
    convert(entry, tmp_path / "elmo")
    assert server.requests == [(WEIGHTS, "bytes=1000-")]


def test_a_file_that_changed_meanwhile_starts_again(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    whole = server.files[WEIGHTS]
    server.files[WEIGHTS] = b"another file"
    server.faults[WEIGHTS] = breaking_after(5)
    assert_fails(entry, tmp_path / "elmo", "broke off")
    server.files[WEIGHTS] = whole
    convert(entry, tmp_path / "elmo")


@pytest.mark.parametrize("missing", ["ranges", "versions"])
def test_servers_that_cannot_continue_send_all_again(
    missing: str, server: FileServer, entry: CatalogEntry, tmp_path: Path
) -> None:
    setattr(server, missing, False)
    server.faults[WEIGHTS] = [("break", 1000)]
    convert(entry, tmp_path / "elmo")
    asked = [asked for path, asked in server.requests if path == WEIGHTS]
    assert asked == [None, "bytes=1000-" if missing == "ranges" else None]


def test_a_part_without_a_rest_starts_again(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    server.faults[WEIGHTS] = breaking_after(1000)
    assert_fails(entry, tmp_path / "elmo", "broke off")
    (part,) = (tmp_path / "cache").glob("*.part")
    part.write_bytes(b"x" * 2 * len(server.files[WEIGHTS]))
    convert(entry, tmp_path / "elmo")


def test_a_server_that_never_answers(server: FileServer, entry: CatalogEntry, tmp_path: Path) -> None:
    server.faults[OPTIONS] = [("drop", 0)] * 10
    assert_fails(entry, tmp_path / "elmo", f"{server.url(OPTIONS)} broke off")
    assert len(server.requests) == http_files.ATTEMPTS


@pytest.mark.parametrize("damage", ["cut short", "page of HTML"])
def test_a_damaged_file_is_refused_and_fetched_again_when_asked(
    damage: str, server: FileServer, entry: CatalogEntry, tmp_path: Path
) -> None:
    whole = server.files[WEIGHTS]
    server.files[WEIGHTS] = whole[:3000] if damage == "cut short" else b"<html><body>Moved.</body></html>"
    message = assert_fails(entry, tmp_path / "elmo", "elmo_tiny_weights.hdf5", "--force-download")
    assert str(tmp_path / "cache") in message
    server.files[WEIGHTS] = whole
    assert_fails(entry, tmp_path / "elmo", "--force-download")
    assert run("convert", "elmo-tiny", tmp_path / "elmo", "--force-download").exit_code == 0


def test_a_full_output_folder_is_refused_before_the_download(
    server: FileServer, entry: CatalogEntry, tmp_path: Path
) -> None:
    with pytest.raises(ConversionError, match="not empty"):
        convert(entry, tmp_path / "published")
    assert server.requests == []
