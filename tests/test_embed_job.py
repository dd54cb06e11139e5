"""`run_job`: every format read back, every line accounted for, and the same bytes however often it was stopped."""

import gzip
import itertools
import json
import lzma
import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_elmo import ElmoEmbedder
from hf_elmo.embedding.errors import ChangedError, InputError, OutputError, SettingError
from hf_elmo.embedding.job import JobSettings, run_job
from tests.assertions import assert_close, assert_identical
from tests.embedding_jobs import (
    contents,
    corpus_lines,
    job_in,
    kill_after,
    killed_at,
    model_folder,
    run_in_child,
    seconds_of,
    write_lines,
)

ROUNDING = 1e-5
OUTPUTS = ["v.hdf5", "v.parquet", "v.npz", "v.safetensors", "v"]
LINES = ["She sat on the bank .", "", "Don't panic, naïve Мама!", "Yes", "a / b . c", "Yes", "  "]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "elmo")


@pytest.fixture(scope="module")
def embedder(model) -> ElmoEmbedder:
    return ElmoEmbedder.from_pretrained(model)


@pytest.fixture
def settings(model, tmp_path) -> JobSettings:
    """A job over `LINES` with shards of two lines; the output is still to be named."""
    source = write_lines(tmp_path / "in.txt", LINES)
    return JobSettings(str(source), str(tmp_path / "v.hdf5"), str(model), shard_lines=2, batch_words=64, threads=1)


def to(settings: JobSettings, name: str, **changes) -> JobSettings:
    return replace(settings, output=str(Path(settings.output).with_name(name)), **changes)


def read_back(output: str, columns: list[str], pooled: bool = False) -> list[np.ndarray]:
    """The vectors of each line, by the code that the formats' own documentation shows; several columns in front."""
    path = Path(output)
    if path.suffix == ".hdf5":
        import h5py

        with h5py.File(path) as file:
            return [file[str(line)][()] for line in range(len(file) - 1)]
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        rows = pq.read_table(path).to_pylist()
    elif path.suffix == "":
        import datasets

        rows = list(datasets.load_from_disk(output))
    else:
        return by_offsets(path, columns, pooled)
    assert [row["line"] for row in rows] == list(range(len(rows)))
    results = [[np.array(row[column], dtype=np.float32) for column in columns] for row in rows]
    return [np.stack(parts) if len(columns) > 1 else parts[0] for parts in results]


def by_offsets(path: Path, columns: list[str], pooled: bool) -> list[np.ndarray]:
    if path.suffix == ".npz":
        shards = [dict(np.load(path))]
    else:
        from safetensors.numpy import load_file

        index = json.loads((path / "index.json").read_text())["shards"]
        shards = [load_file(path / entry["file"]) for entry in index]
        assert [entry["first_line"] for entry in index] == np.cumsum([0, *(e["lines"] for e in index)])[:-1].tolist()
    results = []
    for shard in shards:
        vectors = np.stack([shard[column] for column in columns])
        vectors = vectors if len(columns) > 1 else vectors[0]
        if pooled:
            results += list(np.moveaxis(vectors, -2, 0))
            continue
        ends = shard["offsets"].tolist()
        results += [vectors[..., start:stop, :] for start, stop in itertools.pairwise(ends)]
    return results


def assert_same_vectors(found: list[np.ndarray], embedder: ElmoEmbedder, lines: list, tolerance=ROUNDING, **options):
    expected = list(embedder.embed([line.strip() if isinstance(line, str) else line for line in lines], **options))
    assert len(found) == len(expected)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if theirs.size:
            assert_close(ours, theirs, tolerance, f"line {number}")
        else:
            assert ours.size == 0


class TestFormats:
    @pytest.mark.parametrize("output", OUTPUTS)
    @pytest.mark.parametrize("layers", ["mix", "all"])
    @pytest.mark.parametrize("pool", [None, "mean"])
    def test_what_is_written_is_read_back(self, output, layers, pool, settings, embedder):
        settings = to(settings, output, layers=layers, pool=pool)
        report = run_job(settings)
        assert (report.lines, report.words, report.skipped_count) == (7, 20, 0)
        columns = ["vectors"] if layers == "mix" else ["layer_0", "layer_1", "layer_2"]
        found = read_back(settings.output, columns, pooled=pool is not None)
        assert_same_vectors(found, embedder, LINES, layers=layers, pool=pool)

    @pytest.mark.parametrize("output", OUTPUTS)
    def test_half_precision_is_the_rounded_number(self, output, settings, embedder):
        settings = to(settings, output, dtype="float16", boundaries=True)
        run_job(settings)
        found = read_back(settings.output, ["vectors"])
        assert output in ("v", "v.parquet") or {vectors.dtype for vectors in found} == {np.dtype(np.float16)}
        assert_same_vectors([one.astype(np.float32) for one in found], embedder, LINES, 2e-3, boundaries=True)

    def test_bfloat16_goes_into_safetensors(self, settings, embedder):
        from safetensors.torch import load_file

        run_job(to(settings, "v.safetensors", dtype="bfloat16"))
        vectors = load_file(Path(settings.output).with_name("v.safetensors") / "part-00000000.safetensors")["vectors"]
        assert vectors.dtype == torch.bfloat16
        assert_identical(vectors, torch.from_numpy(embedder.embed_sentence(LINES[0])).bfloat16())
        for output in ("v.hdf5", "v.parquet", "v.npz", "v"):
            with pytest.raises(ValueError, match=r"bfloat16: use --dtype float32 or float16, or .* \.safetensors"):
                run_job(to(settings, output, dtype="bfloat16"))

    def test_parquet_may_stay_in_shards(self, settings, embedder):
        import pyarrow.parquet as pq

        settings = to(settings, "v.parquet", keep_shards=True)
        run_job(settings)
        files = sorted(path.name for path in Path(settings.output).iterdir())
        assert files == ["manifest.json", *(f"part-{number:08d}.parquet" for number in range(4))]
        tables = [pq.read_table(path) for path in sorted(Path(settings.output).glob("*.parquet"))]
        found = [np.array(vectors) for table in tables for vectors in table["vectors"].to_pylist()]
        assert_same_vectors(found, embedder, LINES)

    def test_words_and_texts_are_kept_with_the_vectors(self, settings):
        import datasets
        from safetensors.numpy import load_file

        run_job(to(settings, "v"))
        words = datasets.load_from_disk(str(Path(settings.output).with_name("v")))["words"]
        assert words[2] == ["Do", "n't", "panic", ",", "naïve", "Мама", "!"]
        assert (words[1], words[6]) == ([], [])
        run_job(to(settings, "v.safetensors"))
        shard = load_file(Path(settings.output).with_name("v.safetensors") / "part-00000001.safetensors")
        assert json.loads(bytes(shard["words"])) == [words[2], words[3]]
        assert json.loads(bytes(shard["texts"])) == LINES[2:4]

    def test_other_libraries_read_parquet(self, settings):
        import datasets
        import pandas

        settings = to(settings, "v.parquet")
        run_job(settings)
        assert pandas.read_parquet(settings.output)["line"].tolist() == list(range(7))
        loaded = datasets.Dataset.from_parquet(settings.output, cache_dir=str(Path(settings.output).parent / "cache"))
        assert len(loaded[0]["vectors"]) == 6

    def test_a_number_too_large_for_the_type_is_told(self, model, settings, tmp_path):
        from hf_elmo import ElmoModel, ElmoTokenizer

        huge = ElmoModel.from_pretrained(model)
        with torch.no_grad():
            huge.representations[0].gamma.fill_(1e7)
        huge.save_pretrained(tmp_path / "huge")
        ElmoTokenizer().save_pretrained(tmp_path / "huge")
        with pytest.raises(ValueError, match="too large for float16"):
            run_job(replace(settings, model=str(tmp_path / "huge"), dtype="float16"))


class TestHdf5Layouts:
    def test_it_is_read_as_the_documentation_of_allennlp_shows(self, settings, embedder):
        settings = replace(settings, layers="all")
        run_job(settings)
        # The tutorial "ELMo: Deep contextualized word representations", section "Writing to disk".
        import h5py

        h5py_file = h5py.File(settings.output, "r")
        embedding = h5py_file.get("0")
        assert len(embedding) == 3
        assert len(embedding[0]) == 6
        sentence_to_index = json.loads(h5py_file.get("sentence_to_index")[0])
        assert sentence_to_index == {LINES[0]: "0", "": "6", LINES[2]: "2", "Yes": "5", "a / b . c": "4"}
        assert_close(embedding[...], embedder.embed_sentence(LINES[0], layers="all"), ROUNDING)
        assert embedding.dtype == np.float32
        # Programs take the number of lines from the number of keys.
        assert len(h5py_file.keys()) - 1 == len(LINES)
        assert h5py_file["1"].shape == (3, 0, 12)

    @pytest.mark.parametrize(("layers", "layer"), [("average", -1), (0, 0), ("all", -2)])
    def test_it_is_read_as_the_documentation_of_elmoformanylangs_shows(self, layers, layer, settings, embedder):
        import h5py

        settings = replace(settings, layers=layers, layout="elmoformanylangs")
        run_job(settings)
        # "the key is '\t' separated words in the sentence and the value is its 3-layer averaged representation"
        with h5py.File(settings.output, "r") as file:
            sentences = [["She", "sat", "on", "the", "bank", "."], ["Yes"], ["a", "/", "b", ".", "c"]]
            for words in sentences:
                key = "\t".join(words).replace(".", "$period$").replace("/", "$backslash$")
                stack = embedder.embed_sentence(words, layers="all")
                expected = {-1: stack.mean(axis=0), -2: stack}.get(layer, stack[layer])
                assert_close(file[key][...], expected, ROUNDING)
            assert len(file) == 4

    def test_the_layout_is_for_hdf5(self, settings):
        with pytest.raises(ValueError, match=r"--layout is for \.hdf5"):
            run_job(to(settings, "v.npz", layout="elmoformanylangs"))


class TestInputs:
    def read(self, settings: JobSettings, **changes) -> list[list[str]]:
        """The words that a job found, line by line."""
        import datasets

        settings = to(settings, "words", **changes)
        run_job(settings, overwrite=True)
        return list(datasets.load_from_disk(settings.output)["words"])

    @pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.open), (".xz", lzma.open)])
    def test_packed_text(self, ending, pack, settings, tmp_path):
        with pack(tmp_path / f"in.txt{ending}", "wt", encoding="utf-8") as file:
            file.write("a b\r\n\n\ufeffc d")
        assert self.read(settings, input=str(tmp_path / f"in.txt{ending}")) == [["a", "b"], [], ["\ufeffc", "d"]]

    def test_pretokenized_text_is_not_split(self, settings):
        assert self.read(settings, pretokenized=True)[2] == ["Don't", "panic,", "naïve", "Мама!"]

    def test_a_byte_order_mark_is_no_letter(self, settings, tmp_path):
        (tmp_path / "bom.txt").write_text("a b\n", encoding="utf-8-sig")
        assert self.read(settings, input=str(tmp_path / "bom.txt")) == [["a", "b"]]

    def test_conllu(self, settings, tmp_path):
        text = (
            "# text = Don't go\n1-2\tDon't\t_\n1\tDo\tdo\n2\tn't\tnot\n2.1\tx\tx\n3\tgo\tgo\n\n\n# id\n1\tYes\tyes\n"
        )
        (tmp_path / "in.conllu").write_text(text, encoding="utf-8")
        assert self.read(settings, input=str(tmp_path / "in.conllu")) == [["Do", "n't", "go"], ["Yes"]]

    def test_jsonl(self, settings, tmp_path):
        rows = ['{"id": 1, "text": "It\'s so"}', "", '{"words": ["New York", "is"]}', '"a b"', '["a b"]']
        write_lines(tmp_path / "in.jsonl", rows)
        expected = [["It", "'s", "so"], [], ["New York", "is"], ["a", "b"], ["a b"]]
        assert self.read(settings, input=str(tmp_path / "in.jsonl")) == expected

    @pytest.mark.parametrize(("ending", "separator"), [("csv", ","), ("tsv", "\t")])
    def test_csv(self, ending, separator, settings, tmp_path):
        rows = ["id,line,label", '1,"a ""b"" c",x', '2,"two', 'lines",y', "3,,z"]
        write_lines(tmp_path / f"in.{ending}", [row.replace(",", separator) for row in rows])
        source = {"input": str(tmp_path / f"in.{ending}")}
        expected = [["a", '"', "b", '"', "c"], ["two", "lines"], []]
        assert self.read(settings, **source, column="line") == expected
        with pytest.raises(InputError, match="Name it with --column: 'id', 'line', 'label'"):
            self.read(settings, **source)

    @pytest.mark.parametrize("column", ["text", "words"])
    def test_parquet(self, column, settings, tmp_path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        values = ["a b", None, "c"] if column == "text" else [["a b"], [], ["c"]]
        pq.write_table(pa.table({"n": [1, 2, 3], column: values}), tmp_path / "in.parquet")
        expected = [["a", "b"], [], ["c"]] if column == "text" else values
        assert self.read(settings, input=str(tmp_path / "in.parquet")) == expected


BAD = {
    "in.txt": (b"good\nb\xffd\n\nlast\n", "Line 2", "is not valid UTF-8 (byte 0xff after 1 bytes)"),
    "in.jsonl": (b'"good"\n{"text": 7}\n\n"last"', "Line 2", "neither a text nor a list of words in the field 'text'"),
    "no.jsonl": (b'"good"\n{"a": \n\n"last"', "Line 2", "is no JSON"),
    "fields.jsonl": (b'"good"\n{"title": "x"}\n\n"last"', "Line 2", "has no field 'text' or"),
    "half.jsonl": (b'"good"\n"\\ud800"\n\n"last"', "Line 2", "half of a surrogate pair"),
    "in.csv": (b"n,text\n1,good\n2\n3,\n4,last", "Row 2", "has 1 fields, too few for the column 'text'"),
    "utf.csv": (b"n,text\n1,good\n2,\xff\n3,\n4,last", "Row 2", "is not valid UTF-8"),
    "in.conllu": (
        b"1\tgood\n\n1 bad\n\n# x\n1.1\t_\n\n1\tlast\n",
        "Sentence 2",
        "line 3 does not begin with a number",
    ),
}


class TestBadLines:
    @pytest.mark.parametrize("name", BAD)
    def test_a_bad_line_is_named_and_the_run_stops(self, name, settings, tmp_path):
        content, where, what = BAD[name]
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            run_job(replace(settings, input=str(tmp_path / name)))
        assert where in str(caught.value)
        assert what in str(caught.value)
        assert "--on-error skip" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not Path(settings.output + ".unfinished").exists()

    @pytest.mark.parametrize("name", BAD)
    @pytest.mark.parametrize("output", ["v.hdf5", "v"])
    def test_or_is_skipped_and_keeps_its_number(self, name, output, settings, embedder, tmp_path):
        content, _, what = BAD[name]
        (tmp_path / name).write_bytes(content)
        settings = to(settings, output, input=str(tmp_path / name), on_error="skip")
        report = run_job(settings)
        assert (report.lines, report.skipped_count, report.skipped[0][0]) == (4, 1, 1)
        assert what in report.skipped[0][1]
        assert_same_vectors(read_back(settings.output, ["vectors"]), embedder, ["good", "", "", "last"])
        if output == "v.hdf5":
            import h5py

            with h5py.File(settings.output) as file:
                assert what in file["1"].attrs["error"]
                assert "error" not in file["2"].attrs
        else:
            import datasets

            errors = datasets.load_from_disk(settings.output)["error"]
            assert [error is None for error in errors] == [True, False, True, True]

    def test_a_line_of_ten_megabytes_is_told_or_skipped(self, settings, embedder, tmp_path):
        (tmp_path / "in.txt").write_bytes(b"good\n" + b"word " * (2 << 20) + b"\nlast")
        with pytest.raises(InputError, match=r"Line 2 of .* has 10,485,760 bytes, more than the 1,048,576"):
            run_job(settings)
        report = run_job(replace(settings, on_error="skip"))
        assert (report.lines, report.skipped_count) == (3, 1)
        assert_same_vectors(read_back(settings.output, ["vectors"]), embedder, ["good", "", "last"])

    def test_a_sentence_of_too_many_words_is_told_or_skipped(self, settings, tmp_path):
        write_lines(tmp_path / "in.txt", ["good", "w " * 101, "last"])
        with pytest.raises(InputError, match=r"Line 2 of .* has 101 words, more than the 100"):
            run_job(replace(settings, most_words=100))
        assert run_job(replace(settings, most_words=100, on_error="skip")).skipped_count == 1
        assert run_job(to(settings, "w.hdf5", most_words=101)).skipped_count == 0

    def test_a_run_that_stopped_at_a_bad_line_goes_on_when_it_may_skip(self, settings, tmp_path):
        (tmp_path / "in.txt").write_bytes(b"a\nb\nc\nd\n\xff\nf\n")
        with pytest.raises(InputError, match=r"4 lines are done and kept in .*v\.hdf5\.unfinished: the same command"):
            run_job(settings)
        report = run_job(replace(settings, on_error="skip"))
        assert (report.lines, report.resumed_lines, report.skipped_count) == (6, 4, 1)
        shutil.copy(settings.output, tmp_path / "first")
        run_job(replace(settings, on_error="skip"), overwrite=True)
        assert (tmp_path / "first").read_bytes() == Path(settings.output).read_bytes()


class TestBadInputs:
    def assert_refused(self, settings: JobSettings, message: str, error: type[Exception] = InputError) -> None:
        before = contents(Path(settings.output).parent)
        with pytest.raises(error, match=message) as caught:
            run_job(settings)
        assert "\n" not in str(caught.value)
        assert contents(Path(settings.output).parent) == before

    def test_an_input_that_is_not_there(self, settings, tmp_path):
        self.assert_refused(
            replace(settings, input=str(tmp_path / "gone.txt")), "gone.txt cannot be read: No such file"
        )
        self.assert_refused(replace(settings, input=str(tmp_path)), "is a folder")

    def test_an_empty_input(self, settings, tmp_path):
        (tmp_path / "in.txt").write_bytes(b"")
        self.assert_refused(settings, "is empty: there is nothing to embed")

    @pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
    def test_an_archive_that_is_cut_short(self, ending, pack, settings, tmp_path):
        source = tmp_path / f"in.txt{ending}"
        source.write_bytes(pack(os.urandom(300).hex().encode())[:-20])
        self.assert_refused(replace(settings, input=str(source)), "is damaged or cut short")

    def test_what_is_no_parquet(self, settings, tmp_path):
        (tmp_path / "in.parquet").write_bytes(b"PAR1 but no more")
        self.assert_refused(replace(settings, input=str(tmp_path / "in.parquet")), "is no Parquet file")

    def test_wrong_columns(self, settings, tmp_path):
        write_lines(tmp_path / "in.csv", ["a,b", "1,2"])
        source = {"input": str(tmp_path / "in.csv")}
        self.assert_refused(replace(settings, **source, column="c"), "no column 'c'; its columns are 'a', 'b'")
        self.assert_refused(replace(settings, column="c"), "--column is for JSONL, CSV and Parquet", SettingError)

    def test_an_open_quotation_mark(self, settings, tmp_path):
        write_lines(tmp_path / "in.csv", ["text", '"open', *["line"] * 100])
        changes = {"input": str(tmp_path / "in.csv"), "most_line_bytes": 200}
        self.assert_refused(replace(settings, **changes), "is a quotation mark missing")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"output": "v.txt"}, "must end in .hdf5, .parquet"),
            ({"input_format": "word"}, "'word' is unknown"),
            ({"layout": "other"}, "'other' is unknown"),
            ({"on_error": "ignore"}, "stop or skip"),
            ({"most_words": 0}, "max-words must be 1 or more"),
            ({"keep_shards": True}, "--shards is for .parquet"),
            ({"layers": "bottom"}, "'bottom' is unknown"),
            ({"dtype": "float64"}, "float64"),
            ({"device": "tpu"}, "The device 'tpu' is unknown"),
            ({"device": "meta"}, "The device 'meta' is unknown"),
            ({"precision": "int8"}, "--precision must be float32, bfloat16, float16, not 'int8'"),
        ],
    )
    def test_wrong_settings(self, changes, message, settings, tmp_path):
        if "output" in changes:
            changes = {"output": str(tmp_path / changes["output"])}
        self.assert_refused(replace(settings, **changes), message, SettingError)

    def test_an_output_that_is_somebody_elses(self, settings, tmp_path):
        Path(settings.output).write_bytes(b"precious")
        self.assert_refused(settings, "exists and was not written by this command", ChangedError)
        with pytest.raises(ChangedError):
            run_job(settings, overwrite=True)
        assert Path(settings.output).read_bytes() == b"precious"
        (tmp_path / "v").mkdir()
        (tmp_path / "v" / "file").write_bytes(b"precious")
        self.assert_refused(to(settings, "v"), "exists and was not written by this command", ChangedError)

    def test_a_place_where_nothing_can_be_written(self, settings, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        self.assert_refused(
            replace(settings, output=str(tmp_path / "file" / "v.npz")), "cannot be written", OutputError
        )


class TestChanges:
    @pytest.fixture
    def begun(self, settings, tmp_path) -> JobSettings:
        """A job that stopped after four lines."""
        (tmp_path / "in.txt").write_bytes(b"a\nb\nc\nd\n\xff\nf\n")
        with pytest.raises(InputError):
            run_job(settings)
        return settings

    def assert_refused(self, settings: JobSettings, message: str, tmp_path: Path, overwrite: bool = False) -> None:
        before = contents(tmp_path)
        with pytest.raises(ChangedError, match=message):
            run_job(settings, overwrite=overwrite)
        assert contents(tmp_path) == before

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"layers": "top"}, "layers was 'mix' and is now 'top'"),
            ({"pool": "mean"}, "pool was None and is now 'mean'"),
            ({"dtype": "float16"}, "dtype was 'float32' and is now 'float16'"),
            ({"shard_lines": 3}, "shard-lines was 2 and is now 3"),
            ({"layout": "elmoformanylangs"}, "layout was 'allennlp'"),
            ({"precision": "bfloat16"}, "with another model|precision was 'float32'"),
            ({"threads": 2}, "begun with --threads 1"),
        ],
    )
    def test_another_option_is_refused(self, changes, message, begun, tmp_path):
        self.assert_refused(replace(begun, **changes), message, tmp_path)

    def test_another_model_is_refused(self, begun, tmp_path):
        from tests.saved_folders import varied_model

        folder = model_folder(tmp_path / "other")
        changed = varied_model()
        with torch.no_grad():
            changed.encoder.layers[1].backward_lstm.projection.weight[0, 0] += 1e-3
        changed.save_pretrained(folder)
        self.assert_refused(replace(begun, model=str(folder)), "begun with another model", tmp_path)

    @pytest.mark.parametrize("content", [b"a\nb\nC\nd\n\xff\nf\n", b"a\nb\n\nc\nd\nf\n", b"a\nb\nc\n", b"a\nb\n", b""])
    def test_another_input_is_refused(self, content, begun, tmp_path):
        (tmp_path / "in.txt").write_bytes(content)
        before = contents(tmp_path)
        with pytest.raises((ChangedError, InputError), match=r"has changed since|become shorter|is empty"):
            run_job(begun)
        assert contents(tmp_path) == before

    def test_a_copy_of_the_model_and_of_the_input_is_the_same(self, begun, model, tmp_path):
        shutil.copytree(model, tmp_path / "copy")
        (tmp_path / "in.txt").rename(tmp_path / "moved.txt")
        with pytest.raises(InputError, match=r"Line 5 of .*moved.txt"):
            run_job(replace(begun, model=str(tmp_path / "copy"), input=str(tmp_path / "moved.txt")))

    @pytest.mark.parametrize("output", OUTPUTS)
    def test_a_finished_job_is_not_done_again_and_not_for_something_else(self, output, settings, tmp_path):
        settings = to(settings, output)
        run_job(settings)
        before = contents(tmp_path)
        again = run_job(settings)
        assert again.was_complete
        assert (again.lines, again.words) == (7, 20)
        self.assert_refused(replace(settings, boundaries=True), "boundaries was False", tmp_path)
        assert contents(tmp_path) == before
        write_lines(tmp_path / "in.txt", [*LINES, "more"])
        self.assert_refused(settings, "is finished, but of another input", tmp_path)
        assert run_job(settings, overwrite=True).lines == 8

    def test_two_runs_at_once_are_refused(self, begun, tmp_path):
        pytest.importorskip("fcntl")
        from hf_elmo.conversion.staging import hold

        lock = hold(Path(begun.output + ".unfinished"))
        assert lock is not None
        self.assert_refused(begun, "by another run right now", tmp_path)
        self.assert_refused(begun, "by another run right now", tmp_path, overwrite=True)
        os.close(lock)
        write_lines(tmp_path / "in.txt", ["a", "b"])
        assert run_job(begun, overwrite=True).resumed_lines == 0

    def test_nothing_is_made_of_shards_that_were_changed_meanwhile(self, settings, tmp_path):
        other = to(settings, "w.safetensors", layers="top")
        run_job(other)
        shard = tmp_path / "v.hdf5.unfinished" / "part-00000000.safetensors"

        def run_and(change) -> str:
            with pytest.raises(OutputError) as caught:
                run_job(settings, lambda progress: change() if progress.fraction == 1 and shard.exists() else None)
            assert not Path(settings.output).exists()
            return str(caught.value)

        assert "part-00000000.safetensors was removed or damaged while the job ran. 7 lines" in run_and(shard.unlink)
        theirs = Path(other.output) / shard.name
        assert "was changed by another job" in run_and(lambda: shutil.copy(theirs, shard))
        assert run_job(settings).resumed_lines == 5

    def test_a_damaged_shard_is_made_again(self, begun, tmp_path):
        (tmp_path / "v.hdf5.unfinished" / "part-00000001.safetensors").write_bytes(b"damaged")
        (tmp_path / "in.txt").write_bytes(b"a\nb\nc\nd\ne\nf\n")
        assert run_job(begun).resumed_lines == 2


class TestFullDisk:
    @pytest.mark.parametrize("output", OUTPUTS)
    def test_it_is_told_and_the_same_command_goes_on(self, output, settings, tmp_path):
        resource = pytest.importorskip("resource")
        write_lines(tmp_path / "in.txt", ["a", "b", *[" ".join(["river", "bank"] * 2000)] * 2])
        settings = to(settings, output)

        def full() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
            with pytest.raises(
                OutputError, match=r"part-00000001\..* could not be written.* 2 lines are done and kept"
            ):
                run_job(settings)

        child = run_in_child(full)
        child.join()
        assert child.exitcode == 0
        assert not Path(settings.output).exists()
        assert list(tmp_path.rglob("*.tmp")) == []
        assert run_job(settings).resumed_lines == 2


def place_job(folder: Path, model: Path, lines: list[str], output: str, **changes) -> JobSettings:
    """A job in a folder of its own, named by relative paths, so that its bytes can be compared."""
    folder.mkdir()
    write_lines(folder / "in.txt", lines)
    return JobSettings("in.txt", output, str(model), batch_words=256, threads=1, **changes)


class TestKills:
    @pytest.mark.parametrize(
        "output", ["v.hdf5", "v", *(pytest.param(output, marks=pytest.mark.slow) for output in OUTPUTS[1:4])]
    )
    def test_a_kill_at_every_step_that_changes_the_disk_loses_nothing(self, output, model, tmp_path):
        lines = corpus_lines(25)
        settings = place_job(tmp_path / "whole", model, lines, output, shard_lines=7)
        seconds_of(job_in(tmp_path / "whole", settings))
        expected = contents(tmp_path / "whole")
        steps = 0
        while True:
            folder = tmp_path / f"killed-{steps}"
            place_job(folder, model, lines, output)
            child = run_in_child(killed_at(steps, job_in(folder, settings)))
            child.join()
            if child.exitcode == 0:
                break
            seconds_of(job_in(folder, settings))
            assert contents(folder) == expected, f"killed at step {steps}"
            steps += 1
        assert steps >= 5

    @pytest.mark.parametrize("output", ["v.hdf5", "v"])
    @pytest.mark.parametrize("finished", [True, False])
    def test_an_overwrite_that_was_killed_at_any_step_is_repeated(self, output, finished, model, tmp_path):
        settings = place_job(tmp_path / "whole", model, corpus_lines(8), output, shard_lines=4)
        seconds_of(job_in(tmp_path / "whole", settings))
        expected = contents(tmp_path / "whole")
        began = to(settings, output, layers="top")
        for step in itertools.count():
            folder = tmp_path / f"killed-{step}"
            place_job(folder, model, corpus_lines(8), output)
            if finished:
                seconds_of(job_in(folder, began))
            else:
                run_in_child(killed_at(3, job_in(folder, began))).join()
                assert (folder / f"{output}.unfinished").is_dir()
            child = run_in_child(killed_at(step, job_in(folder, settings, overwrite=True)))
            child.join()
            seconds_of(job_in(folder, settings, overwrite=True))
            assert contents(folder) == expected, f"killed at step {step}"
            if child.exitcode == 0:
                break
        assert step >= 5

    def test_a_few_kills_at_random_moments(self, model, tmp_path):
        assert_survives_kills(model, tmp_path, "v.hdf5", 3)

    @pytest.mark.long
    @pytest.mark.slow
    @pytest.mark.parametrize("output", ["v.hdf5", "v.parquet"])
    def test_thirty_kills_at_random_moments(self, output, model, tmp_path):
        assert_survives_kills(model, tmp_path, output, 30)


def assert_survives_kills(model: Path, folder: Path, output: str, kills: int) -> None:
    """Kills a job at random moments, each time another one, lets it go on to its end, and compares every byte."""
    lines = corpus_lines(800)
    chance = random.Random(output)
    settings = place_job(folder / "whole", model, lines, output, shard_lines=40, layers="all")
    whole = seconds_of(job_in(folder / "whole", settings))
    expected = contents(folder / "whole")
    interrupted = 0
    for number in range(4 * kills):  # on a busy machine some come too late
        if interrupted == kills:
            break
        killed = folder / f"killed-{number}"
        place_job(killed, model, lines, output)
        child = run_in_child(job_in(killed, settings))
        kill_after(child, chance.uniform(0.05, 1.0) * whole)
        interrupted += child.exitcode != 0
        seconds_of(job_in(killed, settings))
        assert contents(killed) == expected
        shutil.rmtree(killed)
    assert interrupted >= kills // 2
