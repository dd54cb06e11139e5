"""What is installed: the wheel, the editable install, the public names, and how light the import is."""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hf_elmo
from tests.shared_files import leave_out

ROOT = Path(hf_elmo.__file__).resolve().parents[1]
PUBLIC_NAMES = [
    "ElmoConfig",
    "ElmoEmbedder",
    "ElmoForPreTraining",
    "ElmoForPreTrainingOutput",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoTokenizer",
    "LayerWeights",
    "__version__",
    "bundled_model",
    "load_word_vectors",
    "modules_to_save",
    "parameter_groups",
    "precompute_layers",
]
CONVERSION_NAMES = [
    "ConversionError",
    "ConversionReport",
    "PushError",
    "PushReport",
    "VerificationReport",
    "convert_checkpoint",
    "export_checkpoint",
    "push_folder",
    "verify_folder",
]
HEAVY = {"datasets", "h5py", "onnx", "pandas", "peft", "sentence_transformers", "typer"}

in_the_repository = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="hf_elmo is installed without its repository"
)


def run_elsewhere(code: str, cwd: Path, *paths: Path) -> str:
    """Runs Python code in a new process with `paths` before everything that is installed; returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return process.stdout


def test_the_public_names_are_these():
    assert hf_elmo.__all__ == PUBLIC_NAMES
    for name in PUBLIC_NAMES:
        assert hasattr(hf_elmo, name)


def test_the_public_names_of_the_conversion_are_these():
    conversion = importlib.import_module("hf_elmo.conversion")
    assert conversion.__all__ == CONVERSION_NAMES
    for name in CONVERSION_NAMES:
        assert getattr(conversion, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = conversion.nothing


@in_the_repository
def test_the_version_stands_in_one_place():
    version = hf_elmo.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version)
    places = [
        path.relative_to(ROOT).as_posix()
        for folder in ("hf_elmo", "conversion")
        for path in (ROOT / folder).rglob("*.py")
        if f'"{version}"' in path.read_text(encoding="utf-8")
    ]
    assert places == ["hf_elmo/_version.py"]
    assert f'version = "{version}"' not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_installed_version_is_that_of_the_code():
    try:
        installed = importlib.metadata.version("hf-elmo")
    except importlib.metadata.PackageNotFoundError:
        leave_out("needs hf-elmo installed; here it is only on the path")
    assert installed == hf_elmo.__version__


@in_the_repository
def test_an_editable_install_finds_the_conversion_at_the_top_of_the_repository(tmp_path):
    if importlib.util.find_spec("hf_elmo.conversion") is None:
        leave_out("needs hf-elmo installed; here it is only on the path")
    code = "import hf_elmo, hf_elmo.conversion.convert as c; print(hf_elmo.__file__); print(c.__file__)"
    package, conversion = run_elsewhere(code, tmp_path).split()
    if Path(package).parent != ROOT / "hf_elmo":
        leave_out("needs an editable install")
    assert Path(conversion) == ROOT / "conversion" / "convert.py"


def test_the_import_is_light(tmp_path):
    code = "import sys, hf_elmo; print(*{name.partition('.')[0] for name in sys.modules})"
    assert set(run_elsewhere(code, tmp_path, ROOT).split()) & HEAVY == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of the sources so that the build leaves nothing behind."""
    if importlib.util.find_spec("setuptools") is None:
        leave_out("needs setuptools")
    source = tmp_path_factory.mktemp("source") / "hf-elmo"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("hf_elmo", "conversion", "model_cards"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    output = source.parent / "dist"
    if importlib.util.find_spec("build") is not None:
        command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(output), str(source)]
    else:
        command = ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(output), str(source)]
    built = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (found,) = output.glob("*.whl")
    return found


@in_the_repository
class TestWheel:
    def test_it_holds_every_module_and_what_they_read(self, wheel):
        names = set(zipfile.ZipFile(wheel).namelist())
        for path in (ROOT / "hf_elmo").glob("*.py"):
            assert f"hf_elmo/{path.name}" in names
        for path in (ROOT / "conversion").glob("*.py"):
            assert f"hf_elmo/conversion/{path.name}" in names
        assert {"hf_elmo/py.typed", "hf_elmo/model_cards/README.md.jinja"} <= names
        assert [name for name in names if name.startswith(("tests", "benchmarks", "conversion", "model_cards"))] == []

    def test_it_says_what_it_is(self, wheel):
        files = zipfile.ZipFile(wheel)
        (info,) = {name.split("/")[0] for name in files.namelist() if ".dist-info/" in name}
        metadata = files.read(f"{info}/METADATA").decode()
        assert f"\nVersion: {hf_elmo.__version__}\n" in metadata
        assert "\nLicense-Expression: Apache-2.0\n" in metadata
        assert "hf-elmo = hf_elmo.cli:app" in files.read(f"{info}/entry_points.txt").decode()
        assert any(name.endswith("LICENSE") for name in files.namelist())

    @pytest.mark.slow
    def test_it_converts_and_loads_from_where_it_is_unpacked(self, wheel, tmp_path):
        from tests.checkpoints import write_checkpoint

        unpacked, elsewhere = tmp_path / "unpacked", tmp_path / "elsewhere"
        elsewhere.mkdir()
        zipfile.ZipFile(wheel).extractall(unpacked)
        write_checkpoint(tmp_path / "original")
        code = (
            "import hf_elmo, hf_elmo.conversion, hf_elmo.cli\n"
            "from transformers import AutoModel\n"
            "print(hf_elmo.__file__, hf_elmo.conversion.__file__)\n"
            f"hf_elmo.conversion.convert_checkpoint({str(tmp_path / 'original')!r}, 'elmo')\n"
            "print(type(AutoModel.from_pretrained('elmo')).__module__)\n"
        )
        package, conversion, module = run_elsewhere(code, elsewhere, unpacked).split()
        assert Path(package) == unpacked / "hf_elmo" / "__init__.py"
        assert Path(conversion) == unpacked / "hf_elmo" / "conversion" / "__init__.py"
        assert module == "hf_elmo.modeling_elmo"
        assert "README.md" in {path.name for path in (elsewhere / "elmo").iterdir()}
