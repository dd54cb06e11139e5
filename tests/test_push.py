"""Pushing to the Hub, with the real client over HTTP against the small Hub of `hub_server.py` on loopback."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import close_session
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer
from typer.testing import CliRunner, Result

from hf_elmo import ElmoForTokenClassification
from hf_elmo.cli import app
from hf_elmo.conversion import ConversionError, PushError, PushReport, push_folder
from hf_elmo.conversion.seal import is_sealed, seal
from tests import push_session
from tests.assertions import assert_close
from tests.checkpoints import write_checkpoint
from tests.hub_server import READ, WRITE, Hub, running_hub
from tests.saved_folders import TEXTS, save_published_folder, varied_model
from tests.test_remote_code import EQUAL, run_without_the_package

# The client's own way to send files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")

REPOSITORY = "someone/elmo-ru-tiny"
API = f"/api/models/{REPOSITORY}"
REQUESTS = [
    ("POST", "/api/repos/create"),
    ("GET", API),
    ("HEAD", f"/{REPOSITORY}/resolve"),
    ("GET", f"/{REPOSITORY}/resolve"),
    ("POST", "/api/validate-yaml"),
    ("POST", f"{API}/preupload"),
    ("POST", f"/{REPOSITORY}.git/info/lfs"),
    ("PUT", "/lfs/upload"),
    ("POST", "/lfs/verify"),
    ("POST", f"{API}/commit"),
]


def settings(hub: Hub, home: Path) -> dict[str, str]:
    """The environment of a process that takes the small Hub for the Hub."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": WRITE,
        # The successor of LFS, Xet, needs a server of its own; without it the client uses LFS.
        "HF_HUB_DISABLE_XET": "1",
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that the client of this process takes for the Hub; waiting between attempts is cut short."""
    (tmp_path / "hub").mkdir()
    sleep = time.sleep
    with running_hub(tmp_path / "hub") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        resolve = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", resolve)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_TOKEN", WRITE)
        monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))
        yield hub
        close_session()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_published_folder(tmp_path_factory.mktemp("saved") / "elmo")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "elmo")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def pushed_commits(hub: Hub) -> int:
    """The commits after the one that every repository begins with."""
    return len(hub.repositories[REPOSITORY].commits) - 1


def assert_holds(hub: Hub, folder: Path, *besides: str) -> None:
    """Checks that the latest commit has all of the folder, byte for byte."""
    names = {path.name for path in folder.iterdir()}
    assert set(hub.repositories[REPOSITORY].head.files) == names | {".gitattributes", *besides}
    for name in names - set(besides):
        assert hub.content(REPOSITORY, name) == (folder / name).read_bytes(), name


def assert_push_fails(folder: Path, message: str, **arguments: Any) -> None:
    """Checks that a push ends with one sentence, or one and advice."""
    with pytest.raises(PushError, match=message) as caught:
        push_folder(folder, arguments.pop("repo_id", REPOSITORY), **arguments)
    assert "\n" not in str(caught.value)
    assert WRITE not in str(caught.value)


class TestOneCommit:
    def test_everything_goes_in_one_commit(self, hub: Hub, folder: Path) -> None:
        report = push_folder(folder, REPOSITORY)
        assert pushed_commits(hub) == 1
        assert_holds(hub, folder)
        head = hub.repositories[REPOSITORY].head
        assert [name for name, file in head.files.items() if file.lfs] == ["model.safetensors"]
        assert set(report.files) == set(head.files) - {".gitattributes"}
        assert report.url == f"{hub.url}/{REPOSITORY}/commit/{head.oid}"
        assert report.changed
        assert not report.private
        assert report.url in report.summary()

    def test_a_name_alone_is_the_token_owners(self, hub: Hub, folder: Path) -> None:
        assert push_folder(folder, REPOSITORY.split("/")[1]).repo_id == REPOSITORY

    def test_pushing_again_sends_and_adds_nothing(self, hub: Hub, folder: Path) -> None:
        push_folder(folder, REPOSITORY)
        sent = hub.bytes_uploaded
        report = push_folder(folder, REPOSITORY)
        assert not report.changed
        assert "nothing was pushed" in report.summary()
        assert (pushed_commits(hub), hub.bytes_uploaded) == (1, sent)

    def test_pushing_again_sends_what_is_new(self, hub: Hub, folder: Path) -> None:
        push_folder(folder, REPOSITORY)
        sent = hub.bytes_uploaded
        (folder / "notes.txt").write_text("new")
        assert push_folder(folder, REPOSITORY).changed
        assert (pushed_commits(hub), hub.bytes_uploaded) == (2, sent)
        assert_holds(hub, folder)

    def test_weights_of_an_earlier_push_do_not_stay_beside_new_ones(self, hub: Hub, folder: Path) -> None:
        push_folder(folder, REPOSITORY)
        hub.commit_as_person(REPOSITORY, "notes.txt", b"mine")
        (folder / "model.safetensors").unlink()
        varied_model().save_pretrained(folder, max_shard_size="4KB")
        report = push_folder(folder, REPOSITORY)
        assert report.removed == ("model.safetensors",)
        assert_holds(hub, folder, "notes.txt")

    def test_dry_run_sends_nothing(self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HF_TOKEN")
        (folder / "optimizer.pt").write_text("")
        report = push_folder(folder, REPOSITORY, dry_run=True)
        assert hub.requests == []
        text = report.summary()
        assert all(name in text for name in ("config.json", "lstm_elmo.py", "Left out: optimizer.pt", "Dry run"))
        (folder / "config.json").unlink()
        with pytest.raises(ConversionError, match=r"no config\.json"):
            push_folder(folder, REPOSITORY, dry_run=True)


class TestServer:
    """The small Hub answers the client's other questions, too."""

    def test_reading(self, hub: Hub, folder: Path, tmp_path: Path) -> None:
        push_folder(folder, REPOSITORY)
        api = HfApi()
        assert api.whoami()["name"] == "someone"
        assert set(api.list_repo_files(REPOSITORY)) == set(hub.repositories[REPOSITORY].head.files)
        tree = {entry.path: entry for entry in api.list_repo_tree(REPOSITORY)}
        assert tree["model.safetensors"].lfs.size == (folder / "model.safetensors").stat().st_size
        assert [entry.path for entry in api.get_paths_info(REPOSITORY, ["config.json", "none"])] == ["config.json"]
        copy = Path(api.snapshot_download(REPOSITORY, local_dir=tmp_path / "copy"))
        for path in folder.iterdir():
            assert (copy / path.name).read_bytes() == path.read_bytes()

    def test_private_repositories_are_hidden(self, hub: Hub) -> None:
        hub.make(REPOSITORY, private=True)
        assert HfApi(token=READ).repo_exists(REPOSITORY)
        assert not HfApi(token=False).repo_exists(REPOSITORY)


class TestVisibility:
    def test_private(self, hub: Hub, folder: Path) -> None:
        assert push_folder(folder, REPOSITORY, private=True).private
        assert hub.repositories[REPOSITORY].private
        assert "(private)" in push_folder(folder, REPOSITORY).summary()

    def test_a_public_repository_is_not_taken_for_a_private_one(self, hub: Hub, folder: Path) -> None:
        hub.make(REPOSITORY)
        assert_push_fails(folder, "exists and is public", private=True)
        assert pushed_commits(hub) == 0


class TestCard:
    def assert_kept(self, hub: Hub, folder: Path, card: bytes) -> None:
        report = push_folder(folder, REPOSITORY)
        assert report.card_kept
        assert "Kept the README.md" in report.summary()
        assert hub.content(REPOSITORY, "README.md") == card
        assert_holds(hub, folder, "README.md")

    def test_a_card_that_a_person_wrote_stays(self, hub: Hub, folder: Path) -> None:
        hub.make(REPOSITORY)
        hub.commit_as_person(REPOSITORY, "README.md", b"Mine.")
        self.assert_kept(hub, folder, b"Mine.")

    def test_a_generated_card_that_a_person_changed_stays(self, hub: Hub, folder: Path) -> None:
        push_folder(folder, REPOSITORY)
        card = hub.content(REPOSITORY, "README.md").replace(b"ELMo", b"My ELMo")
        hub.commit_as_person(REPOSITORY, "README.md", card)
        (folder / "README.md").write_text(seal("# Newer\n"))
        self.assert_kept(hub, folder, card)

    def test_a_generated_card_that_nobody_changed_is_renewed(self, hub: Hub, folder: Path) -> None:
        push_folder(folder, REPOSITORY)
        (folder / "README.md").write_text(seal("# Newer\n"))
        assert not push_folder(folder, REPOSITORY).card_kept
        assert_holds(hub, folder)

    def test_a_card_that_appears_during_the_push_stays(
        self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.make(REPOSITORY)
        commit = HfApi.create_commit

        def after_the_person(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(HfApi, "create_commit", commit)
            hub.commit_as_person(REPOSITORY, "README.md", b"Mine.")
            return commit(*arguments, **options)

        monkeypatch.setattr(HfApi, "create_commit", after_the_person)
        self.assert_kept(hub, folder, b"Mine.")

    def test_metadata_that_the_hub_refuses(self, hub: Hub, folder: Path) -> None:
        (folder / "README.md").write_text("---\nlicense: 3\n---\n")
        assert_push_fails(folder, r"The Hub refuses the README\.md .* must be a string")
        assert pushed_commits(hub) == 0


class TestTrouble:
    @pytest.mark.parametrize(
        ("method", "path", "action"),
        # An answer to HEAD has no body that could be cut off.
        [
            (*request, action)
            for request in REQUESTS
            for action in ("500", "drop", "lose")[: 1 if "HEAD" in request else 3]
        ],
    )
    def test_any_request_may_fail_once(self, hub: Hub, folder: Path, method: str, path: str, action: str) -> None:
        hub.make(REPOSITORY)
        hub.commit_as_person(REPOSITORY, "README.md", seal("# Older\n").encode())
        hub.disturb(method, path, action)
        report = push_folder(folder, REPOSITORY)
        assert hub.faults[0].times == 0
        assert report.url.endswith(hub.repositories[REPOSITORY].head.oid)
        assert pushed_commits(hub) == 2
        assert_holds(hub, folder)

    @pytest.mark.parametrize(("method", "path"), [REQUESTS[0], REQUESTS[7], REQUESTS[9]])
    def test_a_lasting_failure_leaves_no_half_push(self, hub: Hub, folder: Path, method: str, path: str) -> None:
        hub.make(REPOSITORY)
        hub.disturb(method, path, "503", times=1000)
        assert_push_fails(folder, r"does not take the push .* \(503: .*run the same command again later")
        assert pushed_commits(hub) == 0
        hub.faults.clear()
        push_folder(folder, REPOSITORY)
        assert pushed_commits(hub) == 1
        assert_holds(hub, folder)
        # What arrived before the failure was not sent again.
        assert hub.bytes_uploaded == (folder / "model.safetensors").stat().st_size

    def test_refused_tokens(self, hub: Hub, folder: Path) -> None:
        assert_push_fails(folder, r"refused the token .* \(401: Invalid credentials", token="hf_unknown")
        assert_push_fails(folder, r"may not write to .* \(403: You don't have the rights", token=READ)
        assert_push_fails(folder, r"may not write to other/elmo \(403", repo_id="other/elmo")
        assert hub.repositories == {}

    def test_a_token_that_may_only_read_an_existing_repository(self, hub: Hub, folder: Path) -> None:
        hub.make(REPOSITORY)
        assert_push_fails(folder, "may not write to", token=READ)
        assert pushed_commits(hub) == 0

    def test_no_token(self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HF_TOKEN")
        assert_push_fails(folder, "There is no token for the Hub; run `hf auth login`")
        assert hub.requests == []

    @pytest.mark.parametrize("repo_id", ["", "a/b/c", "some one/elmo", "someone/elmo--ru", "someone/", "x" * 200])
    def test_malformed_names(self, hub: Hub, folder: Path, repo_id: str) -> None:
        assert_push_fails(folder, "cannot be the name of a repository; it is owner/name", repo_id=repo_id)
        assert hub.requests == []

    def test_no_connection(self, hub: Hub, folder: Path) -> None:
        assert_push_fails(folder, r"No connection to http://127\.0\.0\.1:9 ", endpoint="http://127.0.0.1:9")

    def test_offline(self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert_push_fails(folder, "HF_HUB_OFFLINE is set")

    def test_storage_that_cannot_be_reached(self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("hf_xet")
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
        assert_push_fails(folder, "xet-write-token.*HF_HUB_DISABLE_XET=1")
        assert pushed_commits(hub) == 0


class TestCommands:
    def test_push(self, hub: Hub, folder: Path) -> None:
        result = run("push", folder, REPOSITORY, "--dry-run")
        assert (result.exit_code, hub.requests) == (0, [])
        assert "model.safetensors" in result.stdout
        result = run("push", folder, REPOSITORY, "--private")
        assert result.exit_code == 0
        assert f"to {REPOSITORY} (private)" in result.stdout
        assert_holds(hub, folder)

    def test_help_teaches(self) -> None:
        assert "hf-elmo push elmo-original someone/elmo-original --dry-run" in run("push", "--help").stdout
        assert "--push-to-hub someone/elmo-mine --private" in run("convert", "--help").stdout

    def test_push_fails_with_one_message(self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_unknown")
        result = run("push", folder, REPOSITORY)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert [line for line in result.stderr.splitlines() if line.startswith("Error: The Hub refused the token")]

    def test_interrupt_says_how_to_go_on(self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*arguments: Any, **options: Any) -> PushReport:
            raise KeyboardInterrupt

        monkeypatch.setattr(HfApi, "create_commit", interrupted)
        result = run("push", folder, REPOSITORY, "--private")
        assert result.exit_code == 130
        assert f"To go on: hf-elmo push {folder} {REPOSITORY} --private" in result.stderr

    def test_convert_and_push(self, hub: Hub, tmp_path: Path) -> None:
        output = tmp_path / "converted"
        result = run(
            "convert", write_checkpoint(tmp_path / "source"), output, "--push-to-hub", REPOSITORY, "--private"
        )
        assert result.exit_code == 0, result.output
        assert_holds(hub, output)
        assert hub.repositories[REPOSITORY].private
        assert is_sealed(hub.content(REPOSITORY, "README.md"))

    def test_what_was_converted_stays_when_the_push_fails(
        self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", READ)
        output = tmp_path / "converted"
        result = run("convert", write_checkpoint(tmp_path / "source"), output, "--push-to-hub", REPOSITORY)
        assert result.exit_code == 1
        assert "Error: The token may not write" in result.stderr
        assert f"to push it: hf-elmo push {output} {REPOSITORY}" in result.stderr
        monkeypatch.setenv("HF_TOKEN", WRITE)
        assert run("push", output, REPOSITORY).exit_code == 0
        assert_holds(hub, output)

    def test_what_cannot_be_pushed_is_not_converted(
        self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = write_checkpoint(tmp_path / "source")
        monkeypatch.delenv("HF_TOKEN")
        for options in (["--push-to-hub", REPOSITORY], ["--push-to-hub", "a/b/c"], ["--private"]):
            assert run("convert", source, tmp_path / "converted", *options).exit_code == 1
        assert not (tmp_path / "converted").exists()
        assert hub.requests == []


def start(hub: Hub, root: Path, *arguments: object) -> subprocess.Popen[str]:
    """Starts Python with the package, in an environment whose Hub is the small one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=root,
        env=environment | settings(hub, root / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_killed_push_leaves_nothing_and_can_be_repeated(
    hub: Hub, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    # More than the system buffers on the way, so that the rest has not left the client.
    folder = save_published_folder(tmp_path / "elmo", cell_size=1000, projection_size=200)
    size = (folder / "model.safetensors").stat().st_size
    assert size > 20_000_000
    hub.upload_waits = True
    process = start(hub, tmp_path, "-m", "hf_elmo.cli", "push", folder, REPOSITORY)
    try:
        assert hub.upload_began.wait(timeout=120)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status
    assert "Traceback" not in errors
    hub.upload_waits = False
    assert pushed_commits(hub) == 0
    push_folder(folder, REPOSITORY)
    assert (pushed_commits(hub), hub.bytes_uploaded) == (1, size)
    assert_holds(hub, folder)


HEAD = "someone/elmo-tiny-tagger"


@pytest.fixture(scope="module")
def folders(saved: Path) -> tuple[Path, Path]:
    """A base and a head folder."""
    labels = {"id2label": {0: "O", 1: "B-X", 2: "I-X"}, "label2id": {"O": 0, "B-X": 1, "I-X": 2}}
    return saved, save_published_folder(saved.with_name("head"), ElmoForTokenClassification, **labels)


@pytest.fixture(scope="module")
def published(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub to which a process of its own pushed the base by the command and the head by `push_to_hub`."""
    root = tmp_path_factory.mktemp("publisher")
    (root / "hub").mkdir()
    with running_hub(root / "hub") as hub:
        process = start(hub, root, push_session.__file__, *folders, REPOSITORY, HEAD)
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors[-4000:]
        yield hub


@pytest.fixture(scope="module")
def found(published: Hub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another process finds in the two repositories without the package."""
    root = tmp_path_factory.mktemp("reader")
    return run_without_the_package(REPOSITORY, HEAD, root, **settings(published, root / "cache"))


def test_push_to_hub_sends_code_and_the_whole_auto_map(published: Hub, folders: tuple[Path, Path]) -> None:
    _, head = folders
    repository = published.repositories[HEAD]
    assert repository.private
    # One commit for the model and one for the tokenizer, after the repository's own.
    assert len(repository.commits) == 3
    assert {path.name for path in head.iterdir()} <= set(repository.head.files)
    for path in [*head.glob("*.py"), head / "model.safetensors", head / "tokenizer.json"]:
        assert published.content(HEAD, path.name) == path.read_bytes(), path.name
    for name in ("config.json", "tokenizer_config.json"):
        auto_map = json.loads(published.content(HEAD, name))["auto_map"]
        assert auto_map == json.loads((head / name).read_text())["auto_map"]


def test_published_models_load_without_the_package(found: dict[str, Any], folders: tuple[Path, Path]) -> None:
    assert found["modules"] == []
    assert found["code"] == ["transformers_modules"]
    classes = ["ElmoModel", "ElmoForSequenceClassification", "ElmoForTokenClassification", "ElmoForPreTraining"]
    assert found["classes"] == [name for name in classes for _ in ("base", "head")]
    assert math.isfinite(found["loss"])


def test_published_models_give_the_same_numbers(found: dict[str, Any], folders: tuple[Path, Path]) -> None:
    base, head = folders
    tokenizer = AutoTokenizer.from_pretrained(base)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert found["decoded"] == tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
    expected = [AutoModel.from_pretrained(folder)(**batch).last_hidden_state for folder in (base, head)]
    for index, vectors in enumerate(found["vectors"]):
        assert_close(vectors, expected[index % 2], EQUAL)
    assert_close(found["logits"], AutoModelForTokenClassification.from_pretrained(head)(**batch).logits, 1e-5)
