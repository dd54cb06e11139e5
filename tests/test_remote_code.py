"""Without the package, `trust_remote_code=True` on a folder gives the same classes and the same numbers."""

import ast
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification, AutoTokenizer, pipeline

from hf_elmo import ElmoForTokenClassification
from tests import remote_code_session
from tests.assertions import assert_close
from tests.saved_folders import TEXTS, convert_folder, save_folder

ALLOWED = {"torch", "transformers", "tokenizers", "numpy", "huggingface_hub"}
EQUAL = 1e-6


REPOSITORY = "someone/elmo"


def cache_as_repository(folder: Path, cache: Path) -> None:
    """Lays a folder down as if it had been downloaded from the Hub as `REPOSITORY`."""
    commit = "0123456789" * 4
    repository = cache / "hub" / f"models--{REPOSITORY.replace('/', '--')}"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)


def run_without_the_package(base: Path | str, head: Path | str, root: Path, **settings: str) -> dict:
    """Runs `remote_code_session.py` in a process that cannot import hf_elmo, far from the repository."""
    root.mkdir(exist_ok=True)
    results = root / "results.json"
    results.write_text(json.dumps({"texts": TEXTS}))
    script = root / "session.py"
    script.write_text(Path(remote_code_session.__file__).read_text())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
    environment |= {"HF_HOME": str(root / "cache"), "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(root / "modules")}
    environment |= settings
    process = subprocess.run(
        [sys.executable, str(script), str(base), str(head), str(root / "saved"), str(results)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(results.read_text())


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("folders")
    labels = {"id2label": {0: "O", 1: "B-X", 2: "I-X"}, "label2id": {"O": 0, "B-X": 1, "I-X": 2}}
    head = {"use_crf": True, "label_scheme": "BIO", "elmo_at_output": True, **labels}
    return convert_folder(root / "converted"), save_folder(root / "head", ElmoForTokenClassification, **head)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def first(folders, workplace) -> dict:
    """What a repository of the Hub and a folder give; they are loaded and saved to `workplace / "first" / "saved"`."""
    base, head = folders
    cache_as_repository(base, workplace / "first" / "cache")
    return run_without_the_package(REPOSITORY, head, workplace / "first")


@pytest.fixture(scope="module")
def second(first, workplace) -> dict:
    """The same, in another process, for the folders that the first process saved."""
    saved = workplace / "first" / "saved"
    return run_without_the_package(saved / "base", saved / "head", workplace / "second")


@pytest.fixture(params=["first", "second"])
def found(request) -> dict:
    return request.getfixturevalue(request.param)


def test_all_code_comes_from_the_folder(found):
    assert found["modules"] == []
    assert found["code"] == ["transformers_modules"]


def test_every_auto_class_gives_its_class_on_base_and_head_folders(found):
    classes = ["ElmoModel", "ElmoForSequenceClassification", "ElmoForTokenClassification", "ElmoForPreTraining"]
    assert found["classes"] == [name for name in classes for _ in ("base", "head")]
    assert math.isfinite(found["loss"])


def test_configuration_and_tokenizer_are_the_same(found, folders):
    base, _ = folders
    expected = json.loads(json.dumps(AutoConfig.from_pretrained(base).to_dict()))
    assert {**found["config"], "_name_or_path": None} == {**expected, "_name_or_path": None}
    tokenizer = AutoTokenizer.from_pretrained(base)
    assert found["splitter"] == tokenizer.word_splitter
    assert found["decoded"] == tokenizer.batch_decode(tokenizer(TEXTS)["input_ids"], skip_special_tokens=True)


def test_the_numbers_are_those_of_the_package(found, folders):
    base, head = folders
    batch = AutoTokenizer.from_pretrained(base)(TEXTS, padding=True, return_tensors="pt")
    expected = [AutoModel.from_pretrained(folder)(**batch).last_hidden_state for folder in (base, head)]
    for index, vectors in enumerate(found["vectors"]):
        assert_close(vectors, expected[index % 2], EQUAL)
    assert_close(found["logits"], AutoModelForTokenClassification.from_pretrained(head)(**batch).logits, 1e-5)


def test_the_weights_of_a_task_alone_are_put_together_with_their_bilm(found, folders):
    _, head = folders
    logits, size = found["task"]
    assert_close(logits, found["logits"], EQUAL)
    assert size < (head / "model.safetensors").stat().st_size / 2


def test_stock_pipelines_give_what_they_give_with_the_package(found, folders):
    base, head = folders
    tags = pipeline("token-classification", model=head, ignore_labels=[])(TEXTS)
    for ours, theirs in zip(found["tags"], tags, strict=True):
        assert [tuple(word[:3]) for word in ours] == [(word["word"], word["start"], word["end"]) for word in theirs]
        assert_close([word[3] for word in ours], [word["score"] for word in theirs], EQUAL)
    for strategy in ("simple", "first", "average", "max"):
        groups = pipeline("token-classification", model=head, aggregation_strategy=strategy)(TEXTS[0])
        assert found[strategy] == [[group["word"], group["start"], group["end"]] for group in groups]
    features = pipeline("feature-extraction", model=base, batch_size=2)(TEXTS)
    for ours, theirs in zip(found["features"], features, strict=True):
        assert_close(ours, theirs, EQUAL)
    assert all(label in {"O", "B-X", "I-X"} for label in found["class"])


def test_what_was_loaded_and_saved_without_the_package_loads_with_it(second, workplace, folders):
    saved = workplace / "second" / "saved"
    for name, folder in zip(("base", "head"), folders, strict=True):
        assert {path.name for path in (saved / name).glob("*.py")} == {path.name for path in folder.glob("*.py")}
        batch = AutoTokenizer.from_pretrained(saved / name)(TEXTS, padding=True, return_tensors="pt")
        vectors = AutoModel.from_pretrained(saved / name)(**batch).last_hidden_state
        assert_close(vectors, AutoModel.from_pretrained(folder)(**batch).last_hidden_state, EQUAL)


def test_the_code_in_a_folder_imports_only_what_transformers_users_have(folders):
    for folder in folders:
        files = {path.stem: path for path in folder.glob("*.py")}
        assert len(files) >= 7
        for path in files.values():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported = {alias.name.partition(".")[0] for alias in node.names}
                    assert imported <= ALLOWED | sys.stdlib_module_names, (path.name, imported)
                elif isinstance(node, ast.ImportFrom) and node.level:
                    assert node.level == 1, (path.name, ast.unparse(node))
                    assert node.module in files, (path.name, ast.unparse(node))
                elif isinstance(node, ast.ImportFrom):
                    assert node.module.partition(".")[0] in ALLOWED | sys.stdlib_module_names, (path.name, node.module)
                    # It would silently switch off the validation of `@strict`.
                    assert node.module != "__future__", path.name
