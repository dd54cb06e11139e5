"""Damaged and hostile checkpoints: each ends in a clear error or in a model with exactly what its files say.

"What its files say" is what an independent reader finds in them: h5py, PyTorch and a plain parser for the formats
without checksums, where a changed weight cannot be told from a weight; for TensorFlow's files and for archives, which
have checksums, only the undamaged arrays. The model that is built from them is compared with them bit for bit, and its
outputs with the original's equations, as in every conversion.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import signal
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import h5py
import numpy as np
import pytest
import torch

from hf_elmo.conversion import ConversionError, archives, convert_checkpoint, verify_folder
from hf_elmo.conversion.convert import build_model, compare_outputs, compare_tensors, make_tokenizer
from hf_elmo.conversion.prepare import PreparedSource, prepared_source

from .checkpoints import random_tensors, tiny_options
from .corruption import (
    MANYLANGS_OPTIONS,
    OPTIONS,
    Arrays,
    Damage,
    Files,
    arrays_of_hdf5,
    arrays_of_state_dict,
    entries_of_lexicon,
    fields_of,
    same_arrays,
)
from .hostile_archives import TARS, ZIPS, write_tar, write_zip
from .shared_files import fixture_path
from .task_models import task_model_state, write_task_model

SECONDS_A_CASE = 20
KILOBYTES = 2**20
"""What the memory of the process may grow by, for models of less than a megabyte."""

CASES = 240
SAMPLE = range(0, CASES, 9)
"""Every ninth case: all kinds of damage, for there are 17 of them."""
CONVERTED = range(0, CASES, 48)

FILES = {
    "allennlp_tiny": ("lm_weights.hdf5", "options.json"),
    "allennlp_random": ("weights.hdf5", "options.json"),
    "nlpl_zip": ("900.zip",),
    "bilm_tf_lm": (
        "model.ckpt-5.index",
        "model.ckpt-5.data-00000-of-00001",
        "checkpoint",
        "options.json",
        "vocab.txt",
    ),
    "deeppavlov_lm_ru": ("model.index", "model.data-00000-of-00001", "checkpoint", "options.json", "vocab.txt"),
    "deeppavlov_hub_ru": (
        "module/saved_model.pb",
        "module/tfhub_module.pb",
        "module/variables/variables.index",
        "module/variables/variables.data-00000-of-00002",
        "module/variables/variables.data-00001-of-00002",
    ),
    "deeppavlov_hub_ru archive": ("elmo_ru_tiny.tar.gz",),
    "elmoformanylangs": tuple(
        f"model/{name}"
        for name in (
            "config.json",
            "cnn_12_10_16_64_sample.json",
            "char.dic",
            "word.dic",
            "token_embedder.pkl",
            "encoder.pkl",
        )
    ),
}
INSIDE = {"nlpl_zip": "nlpl_zip inside", "deeppavlov_hub_ru archive": "deeppavlov_hub_ru inside"}
"""Archives whose files are damaged before they are packed again."""

NAMES = [*FILES, *INSIDE.values(), "task_model"]


@cache
def clean_files(name: str) -> Files:
    """The files of a checkpoint, undamaged."""
    if name == "task_model":
        mixes = [([0.5, -1.0, 0.25], 1.5), ([0.0, 2.0, -0.5], 0.75)]
        with tempfile.TemporaryDirectory() as folder:
            path = write_task_model(
                Path(folder) / "task",
                task_model_state(random_tensors(tiny_options()), mixes),
                _use_new_zipfile_serialization=False,
            )
            return {name: (path / name).read_bytes() for name in ("weights.th", "config.json")}
    for archive, inside in INSIDE.items():
        if name == inside:
            return unpack(next(iter(clean_files(archive).values())))
    fixture = name.split()[0]
    return {Path(part).as_posix(): fixture_path(fixture, part).read_bytes() for part in FILES[name]}


def unpack(content: bytes) -> Files:
    """The files of an archive."""
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {
            member.name.removeprefix("./"): tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar.getmembers()
            if member.isfile()
        }


@cache
def strangers(name: str) -> dict[str, list[bytes]]:
    """Files of the other checkpoints, by suffix."""
    found: dict[str, list[bytes]] = {}
    for other in FILES:
        if other.split()[0] != name.split()[0]:
            for file, content in clean_files(other).items():
                found.setdefault(Path(file).suffix, []).append(content)
    return found


def write(name: str, files: Mapping[str, bytes], folder: Path) -> Path:
    """Writes files where a person would have them, and returns the path that they would convert."""
    folder.mkdir()
    if name in INSIDE.values():
        write_archive = write_zip if name.startswith("nlpl") else write_tar
        suffix = "zip" if name.startswith("nlpl") else "tar.gz"
        return write_archive(folder / f"model.{suffix}", files)
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    if name in INSIDE:
        return folder / FILES[name][0]
    parts = {Path(file).parts[0] for file in clean_files(name) if "/" in file}
    return folder / parts.pop() if parts else folder


@contextmanager
def built(source: Path) -> Iterator[tuple[PreparedSource, dict[str, torch.Tensor]]]:
    """Everything that a conversion does except saving: reads, checks, builds and compares."""
    with prepared_source(source) as prepared:
        checkpoint, steps, bar = prepared.checkpoint, prepared.steps, MagicMock()
        model, softmax = build_model(checkpoint, steps, prepared.config, bar)
        tokenizer = make_tokenizer(checkpoint, prepared.config, "whitespace")
        parameters = model.state_dict() | softmax
        compare_tensors(parameters, checkpoint, steps, bar)
        compare_outputs(model.eval(), tokenizer, prepared.known.evaluate(checkpoint))
        yield prepared, parameters


@cache
def clean_arrays(name: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the configuration of an undamaged checkpoint."""
    with (
        tempfile.TemporaryDirectory() as folder,
        prepared_source(write(name, clean_files(name), Path(folder) / "clean")) as prepared,
    ):
        return arrays_of(prepared), prepared.config.to_dict()


def arrays_of(prepared: PreparedSource) -> Arrays:
    """The tensors that a conversion uses, as its reader gives them."""
    return {step.source: prepared.checkpoint.tensors[step.source].load() for step in prepared.steps}


def assert_says_what_its_files_say(prepared: PreparedSource) -> None:
    """Compares what our reader took from a checkpoint with what an independent reader finds in its files."""
    checkpoint, config = prepared.checkpoint, prepared.config
    ours = arrays_of(prepared)
    if checkpoint.format in ("allennlp", "nlpl"):
        theirs = arrays_of_hdf5(checkpoint.weights_file)
    elif checkpoint.format == "elmoformanylangs":
        folder = checkpoint.weights_file.parent
        theirs = {}
        for part in ("token_embedder", "encoder"):
            theirs |= arrays_of_state_dict(folder / f"{part}.pkl", f"{part}/")
        assert_lexicons(prepared, folder)
    elif checkpoint.format == "allennlp-archive":
        theirs = arrays_of_task_model(checkpoint.weights_file)
    else:
        # Checksums: nothing but the arrays of one of the undamaged checkpoints.
        assert any(same_arrays(ours, clean_arrays(name)[0]) for name in NAMES if "deeppavlov" in name or "tf" in name)
        theirs = ours
    assert same_arrays(ours, {name: theirs[name] for name in ours})
    if checkpoint.options_file is not None:
        options = json.loads(checkpoint.options_file.read_bytes().decode("utf-8-sig"))
        table = MANYLANGS_OPTIONS if checkpoint.format == "elmoformanylangs" else OPTIONS
        said = fields_of(options, table)
        assert {field: getattr(config, field) for field in said} == said


def assert_lexicons(prepared: PreparedSource, folder: Path) -> None:
    """Compares characters and words with the files that hold them."""
    tokenizer = prepared.checkpoint.tokenizer
    characters = tokenizer["character_lexicon"].characters
    assert {entry: number for number, entry in enumerate(characters)} == entries_of_lexicon(folder / "char.dic")
    if "word_vocabulary" in tokenizer:
        words = tokenizer["word_vocabulary"].words
        assert {entry: number for number, entry in enumerate(words)} == entries_of_lexicon(folder / "word.dic")


def arrays_of_task_model(path: Path) -> Arrays:
    """The tensors of the ELMo in a task model, the scalars of a mix as one."""
    state = arrays_of_state_dict(path)
    (table,) = [name for name in state if name.endswith("_char_embedding_weights")]
    prefix = table.removesuffix("_elmo_lstm._token_embedder._char_embedding_weights")
    arrays = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
    for mix in range(len([name for name in arrays if name.endswith(".gamma")])):
        name = f"scalar_mix_{mix}.scalar_parameters"
        count = len([other for other in arrays if other.startswith(f"{name}.")])
        arrays[name] = np.concatenate([arrays[f"{name}.{layer}"].reshape(1) for layer in range(count)])
    return arrays


@contextmanager
def time_limit() -> Iterator[None]:
    """Ends what hangs."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS_A_CASE} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_A_CASE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of temporary files, where nothing may stay; small limits, so that bombs are cheap."""
    for name in NAMES:
        clean_files(name)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(archives, "SMALLEST_SUSPECT", 2**22)
    yield tmp_path / "temporary"
    assert os.listdir(tmp_path / "temporary") == []


def error_of(source: Path) -> str | None:
    """The error that reading, building and comparing a checkpoint ends in; `None` when the model is right."""
    with time_limit():
        try:
            with built(source) as (prepared, _):
                assert_says_what_its_files_say(prepared)
        except ConversionError as error:
            return str(error)
    return None


def assert_converts_or_not(source: Path, output: Path, error: str | None) -> None:
    """Checks that a whole conversion ends as reading did, and leaves a whole folder or none."""
    with time_limit():
        if error is None:
            convert_checkpoint(source, output)
            verify_folder(output, source)
        else:
            with pytest.raises(ConversionError) as caught:
                convert_checkpoint(source, output)
            assert str(caught.value).splitlines()[0][:40] == error.splitlines()[0][:40]
    left = [path.name for path in output.parent.iterdir() if path.name.lstrip(".").startswith(output.name)]
    assert left == ([] if error else [output.name])


def assert_survives(name: str, numbers: range, tmp_path: Path) -> None:
    """Checks that damaged checkpoints end in errors or in right models; names every one that does not."""
    wrong, errors = [], 0
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in numbers:
        damage = Damage(clean_files(name), strangers(name), number)
        source = write(name, damage.files, tmp_path / f"case{number}")
        try:
            error = error_of(source)
            errors += error is not None
            if number in CONVERTED:
                assert_converts_or_not(source, tmp_path / f"elmo{number}", error)
        # Whatever else happens is what this test is about.
        except Exception as error:
            wrong.append(f"case {number}, {damage.what}: {type(error).__name__}: {str(error)[:300]}")
    assert wrong == []
    assert errors > len(numbers) / 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < KILOBYTES


@pytest.mark.parametrize("name", NAMES)
def test_undamaged(name: str, tmp_path: Path) -> None:
    source = write(name, clean_files(name), tmp_path / "clean")
    assert error_of(source) is None
    assert_converts_or_not(source, tmp_path / "elmo", None)


@pytest.mark.parametrize("name", NAMES)
def test_some_damage(name: str, tmp_path: Path) -> None:
    assert_survives(name, SAMPLE, tmp_path)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_damage(name: str, tmp_path: Path) -> None:
    assert_survives(name, range(CASES), tmp_path)


@pytest.mark.parametrize("kind", list(ZIPS))
def test_hostile_zips(kind: str, tmp_path: Path) -> None:
    assert_refused(ZIPS[kind](tmp_path / "900.zip", clean_files("nlpl_zip inside")))


@pytest.mark.parametrize("kind", list(TARS))
def test_hostile_tars(kind: str, tmp_path: Path) -> None:
    assert_refused(TARS[kind](tmp_path / "elmo_ru_tiny.tar.gz", clean_files("deeppavlov_hub_ru inside")))


def assert_refused(source: Path) -> None:
    """Checks that a source ends in an error, and that nothing came of it."""
    error = error_of(source)
    assert error is not None
    assert_converts_or_not(source, source.parent / "output", error)
    assert not (source.parent / "escaped").exists()
    assert not Path("/tmp/escaped").exists()


class Payload:
    """An object whose unpickling calls a function.

    Args:
        call: The function.
        *arguments: What it is called with.
    """

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


PAYLOADS = {
    "open": lambda marker: Payload(open, marker, "w"),
    "system": lambda marker: Payload(os.system, f"touch {marker}"),
    "eval": lambda marker: Payload(eval, f"open({marker!r}, 'w')"),
    "exec": lambda marker: Payload(exec, f"open({marker!r}, 'w')"),
    "path": lambda marker: Payload(Path.touch, Path(marker)),
    "torch": lambda marker: Payload(torch.save, {}, marker),
}


def pickled(content: Any, form: str) -> bytes:
    """An object as PyTorch's zip, as its older format, or as a plain pickle."""
    buffer = io.BytesIO()
    if form == "pickle":
        pickle.dump(content, buffer)
    else:
        torch.save(content, buffer, _use_new_zipfile_serialization=form == "zip")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", list(PAYLOADS))
def test_careless_readers_would_call_the_functions(kind: str, tmp_path: Path) -> None:
    pickle.loads(pickled(PAYLOADS[kind](str(tmp_path / "executed")), "pickle"))
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("elmoformanylangs", "model/token_embedder.pkl"),
        ("elmoformanylangs", "model/encoder.pkl"),
        ("task_model", "weights.th"),
    ],
)
def test_pickles_that_call_functions_never_do(name: str, file: str, form: str, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    state = torch.load(io.BytesIO(clean_files(name)[file]), map_location="cpu", weights_only=True)
    for kind, make in PAYLOADS.items():
        for content in (make(str(marker)), {**state, "extra": make(str(marker))}, [make(str(marker)), state]):
            folder = tmp_path / f"{kind}{len(list(tmp_path.iterdir()))}"
            source = write(name, {**clean_files(name), file: pickled(content, form)}, folder)
            error = error_of(source)
            assert error is not None
            assert "weights_only" not in str(error)
            assert not marker.exists()


def link_softly(file: h5py.File, name: str, folder: Path) -> None:
    del file[name]
    file[name] = h5py.SoftLink("/CNN/b_cnn_0")


def link_outside(file: h5py.File, name: str, folder: Path) -> None:
    array = file[name][...]
    del file[name]
    with h5py.File(folder / "other.h5x", "w") as other:
        other["array"] = array
    file[name] = h5py.ExternalLink(str(folder / "other.h5x"), "array")


def store_outside(file: h5py.File, name: str, folder: Path) -> None:
    array = file[name][...]
    del file[name]
    (folder / "raw").write_bytes(array.tobytes())
    file.create_dataset(name, array.shape, array.dtype, external=[(str(folder / "raw"), 0, array.nbytes)])


def store_virtually(file: h5py.File, name: str, folder: Path) -> None:
    array = file[name][...]
    del file[name]
    with h5py.File(folder / "other.h5x", "w") as other:
        other["array"] = array
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(folder / "other.h5x", "array", array.shape)
    file.create_virtual_dataset(name, layout)


def blow_up(file: h5py.File, name: str, folder: Path) -> None:
    del file[name]
    file.create_dataset(name, (2**20, 2**20), "f4", chunks=(1024, 1024), compression="gzip")


def make_a_ring(file: h5py.File, name: str, folder: Path) -> None:
    file["CNN/ring"] = file["CNN"]


def store_texts(file: h5py.File, name: str, folder: Path) -> None:
    del file[name]
    file.create_dataset(name, data=["text"])


@pytest.mark.parametrize("name", ["allennlp_tiny", "allennlp_random", "nlpl_zip inside"])
@pytest.mark.parametrize(
    "harm", [link_softly, link_outside, store_outside, store_virtually, blow_up, make_a_ring, store_texts]
)
def test_hostile_hdf5(name: str, harm: Any, tmp_path: Path) -> None:
    files = dict(clean_files(name))
    (weights,) = [file for file in files if file.endswith(".hdf5")]
    path = tmp_path / "harmed.h5x"
    path.write_bytes(files[weights])
    with h5py.File(path, "r+") as file:
        harm(file, "CNN_proj/b_proj", tmp_path)
    assert_refused(write(name, {**files, weights: path.read_bytes()}, tmp_path / "case"))
