"""What of a folder goes to the Hub, whether it is all that is needed, and whose its card is."""

import json
from pathlib import Path

import pytest

from hf_elmo.conversion.errors import ConversionError
from hf_elmo.conversion.publishable import check_complete, list_files
from hf_elmo.conversion.seal import is_sealed, seal
from tests.saved_folders import save_published_folder, varied_model

CODE = [
    "buffers_elmo.py",
    "character_encoder_elmo.py",
    "character_ids_elmo.py",
    "configuration_elmo.py",
    "crf_elmo.py",
    "dropout_elmo.py",
    "fast_paths_elmo.py",
    "fused_lstm_elmo.py",
    "heads_elmo.py",
    "language_model_elmo.py",
    "locks_elmo.py",
    "lstm_elmo.py",
    "lstm_steps_elmo.py",
    "modeling_elmo.py",
    "packed_weights_elmo.py",
    "pipeline_elmo.py",
    "shared_bilm_elmo.py",
    "softmax_elmo.py",
    "task_network_elmo.py",
    "tokenization_elmo.py",
    "word_cache_elmo.py",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_published_folder(tmp_path / "elmo")


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def assert_incomplete(folder: Path, *messages: str) -> None:
    with pytest.raises(ConversionError) as caught:
        check_complete(folder)
    for message in messages:
        assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_a_saved_model_with_its_tokenizer_and_a_card_is_complete(folder: Path) -> None:
    check_complete(folder)


def test_weights_in_several_files_are_complete(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    varied_model().save_pretrained(folder, max_shard_size="4KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    check_complete(folder)
    shards[0].unlink()
    assert_incomplete(folder, f"no {shards[0].name}")


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", *CODE]
)
def test_every_file_is_needed(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert_incomplete(folder, f"no {name}")


def test_all_problems_are_named_at_once(folder: Path) -> None:
    for name in ("README.md", "tokenizer.json", "character_encoder_elmo.py"):
        (folder / name).unlink()
    code = "no character_encoder_elmo.py, which modeling_elmo.py needs"
    assert_incomplete(folder, "no README.md", "no tokenizer.json", code)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", b"\x10", "model.safetensors is damaged"),
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b"[]", "config.json holds no JSON object"),
        ("modeling_elmo.py", b"class ElmoModel(:", "modeling_elmo.py is not Python"),
        ("modeling_elmo.py", b"", "modeling_elmo.py has no class ElmoModel"),
        ("README.md", b" \n", "README.md is empty"),
        ("README.md", b"\xff", "README.md cannot be read"),
        ("README.md", b"---\na: [\n---\n", "the metadata of README.md is not YAML"),
        ("README.md", b"---\n- a\n---\n", "the metadata of README.md is not a mapping"),
    ],
)
def test_damaged_files_are_named(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    assert_incomplete(folder, message)


def test_a_truncated_file_of_weights_is_found(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert_incomplete(folder, "model.safetensors is damaged")


def test_the_code_must_be_the_folders_own(folder: Path) -> None:
    auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
    change_json(folder / "config.json", auto_map={**auto_map, "AutoModel": "someone/elmo--modeling_elmo.ElmoModel"})
    assert_incomplete(folder, "AutoModel is 'someone/elmo--modeling_elmo.ElmoModel' in auto_map")
    change_json(folder / "config.json", auto_map={"AutoConfig": auto_map["AutoConfig"]})
    assert_incomplete(folder, "config.json: AutoModel is missing in auto_map")
    change_json(folder / "config.json", auto_map=None, model_type="bert")
    assert_incomplete(folder, "config.json has no auto_map", "model_type is 'bert'")


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="nowhere is not a folder"):
        check_complete(tmp_path / "nowhere")


def test_what_training_leaves_and_hidden_files_stay(folder: Path) -> None:
    before, _ = list_files(folder)
    for name in (".env", "training_args.bin", "checkpoint-500/model.safetensors", "__pycache__/x.pyc", "runs/events"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("secret")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "all").symlink_to(folder.parent)
    files, left_out = list_files(folder)
    assert files == sorted([*before, "1_Pooling/config.json"])
    assert left_out == [".env", "__pycache__", "all", "checkpoint-500", "runs", "training_args.bin"]


def test_a_sealed_card_is_known_until_it_is_changed() -> None:
    card = seal("---\ntags: [elmo]\n---\n\n# Мама\n")
    assert is_sealed(card.encode())
    assert is_sealed(card.replace("\n", "\r\n").encode())
    assert card.startswith("---\ntags: [elmo]\n---\n\n# Мама\n<!-- hf-elmo card ")
    for changed in (
        card.replace("Мама", "Папа"),
        card + "\nMy own words.\n",
        "Mine. " + card,
        "# Мама\n",
        "",
        card.splitlines()[-1],
    ):
        assert not is_sealed(changed.encode())
    assert not is_sealed(b"\xff" + card.encode())
