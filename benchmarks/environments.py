"""Environments of the peers, made once from pinned versions and used again."""

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).resolve().parent / "peers"
PEER_PYTHON = (3, 11)
"""The newest Python for which every pinned package of the peers is published ready to install."""


@dataclass(frozen=True)
class Peer:
    """A package to compare with.

    Args:
        name: Its name; `peers/NAME.txt` pins what it needs.
        title: How tables call it, with its version.
        packages: What pip installs with what these need.
        alone: What pip installs without what it asks for.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    alone: tuple[str, ...]

    @property
    def pins(self) -> Path:
        """The file of exact versions."""
        return PINS / f"{self.name}.txt"

    @property
    def recipe(self) -> str:
        """Changes whenever the environment would."""
        text = "\n".join([*self.packages, *self.alone, self.pins.read_text(encoding="utf-8")])
        return hashlib.sha256(text.encode()).hexdigest()


# AllenNLP's own requirements cannot be met any more; its ELMo runs with few of them (see allennlp_stub.py).
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "allennlp",
            "AllenNLP 2.10.1",
            ("torch", "h5py", "numpy", "transformers", "huggingface_hub"),
            ("allennlp==2.10.1",),
        ),
        Peer(
            "simple_elmo",
            "simple_elmo 0.9.2",
            ("tensorflow-cpu", "tf-keras", "h5py", "pandas", "scipy", "smart_open"),
            ("simple_elmo==0.9.2",),
        ),
    )
}


def set_up(peer: Peer, folder: Path) -> Path:
    """The Python of a peer's environment, which is made unless it is there with the same versions.

    Args:
        peer: What to install.
        folder: Where the environments are; this one gets a folder of the peer's name.

    Raises:
        RuntimeError: When the installation fails, with pip's last words.
    """
    environment = folder / peer.name
    python = environment / "bin" / "python"
    finished = environment / "recipe.txt"
    if finished.is_file() and finished.read_text().strip() == peer.recipe:
        return python
    print(f"Setting up {peer.title} in {environment} (once; a few minutes)", flush=True)
    shutil.rmtree(environment, ignore_errors=True)
    environment.parent.mkdir(parents=True, exist_ok=True)
    run([find_python(), "-m", "venv", str(environment)], peer)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*install, "--constraint", str(peer.pins), *peer.packages], peer)
    run([*install, "--no-deps", *peer.alone], peer)
    finished.write_text(peer.recipe + "\n")
    return python


def find_python() -> str:
    """A Python that the peers' packages are published for."""
    if sys.version_info[:2] == PEER_PYTHON:
        return sys.executable
    name = "python{}.{}".format(*PEER_PYTHON)
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(
            f"The peers need {name}, which is not on PATH; install it, or leave them out with --peers none."
        )
    return found


def run(command: list[str], peer: Peer) -> None:
    """Runs one step of an installation.

    Raises:
        RuntimeError: When it fails.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise RuntimeError(f"{peer.title} could not be set up; `{' '.join(command)}` said:\n{last}")
