"""From a complete folder to a repository on the Hub, in one commit."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_elmo._version import __version__

from .hub_errors import PushError, explain, is_transient
from .publishable import CARD, INDEX, WEIGHTS, check_complete, list_files
from .seal import is_sealed

WAITS = (1.0, 4.0)
"""Seconds before each further attempt, for requests that the client itself sends only once."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class PushReport:
    """The result of `push_folder`.

    Args:
        folder: What was pushed.
        repo_id: Where, with its owner; as it was given in a dry run.
        files: Path -> size in bytes of every file that belongs to the push.
        left_out: Files and folders that stay here.
        removed: Weights of an earlier push that the commit removed.
        card_kept: Whether the repository's README.md was left as it is, because somebody else wrote or changed it.
        private: Whether the repository is private; in a dry run, whether a new one would be.
        changed: Whether there was anything new.
        dry_run: Whether all of this only would have happened.
        url: The commit; the repository's latest one when nothing was new; empty in a dry run.
    """

    folder: Path
    repo_id: str
    files: dict[str, int]
    left_out: tuple[str, ...]
    removed: tuple[str, ...]
    card_kept: bool
    private: bool
    changed: bool
    dry_run: bool
    url: str

    def summary(self) -> str:
        """A few lines for the terminal."""
        total = f"{len(self.files)} files, {format_size(sum(self.files.values()))}"
        visibility = "private" if self.private else "public"
        if self.dry_run:
            lines = [f"Would push {total}, from {self.folder} to {self.repo_id} in one commit:", ""]
            lines += [f"  {format_size(size):>10}  {name}" for name, size in self.files.items()]
            lines += ["", f"A repository that does not exist yet would be made, {self.describe_new()}."]
            lines += [f"A {CARD} there that a person wrote or changed would stay as it is."]
        elif self.changed:
            lines = [f"Pushed {total}, from {self.folder} to {self.repo_id} ({visibility})", f"  {self.url}"]
        else:
            lines = [f"{self.repo_id} ({visibility}) has all of {self.folder} already; nothing was pushed"]
        if self.left_out:
            lines += [f"Left out: {', '.join(self.left_out)}"]
        if self.removed:
            lines += [f"Removed weights of an earlier push: {', '.join(self.removed)}"]
        if self.card_kept:
            lines += [
                f"Kept the {CARD} of the repository, which somebody else wrote or changed; "
                f"the one in {self.folder} was not pushed"
            ]
        if self.dry_run:
            lines += ["Dry run: nothing was sent"]
        return "\n".join(lines)

    def describe_new(self) -> str:
        """How visible a new repository is."""
        return "private" if self.private else "public unless its organization says otherwise"


def push_folder(
    folder: str | PathLike[str],
    repo_id: str,
    private: bool = False,
    dry_run: bool = False,
    token: str | None = None,
    commit_message: str | None = None,
    endpoint: str | None = None,
) -> PushReport:
    """Pushes a complete folder to the Hub: weights, configuration, tokenizer, code and card in one commit.

    The commit appears whole or not at all. After an interruption the same call completes the push; what the Hub's
    storage has received already is not sent again. A README.md in the repository that a person wrote or changed stays.

    Args:
        folder: What `convert_checkpoint` or `save_pretrained` wrote, with a README.md.
        repo_id: `owner/name`, or a name alone for the token's owner. The repository is made if it does not exist.
        private: Whether a new repository is private. An existing public one is then refused.
        dry_run: Only check the folder and list what would be pushed, without a network.
        token: A token of the Hub that may write; the saved one, or `HF_TOKEN`, by default.
        commit_message: The message of the commit.
        endpoint: The address of the Hub; `HF_ENDPOINT` or huggingface.co by default.

    Returns:
        What was pushed, and where it is.

    Raises:
        ConversionError: When the folder is not complete.
        PushError: When the Hub cannot be reached or refuses; nothing of the push is visible then.

    Example:
        >>> from hf_elmo.conversion import push_folder
        >>> print(push_folder("elmo", "someone/elmo", private=True).summary())
    """
    folder = Path(folder)
    check_repo_id(repo_id)
    check_complete(folder)
    names, left_out = list_files(folder)
    files = {name: (folder / name).stat().st_size for name in names}
    if dry_run:
        return PushReport(folder, repo_id, files, tuple(left_out), (), False, private, True, True, "")
    api = HfApi(endpoint=endpoint, token=find_token(token), library_name="hf-elmo", library_version=__version__)
    push = Push(api, folder, names, commit_message or f"Upload ELMo model with hf-elmo {__version__}")
    try:
        # No say in a public repository's visibility: an organization may make new ones private.
        repo_id = retry(lambda: api.create_repo(repo_id, private=private or None, exist_ok=True).repo_id)
        outcome = retry(lambda: push.commit(repo_id, private))
    except (PushError, HFValidationError):
        raise
    except ValueError as error:
        if "Invalid metadata" not in str(error):
            raise explain(error, repo_id, api.endpoint) from error
        raise PushError(f"The Hub refuses the {CARD} of {folder}: {' '.join(str(error).split())}") from error
    except Exception as error:
        raise explain(error, repo_id, api.endpoint) from error
    return PushReport(
        folder,
        repo_id,
        files,
        tuple(left_out),
        outcome.removed,
        outcome.card_kept,
        outcome.private,
        outcome.changed,
        False,
        outcome.url,
    )


def check_destination(repo_id: str) -> None:
    """Checks, before long work and without a network, that a push could begin.

    Raises:
        PushError: When the name is malformed or there is no token.
    """
    check_repo_id(repo_id)
    find_token()


def check_repo_id(repo_id: str) -> None:
    """Checks the form of a repository's name.

    Raises:
        PushError: When it cannot be one.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise PushError(
            f"{repo_id!r} cannot be the name of a repository; it is owner/name, of letters, digits and single - _ ."
        ) from error


def find_token(token: str | None = None) -> str:
    """The token to push with.

    Raises:
        PushError: When there is none.
    """
    token = token or get_token()
    if not token:
        raise PushError("There is no token for the Hub; run `hf auth login`, or set HF_TOKEN to one that may write.")
    return token


def retry(request: Callable[[], Result]) -> Result:
    """Repeats what fails for a reason that may pass.

    The client repeats most requests, but not all: neither making a repository nor committing. Both may be repeated,
    because a commit names the one it follows.
    """
    for wait in WAITS:
        try:
            return request()
        except Exception as error:
            if not is_transient(error):
                raise
        time.sleep(wait)
    return request()


@dataclass(frozen=True)
class Outcome:
    """What one commit did; see `PushReport`."""

    removed: tuple[str, ...]
    card_kept: bool
    private: bool
    changed: bool
    url: str


@dataclass(frozen=True)
class Push:
    """One folder on its way to the Hub.

    Args:
        api: The client, with endpoint and token.
        folder: The folder.
        names: Its files that go there.
        message: The message of the commit.
    """

    api: HfApi
    folder: Path
    names: list[str]
    message: str

    def commit(self, repo_id: str, private: bool) -> Outcome:
        """Looks at the repository and commits what is new, unless it changes meanwhile.

        Raises:
            PushError: When the repository is public and must not be.
        """
        info = self.api.model_info(repo_id)
        if private and info.private is False:
            raise PushError(
                f"{repo_id} exists and is public; make it private in its settings, or push without --private."
            )
        present = {sibling.rfilename for sibling in info.siblings or ()}
        card_kept = CARD in present and not self.may_write_card(repo_id, info.sha)
        removed = sorted(name for name in present - set(self.names) if is_weights(name))
        added = [
            CommitOperationAdd(name, self.folder / name) for name in self.names if not (card_kept and name == CARD)
        ]
        commit = self.api.create_commit(
            repo_id,
            [*added, *(CommitOperationDelete(name) for name in removed)],
            commit_message=self.message,
            # Whoever commits after we looked, for instance a card, makes the Hub refuse; then we look again.
            parent_commit=info.sha,
        )
        return Outcome(tuple(removed), card_kept, bool(info.private), commit.oid != info.sha, commit.commit_url)

    def may_write_card(self, repo_id: str, revision: str | None) -> bool:
        """Whether the repository's card is ours as it stands, or the same as the folder's."""
        with tempfile.TemporaryDirectory() as place:
            path = self.api.hf_hub_download(repo_id, CARD, revision=revision, local_dir=place)
            content = Path(path).read_bytes()
        return is_sealed(content) or content == (self.folder / CARD).read_bytes()


def is_weights(name: str) -> bool:
    """Whether `from_pretrained` might take a file of a repository for the model's weights."""
    return name in (WEIGHTS, INDEX) or (name.startswith("model-") and name.endswith(".safetensors"))


def format_size(size: int) -> str:
    """A number of bytes in words."""
    amount = float(size)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
