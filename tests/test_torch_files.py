"""PyTorch's files are read without executing them and without believing them."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_elmo.conversion import ConversionError
from hf_elmo.conversion.torch_files import read_state_dict

STATE = {
    "single": torch.arange(24.0).reshape(4, 6),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "half": torch.ones(3, dtype=torch.float16),
    "brain": torch.ones(3, dtype=torch.bfloat16),
    "double": torch.ones(3, dtype=torch.float64),
    "number": torch.tensor(2.5),
    "count": torch.tensor(7),
}


def assert_refused(path: Path, message: str) -> None:
    with pytest.raises(ConversionError, match=message) as caught:
        read_state_dict(path)
    assert str(path) in str(caught.value)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_state_dict(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "weights.th"
    torch.save(STATE, path, _use_new_zipfile_serialization=zipped)
    read = read_state_dict(path)
    assert list(read) == list(STATE)
    for name, value in STATE.items():
        assert read[name].shape == tuple(value.shape)
        assert read[name].dtype == str(value.dtype).removeprefix("torch.")
        if name != "count":
            array = read[name].load()
            assert array.dtype == np.float32
            assert array.tolist() == value.float().tolist()
    with pytest.raises(ConversionError, match=r"count in .*weights\.th holds torch\.int64"):
        read["count"].load()


def test_one_changed_bit_in_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "weights.th"
    torch.save(STATE, path)
    content = bytearray(path.read_bytes())
    content[content.find(STATE["single"].numpy().tobytes()) + 17] ^= 1
    path.write_bytes(content)
    assert float(torch.load(path, weights_only=True)["single"].view(-1)[4]) != 4
    assert_refused(path, "is damaged, cut short or in another format .the checksum of")


def test_a_compressed_zip(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"zeros": torch.zeros(2**20)}, buffer)
    with zipfile.ZipFile(buffer) as stored, zipfile.ZipFile(tmp_path / "a.th", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    assert_refused(tmp_path / "a.th", "is compressed, which PyTorch never does")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_beyond_what_is_stored(zipped: bool, tmp_path: Path) -> None:
    """PyTorch enlarges the storage and leaves in the new part what was in memory."""
    path = tmp_path / "weights.th"
    torch.save({"weight": torch.arange(77.0)}, path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    # The shape (77,), in the pickle: a number of one byte in a tuple of one.
    assert content.count(b"K\x4d\x85") == 1
    larger = content.replace(b"K\x4d\x85", b"K\x7f\x85")
    if zipped:
        with zipfile.ZipFile(path) as stored, zipfile.ZipFile(tmp_path / "larger.th", "w") as changed:
            for name in stored.namelist():
                changed.writestr(name, stored.read(name).replace(b"K\x4d\x85", b"K\x7f\x85"))
    else:
        (tmp_path / "larger.th").write_bytes(larger)
    assert_refused(tmp_path / "larger.th", "is damaged|cannot be read")


def test_what_is_no_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "weights.th"
    assert_refused(path, "does not exist")
    for content, message in (
        ([torch.ones(1)], "must hold named tensors, not a list"),
        ({"epoch": 3}, "'epoch' is a int and no tensor"),
        ({3: torch.ones(1)}, "3 is no name"),
        ({"a": {"b": torch.ones(1)}}, "'a' is a dict and no tensor"),
        ({"a": torch.ones(3).to_sparse()}, "no plain tensor"),
        ({"a": torch.ones(1).expand(10**6)}, "more numbers than are stored"),
        ({"a": torch.ones(1, device="meta")}, "no plain tensor"),
    ):
        torch.save(content, path)
        assert_refused(path, message)
    path.write_bytes(b"")
    assert_refused(path, "cannot be read|is damaged")
