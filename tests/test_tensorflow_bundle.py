"""TensorFlow's checkpoint files, read without TensorFlow: right, or refused with one clear message."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_elmo.conversion import ConversionError, tensor_bundle
from hf_elmo.conversion.tensor_bundle import Bundle, read_bundle
from tests.assertions import assert_identical
from tests.shared_files import fixture_path, leave_out
from tests.tensor_bundles import DTYPES, BundleEntry, Table, header, number_field, varint, write_bundle, write_index

PEER = "HF_ELMO_PEER_TENSORFLOW"
Peer = Callable[[str, Path], dict[str, np.ndarray]]
BUNDLES = {
    "deeppavlov_hub_ru": "module/variables/variables",
    "deeppavlov_lm_ru": "model",
    "bilm_tf_lm": "model.ckpt-5",
    "bilm_tf_lm_word_shared": "model.ckpt-4",
}
TWINS = {
    "deeppavlov_hub_ru": ("source_weights.hdf5", "bilm/"),
    "deeppavlov_lm_ru": ("weights.hdf5", "lm/"),
    "bilm_tf_lm": ("weights.hdf5", "lm/"),
    "bilm_tf_lm_word_shared": ("weights.hdf5", "lm/"),
}


def read_fixture(name: str) -> Bundle:
    return read_bundle(fixture_path(name) / BUNDLES[name])


def some_tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = {"a": (), "a/b": (3,), "a/bc": (2, 3), "a/bc/d": (1, 2, 3, 4), "empty": (0, 4), "z" * 300: (5,)}
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def assert_same_tensors(bundle: Bundle, expected: dict[str, np.ndarray]) -> None:
    assert list(bundle.tensors) == sorted(expected)
    for name, tensor in bundle.tensors.items():
        array = tensor.load()
        assert array.dtype == np.float32
        assert tensor.shape == expected[name].shape
        assert_identical(array, expected[name], name)


def load_all(prefix: Path) -> Bundle:
    """Reads a bundle and every tensor in it."""
    bundle = read_bundle(prefix)
    for tensor in bundle.tensors.values():
        tensor.load()
    return bundle


def assert_refused(prefix: Path, message: str) -> None:
    """Asserts that a bundle, or one of its tensors, is refused with a message that names a file of it."""
    with pytest.raises(ConversionError, match=message) as caught:
        load_all(prefix)
    assert prefix.name in str(caught.value)


@pytest.mark.parametrize("name", list(BUNDLES))
def test_fixtures_hold_the_listed_variables(name: str) -> None:
    listed = [line.split("\t") for line in (fixture_path(name) / "variables.txt").read_text().splitlines()]
    found = [[key, str(list(tensor.shape)), tensor.dtype] for key, tensor in read_fixture(name).tensors.items()]
    assert sorted(found) == sorted(listed)


@pytest.mark.parametrize("name", list(TWINS))
def test_fixtures_hold_the_values_of_their_hdf5(name: str) -> None:
    file_name, prefix = TWINS[name]
    bundle = read_fixture(name)
    compared = 0
    with h5py.File(fixture_path(name) / file_name) as file:
        for key, tensor in bundle.tensors.items():
            twin = hdf5_name(key.removeprefix(prefix))
            if key.startswith(prefix) and twin in file:
                array = tensor.load()
                stored = file[twin][...]
                assert_identical(array[-len(stored) :], stored, key)
                compared += 1
        assert compared == count_datasets(file)


def hdf5_name(name: str) -> str:
    """What bilm-tf's `dump_weights` calls a variable."""
    parts = {
        "/rnn/multi_rnn_cell/cell_": "/RNN/MultiRNNCell/Cell",
        "/rnn/lstm_cell/": "/LSTMCell/",
        "/lstm_cell/": "/LSTMCell/",
        "projection/kernel": "W_P_0",
    }
    for old, new in parts.items():
        name = name.replace(old, new)
    if "LSTMCell" in name:
        name = name.replace("/kernel", "/W_0").replace("/bias", "/B")
    return name


def count_datasets(group: h5py.Group) -> int:
    found = []
    group.visititems(lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
    return len(found)


@pytest.mark.parametrize("num_shards", [1, 2, 7])
@pytest.mark.parametrize(("block_size", "restart_interval"), [(1, 1), (2, 16), (100, 3), (100, 100)])
def test_shards_blocks_and_shared_beginnings_of_names(
    num_shards: int, block_size: int, restart_interval: int, tmp_path: Path
) -> None:
    tensors = some_tensors()
    prefix = write_bundle(
        tmp_path / "model", tensors, num_shards, block_size=block_size, restart_interval=restart_interval
    )
    bundle = read_bundle(prefix)
    assert_same_tensors(bundle, tensors)
    assert bundle.files[0] == tmp_path / "model.index"
    assert len(bundle.files) == 1 + min(num_shards, len(tensors))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_float_types_become_float32(dtype: str, tmp_path: Path) -> None:
    array = np.array([0.1, -3.0, 6e4, 1e-8, np.inf]).astype(dtype)
    tensor = read_bundle(write_bundle(tmp_path / "model", {"a": array})).tensors["a"]
    assert tensor.dtype == dtype
    assert_identical(tensor.load(), array.astype(np.float32))


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625, 0.0], dtype=np.float32)
    upper_halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    tensor = read_bundle(write_bundle(tmp_path / "model", {"a": upper_halves})).tensors["a"]
    assert tensor.dtype == "bfloat16"
    assert_identical(tensor.load(), values)


def test_other_types_are_listed_and_not_loaded(tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path / "model", {"global_step": np.array(5), "a": np.ones(2, dtype=np.float32)})
    tensors = read_bundle(prefix).tensors
    assert tensors["global_step"].dtype == "int64"
    assert_identical(tensors["a"].load(), np.ones(2))
    with pytest.raises(ConversionError, match=r"global_step in .* has the type int64; weights are float32"):
        tensors["global_step"].load()


def test_loaded_tensor_may_be_changed(tmp_path: Path) -> None:
    array = read_bundle(write_bundle(tmp_path / "model", {"a": np.ones(2, dtype=np.float32)})).tensors["a"].load()
    array += 1
    assert_identical(array, np.full(2, 2))


class TestDamage:
    @pytest.fixture
    def prefix(self, tmp_path: Path) -> Path:
        return write_bundle(tmp_path / "model", some_tensors(), 2, block_size=3)

    @pytest.mark.parametrize("change", [0x01, 0x41, 0x80, 0xFF])
    def test_changed_byte_of_the_index_is_found_or_changes_nothing(self, change: int, prefix: Path) -> None:
        path = prefix.with_name("model.index")
        content = path.read_bytes()
        refused = 0
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= change
            path.write_bytes(damaged)
            try:
                bundle = load_all(prefix)
            except ConversionError:
                refused += 1
            else:
                assert_same_tensors(bundle, some_tensors())
        # Nothing reads the block of metadata, its place in the footer and what fills the footer up.
        assert refused >= len(content) - 60

    def test_every_cut_of_the_index_is_found(self, prefix: Path) -> None:
        path = prefix.with_name("model.index")
        content = path.read_bytes()
        for length in range(len(content)):
            path.write_bytes(content[:length])
            assert_refused(prefix, "model.index cannot be used")

    @pytest.mark.parametrize("number", [0, 1])
    def test_every_changed_byte_of_the_data_is_found(self, number: int, prefix: Path) -> None:
        path = prefix.with_name(f"model.data-0000{number}-of-00002")
        content = path.read_bytes()
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            assert_refused(prefix, "is damaged: its checksum is not the one in the index")

    def test_cut_data(self, prefix: Path) -> None:
        path = prefix.with_name("model.data-00001-of-00002")
        path.write_bytes(path.read_bytes()[:-1])
        assert_refused(prefix, "data-00001-of-00002 is cut short")

    def test_data_cut_after_the_index_was_read(self, prefix: Path) -> None:
        tensors = read_bundle(prefix).tensors
        path = prefix.with_name("model.data-00001-of-00002")
        path.write_bytes(b"")
        with pytest.raises(ConversionError, match="is damaged"):
            tensors["a/b"].load()

    def test_missing_files(self, prefix: Path) -> None:
        prefix.with_name("model.data-00000-of-00002").unlink()
        assert_refused(prefix, "data-00000-of-00002 is missing")
        prefix.with_name("model.index").unlink()
        assert_refused(prefix, r"model\.index cannot be read: No such file")

    @given(content=st.binary(max_size=200), footer=st.booleans())
    @settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_any_bytes(self, content: bytes, footer: bool, tmp_path: Path) -> None:
        end = varint(0) + varint(0) + varint(0) + varint(max(len(content) - 5, 0))
        if footer:
            content += end.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
        (tmp_path / "model.index").write_bytes(content)
        assert_refused(tmp_path / "model", "model.index cannot be used")

    @given(value=st.binary(max_size=60))
    @settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_any_description_of_a_tensor(self, value: bytes, tmp_path: Path) -> None:
        (tmp_path / "model.index").write_bytes(Table().write([(b"", header()), (b"a", value)]))
        (tmp_path / "model.data-00000-of-00001").write_bytes(bytes(64))
        with contextlib.suppress(ConversionError):
            load_all(tmp_path / "model")


class TestHostileIndex:
    """An index whose checksums are right and whose content is not."""

    CONTENT = np.arange(4, dtype="<f4").tobytes()

    def refuse(self, tmp_path: Path, message: str, *, first: bytes | None = None, **changes: object) -> None:
        entry = BundleEntry(**{"dtype": DTYPES["float32"], "shape": [4], "content": self.CONTENT, **changes})
        (tmp_path / "model.data-00000-of-00001").write_bytes(self.CONTENT)
        write_index(tmp_path / "model", {"a": entry}, first)
        assert_refused(tmp_path / "model", message)

    def test_large_sizes_take_no_memory(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "takes 4398046511100", shape=[2**40 - 1])
        self.refuse(tmp_path, "impossible shape", shape=[2**62])
        self.refuse(tmp_path, "impossible shape", shape=[2**64 - 1])
        self.refuse(tmp_path, "is cut short: a ends at 4398046511004", shape=[2**40 - 25], size=4 * (2**40 - 25))
        self.refuse(tmp_path, "33 dimensions", shape=[1] * 33)

    def test_places_outside_the_data(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "is cut short: a ends at 17", offset=1)
        self.refuse(tmp_path, "fields of the wrong kind", offset=2**64 - 4)
        self.refuse(tmp_path, "data file 1 of 1", shard=1)
        self.refuse(tmp_path, "gives 'a' 12 bytes, but float32 of shape .4,. takes 16", size=12)

    def test_header(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "big-endian", first=header(endianness=1))
        self.refuse(tmp_path, "no sensible number of data files", first=header(num_shards=0))
        self.refuse(tmp_path, "no sensible number of data files", first=header(num_shards=2**31))

    def test_variables_in_slices(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "'a' in slices", extra=b"\x3a\x00")

    def test_unknown_type(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "has the type number 77", dtype=77)

    def test_fields_of_another_kind(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "fields of the wrong kind", extra=b"\x22\x01x")
        self.refuse(tmp_path, "no protocol buffer", extra=b"\x0b")
        self.refuse(tmp_path, "a value ends too early", extra=b"\x12\x7f")
        self.refuse(tmp_path, "a number does not end", extra=b"\x08" + b"\xff" * 10)

    def test_tensors_over_each_other(self, tmp_path: Path) -> None:
        entry = BundleEntry(DTYPES["float32"], [4], self.CONTENT)
        (tmp_path / "model.data-00000-of-00001").write_bytes(self.CONTENT)
        write_index(tmp_path / "model", {"a": entry, "b": entry})
        assert_refused(tmp_path / "model", "b lies over another tensor")

    def test_compression(self, tmp_path: Path) -> None:
        (tmp_path / "model.index").write_bytes(Table(kind=1).write([(b"", header())]))
        assert_refused(tmp_path / "model", "compressed with Snappy")
        (tmp_path / "model.index").write_bytes(Table(kind=9).write([(b"", header())]))
        assert_refused(tmp_path / "model", "compressed with the unknown method 9")

    @pytest.mark.parametrize("block_size", [1, 10])
    def test_order_of_names(self, block_size: int, tmp_path: Path) -> None:
        entry = BundleEntry(DTYPES["float32"], [0], b"").encode()
        for names in (("b", "a"), ("a", "a")):
            pairs = [(b"", header()), *((name.encode(), entry) for name in names)]
            (tmp_path / "model.index").write_bytes(Table(block_size=block_size).write(pairs))
            assert_refused(tmp_path / "model", "keys in the wrong order")

    def test_no_header(self, tmp_path: Path) -> None:
        entry = BundleEntry(DTYPES["float32"], [0], b"").encode()
        (tmp_path / "model.index").write_bytes(Table().write([(b"a", entry)]))
        assert_refused(tmp_path / "model", "has no header")
        (tmp_path / "model.index").write_bytes(Table().write([]))
        assert_refused(tmp_path / "model", "has no header")

    def test_one_block_many_times(self, tmp_path: Path) -> None:
        table = Table()
        handle = table.add_block([], 0)
        handles = [(number.to_bytes(4, "big"), handle) for number in range(10_000)]
        index = table.add_block(handles, 0)
        table.content += (handle + index).ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
        (tmp_path / "model.index").write_bytes(table.content)
        assert_refused(tmp_path / "model", "blocks in the wrong order")

    def test_long_names(self, tmp_path: Path) -> None:
        entry = BundleEntry(DTYPES["float32"], [0], b"").encode()
        (tmp_path / "model.index").write_bytes(Table().write([(b"", header()), (b"a" * 1025, entry)]))
        assert_refused(tmp_path / "model", "a key that is no name")
        (tmp_path / "model.index").write_bytes(Table().write([(b"", header()), (b"\xff", entry)]))
        assert_refused(tmp_path / "model", "a name that is not UTF-8")

    def test_too_many_tensors_and_too_large_an_index(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        prefix = write_bundle(tmp_path / "model", some_tensors())
        monkeypatch.setattr(tensor_bundle, "LARGEST_COUNT", 5)
        assert_refused(prefix, "more than 5 tensors")
        monkeypatch.setattr(tensor_bundle, "LARGEST_INDEX", 100)
        assert_refused(prefix, "larger than 100 bytes")

    def test_number_of_the_type_is_zero(self, tmp_path: Path) -> None:
        entry = number_field(5, 4)
        (tmp_path / "model.data-00000-of-00001").write_bytes(bytes(4))
        (tmp_path / "model.index").write_bytes(Table().write([(b"", header()), (b"a", entry)]))
        assert_refused(tmp_path / "model", "has the type number 0")


READ = """
import sys, numpy, tensorflow
reader = tensorflow.train.load_checkpoint(sys.argv[1])
names = sorted(reader.get_variable_to_shape_map())
arrays = [reader.get_tensor(name) for name in names]
numpy.savez(sys.argv[2], names, *[numpy.asarray(array, dtype=numpy.float32) for array in arrays])
"""

WRITE = """
import sys, numpy, tensorflow
generator = numpy.random.default_rng(0)
tensors = {}
for number in range(300):
    shape = tuple(generator.integers(1, 6, size=number % 5))
    dtype = ["float32", "float64", "float16", "bfloat16"][number % 4]
    tensors[f"scope_{number // 30}/layer_{number}/kernel"] = tensorflow.cast(generator.normal(size=shape), dtype)
names = sorted(tensors)
tensorflow.raw_ops.SaveV2(
    prefix=sys.argv[1], tensor_names=[*names, "global_step", "text"], shape_and_slices=[""] * (len(names) + 2),
    tensors=[*(tensors[name] for name in names), tensorflow.constant(7, "int64"), tensorflow.constant(["a", "bc"])],
)
numpy.savez(sys.argv[2], names, *[tensorflow.cast(tensors[name], "float32").numpy() for name in names])
"""


@pytest.fixture
def tensorflow(tmp_path: Path) -> Peer:
    """Runs a script with TensorFlow, which gets a prefix and leaves names and arrays."""
    python = os.environ.get(PEER)
    if not python:
        leave_out(f"needs a Python with TensorFlow, named by {PEER}")

    def run(script: str, prefix: Path) -> dict[str, np.ndarray]:
        result = tmp_path / "tensorflow.npz"
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([python, "-c", script, str(prefix), str(result)], check=True, env=environment)
        with np.load(result) as file:
            names, *arrays = (file[f"arr_{index}"] for index in range(len(file.files)))
        return dict(zip(names.tolist(), arrays, strict=True))

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BUNDLES))
def test_tensorflow_reads_the_same_from_the_fixtures(name: str, tensorflow: Peer) -> None:
    assert_same_tensors(read_fixture(name), tensorflow(READ, fixture_path(name) / BUNDLES[name]))


@pytest.mark.slow
def test_tensorflow_reads_the_same_from_our_files(tensorflow: Peer, tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path / "model", some_tensors(), 3, block_size=2)
    assert_same_tensors(read_bundle(prefix), tensorflow(READ, prefix))


@pytest.mark.slow
def test_what_tensorflow_writes(tensorflow: Peer, tmp_path: Path) -> None:
    expected = tensorflow(WRITE, tmp_path / "model")
    bundle = read_bundle(tmp_path / "model")
    assert set(bundle.tensors) - set(expected) == {"global_step", "text"}
    assert bundle.tensors["text"].dtype == "string"
    for name, array in expected.items():
        assert_identical(bundle.tensors[name].load(), array, name)
