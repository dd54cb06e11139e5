"""Bad input ends in one message that names the file or the field, and leaves nothing behind."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hf_elmo.conversion import ConversionError, convert_checkpoint, read_allennlp, staging
from hf_elmo.conversion import convert as conversion

from .checkpoints import REMOVED, random_tensors, tiny_options, write_checkpoint, write_tensors
from .test_conversion import assert_fails

NUMBER_OF_CUTS = 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A good checkpoint to spoil."""
    return write_checkpoint(tmp_path / "source")


def assert_listed(error: ConversionError, *problems: str) -> None:
    """Checks that an error names each of the problems, and no other."""
    for problem in problems:
        assert any(problem in found for found in error.problems), f"{problem!r} is not among {error.problems}"
        assert problem in str(error)
    assert len(error.problems) == len(problems), error.problems


def write_options(folder: Path, **changes: Any) -> None:
    """Replaces the options of a checkpoint."""
    (folder / "options.json").write_text(json.dumps(tiny_options(**changes)))


def edit_weights(folder: Path, edit: Callable[[h5py.File], None]) -> None:
    """Changes the HDF5 file of a checkpoint."""
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        edit(file)


def replace(file: h5py.File, name: str, *arguments: Any, **keywords: Any) -> None:
    """Writes another dataset in the place of one."""
    del file[name]
    file.create_dataset(name, *arguments, **keywords)


class TestFiles:
    def test_missing_source(self, tmp_path: Path) -> None:
        assert_fails(r"nowhere\.hdf5 does not exist", tmp_path / "nowhere.hdf5", tmp_path / "elmo")

    def test_missing_options(self, source: Path, tmp_path: Path) -> None:
        output, options = tmp_path / "elmo", tmp_path / "none.json"
        assert_fails(r"none\.json cannot be read: No such file", source, output, options=options)

    def test_folder_without_weights(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert_fails("empty is no checkpoint.*formats known: .*allennlp", tmp_path / "empty", tmp_path / "elmo")
        with pytest.raises(ConversionError, match="no HDF5 file in the folder"):
            convert_checkpoint(tmp_path / "empty", tmp_path / "elmo", format="allennlp")

    def test_options_without_weights(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path / "source")
        (folder / "weights.hdf5").unlink()
        assert_fails("source is no checkpoint.*no weights: put the HDF5 file beside it", folder, tmp_path / "elmo")

    @pytest.mark.parametrize("name", ["encoder.pkl", "model.index", "weights"])
    def test_other_format(self, name: str, tmp_path: Path) -> None:
        (tmp_path / name).write_bytes(b"something else")
        assert_fails(f"{name} is no checkpoint.*formats known: .*allennlp", tmp_path / name, tmp_path / "elmo")

    def test_unknown_format_name(self, source: Path, tmp_path: Path) -> None:
        assert_fails("no format 'word2vec'.*auto, .*allennlp", source, tmp_path / "elmo", format="word2vec")

    def test_text_called_hdf5(self, source: Path, tmp_path: Path) -> None:
        (source / "weights.hdf5").write_text("<html>404</html>")
        assert_fails(r"weights\.hdf5 cannot be read as HDF5", source, tmp_path / "elmo")

    @pytest.mark.parametrize("cut", range(NUMBER_OF_CUTS))
    def test_truncated_weights(self, cut: int, source: Path, tmp_path: Path) -> None:
        content = (source / "weights.hdf5").read_bytes()
        (source / "weights.hdf5").write_bytes(content[: len(content) * cut // NUMBER_OF_CUTS])
        assert_fails(r"weights\.hdf5 .*damaged", source, tmp_path / "elmo")

    def test_truncated_by_one_byte(self, source: Path, tmp_path: Path) -> None:
        (source / "weights.hdf5").write_bytes((source / "weights.hdf5").read_bytes()[:-1])
        assert_fails(r"weights\.hdf5 .*damaged", source, tmp_path / "elmo")

    def test_overwritten_bytes_never_end_in_another_error(self, source: Path, tmp_path: Path) -> None:
        generator = np.random.default_rng(0)
        content = (source / "weights.hdf5").read_bytes()
        messages = []
        for _ in range(200):
            damaged = bytearray(content)
            start = int(generator.integers(len(content)))
            damaged[start : start + 16] = generator.bytes(16)
            (source / "weights.hdf5").write_bytes(damaged[: len(content)])
            try:
                for tensor in read_allennlp.read(source).tensors.values():
                    tensor.load()
            except ConversionError as error:
                messages.append(str(error))
        assert messages
        assert all("weights.hdf5" in message for message in messages)

    def test_damaged_chunk(self, source: Path, tmp_path: Path) -> None:
        tensors = random_tensors(tiny_options())
        with h5py.File(source / "weights.hdf5", "w") as file:
            for name, array in tensors.items():
                file.create_dataset(name, data=array, chunks=array.shape, fletcher32=True)
            place = file["char_embed"].id.get_chunk_info(0).byte_offset
        with (source / "weights.hdf5").open("r+b") as file:
            file.seek(place)
            file.write(b"\x00" * 64)
        assert_fails(r"char_embed in .*weights\.hdf5 cannot be read; the file is damaged", source, tmp_path / "elmo")


class TestOptions:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "not valid JSON"),
            (b"{", "not valid JSON"),
            (b"\xff\xfe{}", "not valid JSON"),
            (b"[" * 100_000, "not valid JSON"),
            (b"[]", "must hold a JSON object, not a list"),
            (b"null", "must hold a JSON object"),
            (b" " * (2**20 + 1), "larger than a megabyte"),
        ],
        ids=["empty", "cut", "encoding", "nesting", "list", "null", "huge"],
    )
    def test_no_json_object(self, content: bytes, message: str, source: Path, tmp_path: Path) -> None:
        (source / "options.json").write_bytes(content)
        assert_fails(rf"options\.json .*{message}", source, tmp_path / "elmo")

    @pytest.mark.parametrize(
        "field",
        [
            "char_cnn.embedding.dim",
            "char_cnn.filters",
            "char_cnn.activation",
            "char_cnn.max_characters_per_token",
            "lstm.projection_dim",
            "lstm.dim",
        ],
    )
    def test_missing_field(self, field: str, source: Path, tmp_path: Path) -> None:
        write_options(source, **{field.replace(".", "__"): REMOVED})
        assert_listed(assert_fails(r"options\.json", source, tmp_path / "elmo"), f"{field} is missing")

    def test_everything_missing_is_listed(self, source: Path, tmp_path: Path) -> None:
        (source / "options.json").write_text('{"char_cnn": {}, "lstm": {}}')
        error = assert_fails(r"options\.json", source, tmp_path / "elmo")
        assert len(error.problems) == 6

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("char_cnn.embedding.dim", "4"),
            ("char_cnn.embedding.dim", 0),
            ("char_cnn.embedding", 4),
            ("char_cnn.filters", []),
            ("char_cnn.filters", 7),
            ("char_cnn.filters", [[1, 2, 3]]),
            ("char_cnn.filters", [[1, -2]]),
            ("char_cnn.filters", [[51, 2]]),
            ("char_cnn.filters", ["ab"]),
            ("char_cnn.activation", "gelu"),
            ("char_cnn.activation", None),
            ("char_cnn.activation", ["relu"]),
            ("char_cnn.n_highway", -1),
            ("char_cnn.n_highway", True),
            ("char_cnn.n_characters", 300),
            ("char_cnn.n_characters", "many"),
            ("char_cnn.max_characters_per_token", 2),
            ("char_cnn.max_characters_per_token", 50.5),
            ("lstm.projection_dim", None),
            ("lstm.dim", 10**12),
            ("lstm.n_layers", 10**9),
            ("lstm.cell_clip", 0),
            ("lstm.cell_clip", "3"),
            ("lstm.proj_clip", -3),
            ("lstm.proj_clip", float("inf")),
            ("lstm.proj_clip", float("nan")),
            ("lstm.use_skip_connections", "yes"),
        ],
    )
    def test_wrong_value(self, field: str, value: Any, source: Path, tmp_path: Path) -> None:
        write_options(source, **{field.replace(".", "__"): value})
        assert_listed(assert_fails(r"options\.json", source, tmp_path / "elmo"), field)

    def test_one_direction(self, source: Path, tmp_path: Path) -> None:
        write_options(source, bidirectional=False)
        assert_listed(assert_fails(r"options\.json", source, tmp_path / "elmo"), "bidirectional is false")

    def test_word_input(self, source: Path, tmp_path: Path) -> None:
        write_options(source, char_cnn=REMOVED)
        assert_fails(r"options\.json has no field char_cnn.*whole words", source, tmp_path / "elmo")


class TestTensors:
    def test_contradictions_with_the_options_are_all_listed(self, source: Path, tmp_path: Path) -> None:
        write_options(source, char_cnn__embedding={"dim": 8})
        error = assert_fails(r"weights\.hdf5 and options\.json", source, tmp_path / "elmo")
        assert_listed(
            error,
            "char_embed has shape (261, 4), but the options say (261, 8)",
            "CNN/W_cnn_0 has shape (1, 1, 4, 3), but the options say (1, 1, 8, 3)",
            "CNN/W_cnn_1 has shape (1, 2, 4, 5), but the options say (1, 2, 8, 5)",
            "CNN/W_cnn_2 has shape (1, 3, 4, 4), but the options say (1, 3, 8, 4)",
        )

    def test_unknown_missing_and_wrong_tensors_are_listed_together(self, source: Path, tmp_path: Path) -> None:
        def edit(file: h5py.File) -> None:
            file["softmax/W"] = np.zeros((3, 6), dtype=np.float32)
            del file["CNN_proj/b_proj"]
            replace(file, "CNN/b_cnn_0", data=np.zeros(9, dtype=np.float32))

        edit_weights(source, edit)
        assert_listed(
            assert_fails(r"weights\.hdf5 and options\.json", source, tmp_path / "elmo"),
            "softmax/W (3, 6) is not known",
            "CNN_proj/b_proj is missing, so that nothing fills embeddings.projection.bias",
            "CNN/b_cnn_0 has shape (9,), but the options say (3,)",
        )

    def test_missing_layer(self, source: Path, tmp_path: Path) -> None:
        write_options(source, lstm__n_layers=3)
        error = assert_fails(r"weights\.hdf5 and options\.json", source, tmp_path / "elmo")
        prefixes = [f"RNN_{direction}/RNN/MultiRNNCell/Cell2/LSTMCell" for direction in (0, 1)]
        assert_listed(error, *(f"{prefix}/{name} is missing" for prefix in prefixes for name in ("W_0", "B", "W_P_0")))

    def test_extra_layer(self, source: Path, tmp_path: Path) -> None:
        write_options(source, lstm__n_layers=1)
        error = assert_fails(r"weights\.hdf5 and options\.json", source, tmp_path / "elmo")
        assert len(error.problems) == 6
        assert all("Cell1" in problem and problem.endswith("is not known") for problem in error.problems)

    @pytest.mark.parametrize("rows", [0, 1, 260, 263, 300])
    def test_other_character_tables(self, rows: int, source: Path, tmp_path: Path) -> None:
        edit_weights(source, lambda file: replace(file, "char_embed", data=np.ones((rows, 4), dtype=np.float32)))
        error = assert_fails(r"weights\.hdf5 and options\.json", source, tmp_path / "elmo")
        assert_listed(error, f"char_embed has shape ({rows}, 4), but the options say (261, 4)")

    def test_padding_row_that_is_not_zero(self, source: Path, tmp_path: Path) -> None:
        edit_weights(source, lambda file: replace(file, "char_embed", data=np.ones((262, 4), dtype=np.float32)))
        assert_listed(assert_fails(r"weights\.hdf5", source, tmp_path / "elmo"), "char_embed has 262 rows")

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_values_that_are_not_finite(self, value: float, source: Path, tmp_path: Path) -> None:
        def edit(file: h5py.File) -> None:
            file["char_embed"][260, 3] = value
            file["CNN_proj/b_proj"][0] = value

        edit_weights(source, edit)
        error = assert_fails(r"weights\.hdf5 cannot be used", source, tmp_path / "elmo")
        assert_listed(error, "char_embed holds NaN or infinity", "CNN_proj/b_proj holds NaN or infinity")

    def test_double_precision_beyond_single(self, source: Path, tmp_path: Path) -> None:
        edit_weights(source, lambda file: replace(file, "CNN_proj/b_proj", data=np.full(6, 1e300)))
        error = assert_fails(r"weights\.hdf5", source, tmp_path / "elmo")
        assert_listed(error, "CNN_proj/b_proj holds NaN or infinity")

    @pytest.mark.parametrize(
        "data",
        [
            np.zeros(6, dtype=np.int64),
            np.zeros(6, dtype=bool),
            np.zeros(6, dtype=np.complex64),
            np.zeros(6, dtype="S4"),
            np.zeros(6, dtype=[("a", "f4"), ("b", "f4")]),
            np.zeros(6, dtype=np.longdouble),
        ],
        ids=lambda data: data.dtype.kind,
    )
    def test_other_types(self, data: np.ndarray, source: Path, tmp_path: Path) -> None:
        edit_weights(source, lambda file: replace(file, "CNN_proj/b_proj", data=data))
        error = assert_fails(r"weights\.hdf5 is refused", source, tmp_path / "elmo")
        assert_listed(error, "CNN_proj/b_proj has the type")

    def test_python_objects(self, source: Path, tmp_path: Path) -> None:
        strings = h5py.string_dtype()
        edit_weights(source, lambda file: replace(file, "CNN_proj/b_proj", data=["a"] * 6, dtype=strings))
        error = assert_fails(r"weights\.hdf5 is refused", source, tmp_path / "elmo")
        assert_listed(error, "CNN_proj/b_proj has the type object")

    def test_absurd_shapes_are_never_read(self, source: Path, tmp_path: Path) -> None:
        def edit(file: h5py.File) -> None:
            shape = (2**30, 2**30)
            replace(file, "CNN_proj/b_proj", shape=shape, dtype="f4", chunks=(1, 16))
            file["CNN_proj/b_proj"][0, 0] = 1

        edit_weights(source, edit)
        assert_fails("CNN_proj|the tensors would take", source, tmp_path / "elmo")

    def test_tensors_that_unpack_to_far_more_than_the_file(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The options ask for as much, so that only the size of the file tells."""
        size = 2**17
        write_options(source, lstm__dim=size)

        def edit(file: h5py.File) -> None:
            for direction in (0, 1):
                for layer in (0, 1):
                    prefix = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
                    for name, shape in (("W_0", (12, 4 * size)), ("B", (4 * size,)), ("W_P_0", (size, 6))):
                        chunks = tuple(min(length, 2**14) for length in shape)
                        replace(file, f"{prefix}/{name}", shape=shape, dtype="f4", chunks=chunks, compression="gzip")
                        file[f"{prefix}/{name}"][:1] = 0

        edit_weights(source, edit)
        monkeypatch.setattr(read_allennlp, "SMALLEST_SUSPECT", 2**20)
        assert_fails("the tensors would take", source, tmp_path / "elmo")

    def test_shape_without_values(self, source: Path, tmp_path: Path) -> None:
        edit_weights(source, lambda file: replace(file, "CNN_proj/b_proj", shape=(6,), dtype="f4"))
        error = assert_fails(r"weights\.hdf5 is refused", source, tmp_path / "elmo")
        assert_listed(error, "CNN_proj/b_proj has a shape but no values")

    def test_no_shape(self, source: Path, tmp_path: Path) -> None:
        edit_weights(source, lambda file: replace(file, "CNN_proj/b_proj", data=h5py.Empty("f4")))
        error = assert_fails(r"weights\.hdf5 is refused", source, tmp_path / "elmo")
        assert_listed(error, "CNN_proj/b_proj is empty")


class TestLinks:
    """Weights from somebody else must not make us read other files."""

    @pytest.fixture
    def other(self, source: Path) -> Path:
        return write_tensors(source.parent / "other.hdf5", random_tensors(tiny_options(), seed=1))

    def test_external_link(self, source: Path, other: Path, tmp_path: Path) -> None:
        def edit(file: h5py.File) -> None:
            for name in ("CNN_proj/b_proj", "CNN_high_0"):
                del file[name]
                file[name] = h5py.ExternalLink(str(other), name)

        edit_weights(source, edit)
        error = assert_fails(r"weights\.hdf5 is refused", source, tmp_path / "elmo")
        assert_listed(error, "CNN_proj/b_proj is a link to another place", "CNN_high_0 is a link to another place")

    def test_soft_link(self, source: Path, tmp_path: Path) -> None:
        def edit(file: h5py.File) -> None:
            del file["CNN_high_1/b_carry"]
            file["CNN_high_1/b_carry"] = h5py.SoftLink("/CNN_high_0/b_carry")

        edit_weights(source, edit)
        error = assert_fails(r"weights\.hdf5 is refused", source, tmp_path / "elmo")
        assert_listed(error, "CNN_high_1/b_carry is a link to another place")

    def test_values_in_another_file(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "secret").write_bytes(b"\0" * 24)
        external = [(str(tmp_path / "secret"), 0, 24)]
        edit_weights(source, lambda file: replace(file, "CNN_proj/b_proj", shape=(6,), dtype="f4", external=external))
        error = assert_fails(r"weights\.hdf5 is refused", source, tmp_path / "elmo")
        assert_listed(error, "CNN_proj/b_proj is stored in another file")

    def test_virtual_dataset(self, source: Path, other: Path, tmp_path: Path) -> None:
        def edit(file: h5py.File) -> None:
            layout = h5py.VirtualLayout(shape=(6,), dtype="f4")
            layout[:] = h5py.VirtualSource(str(other), "CNN_proj/b_proj", shape=(6,))
            del file["CNN_proj/b_proj"]
            file.create_virtual_dataset("CNN_proj/b_proj", layout)

        edit_weights(source, edit)
        error = assert_fails(r"weights\.hdf5 is refused", source, tmp_path / "elmo")
        assert_listed(error, "CNN_proj/b_proj is stored in another file")

    def test_group_that_contains_itself(self, source: Path, tmp_path: Path) -> None:
        def edit(file: h5py.File) -> None:
            file["CNN/loop"] = file["CNN"]

        edit_weights(source, edit)
        error = assert_fails(r"weights\.hdf5 is refused", source, tmp_path / "elmo")
        assert_listed(error, "the group CNN/loop/ contains itself")


class TestOutput:
    def test_existing_folder_stays_as_it_is(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "elmo").mkdir()
        (tmp_path / "elmo" / "thesis.txt").write_text("three years")
        with pytest.raises(ConversionError, match="elmo exists and is not empty"):
            convert_checkpoint(source, tmp_path / "elmo")
        assert [path.name for path in (tmp_path / "elmo").iterdir()] == ["thesis.txt"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["elmo", "source"]

    def test_existing_file(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "elmo").write_text("a file")
        with pytest.raises(ConversionError, match="elmo exists and is not a folder"):
            convert_checkpoint(source, tmp_path / "elmo")

    def test_dangling_link(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "elmo").symlink_to(tmp_path / "nowhere")
        with pytest.raises(ConversionError, match="elmo exists and is not a folder"):
            convert_checkpoint(source, tmp_path / "elmo")

    @pytest.mark.parametrize("parent", ["/dev/null", "file"])
    def test_folder_below_a_file(self, parent: str, source: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("a file")
        with pytest.raises(ConversionError, match=r"cannot be (written|used).*folder"):
            convert_checkpoint(source, tmp_path / parent / "x" / "elmo")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "source"]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_folder_without_permission(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "locked").mkdir(mode=0o555)
        with pytest.raises(ConversionError, match=r"no permission in .*locked"):
            convert_checkpoint(source, tmp_path / "locked" / "elmo")

    def test_name_that_is_too_long(self, source: Path, tmp_path: Path) -> None:
        with pytest.raises(ConversionError, match="File name too long"):
            convert_checkpoint(source, tmp_path / ("x" * 300))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]

    def test_current_folder(self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        with pytest.raises(ConversionError, match="name a new folder inside it"):
            convert_checkpoint(source, ".")
        convert_checkpoint(source, "../[odd] name")
        assert (tmp_path / "[odd] name" / "config.json").is_file()

    def test_output_is_looked_at_first(self, tmp_path: Path) -> None:
        (tmp_path / "elmo").write_text("a file")
        with pytest.raises(ConversionError, match="elmo exists"):
            convert_checkpoint(tmp_path / "nowhere", tmp_path / "elmo")

    def test_output_that_appears_meanwhile_stays(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def make_output(*_: Any) -> None:
            (tmp_path / "elmo").mkdir()
            (tmp_path / "elmo" / "mine").write_text("mine")

        monkeypatch.setattr(conversion, "compare_config", make_output)
        with pytest.raises(ConversionError, match="elmo cannot be written"):
            convert_checkpoint(source, tmp_path / "elmo")
        assert [path.name for path in (tmp_path / "elmo").iterdir()] == ["mine"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["elmo", "source"]

    @pytest.mark.parametrize("limit", [0, 1000, 10_000])
    def test_full_disk(self, limit: int, source: Path, tmp_path: Path) -> None:
        """A limit on the size of files fails a write as a full disk does."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(ConversionError, match=r"Writing .*elmo failed"):
                convert_checkpoint(source, tmp_path / "elmo")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


class TestInterruption:
    PAUSED = textwrap.dedent(
        """
        import sys, time
        from hf_elmo import cli
        from hf_elmo.conversion import convert

        def pause(*arguments):
            print("ready", flush=True)
            time.sleep(60)

        convert.compare_tensors = pause
        cli.app(sys.argv[1:])
        """
    )

    @pytest.mark.parametrize(
        "stage", ["build_model", "compare_config", "compare_tensors", "compare_outputs", "sha256"]
    )
    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_nothing_is_left(
        self, stage: str, error: type[BaseException], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: Any) -> None:
            raise error

        monkeypatch.setattr(conversion, stage, interrupt)
        with pytest.raises(error):
            convert_checkpoint(source, tmp_path / "new" / "deeper" / "elmo")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=str
    )
    def test_signals(self, number: signal.Signals, status: int, source: Path, tmp_path: Path) -> None:
        command = [sys.executable, "-c", self.PAUSED, "convert", str(source), str(tmp_path / "elmo")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "ready\n"
            names = {path.name for path in tmp_path.iterdir()}
            assert len(names) == 2
            assert any(name.startswith(".elmo.unfinished-") for name in names)
            assert staging.MARK in "".join(names)
            process.send_signal(number)
            assert process.wait(timeout=30) == status
            assert "Traceback" not in process.stderr.read()
        left = {path.name for path in tmp_path.iterdir()} - {"source"}
        if number == signal.SIGKILL:
            assert left == names - {"source"}
            convert_checkpoint(source, tmp_path / "elmo")
            assert {path.name for path in tmp_path.iterdir()} == {"source", "elmo"}
        else:
            assert left == set()

    def test_leftovers_go_and_running_conversions_stay(self, source: Path, tmp_path: Path) -> None:
        abandoned = tmp_path / f".elmo{staging.MARK}00000000"
        abandoned.mkdir()
        (abandoned / "half").write_text("half")
        other = tmp_path / f".other{staging.MARK}00000000"
        other.mkdir()
        with staging.staged_folder(tmp_path / "elmo") as running:
            assert not abandoned.exists()
            convert_checkpoint(source, tmp_path / "elmo")
            assert running.is_dir()
            shutil.rmtree(tmp_path / "elmo")
        assert {path.name for path in tmp_path.iterdir()} == {"source", "elmo", other.name}
