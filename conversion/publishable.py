"""Which files of a saved folder go to the Hub, and whether they are all that loading from there needs."""

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError, safe_open

from .errors import ConversionError

CARD = "README.md"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
REQUIRED_AUTO_CLASSES = ("AutoConfig", "AutoModel")
# What a Trainer leaves beside a model: nobody needs it to use the model, and much of it is pickled.
LEFT_OUT = re.compile(r"checkpoint-\d+|runs|__pycache__|.+\.(pt|pth|bin|pkl|pickle|ckpt)|trainer_state\.json")


def list_files(folder: Path) -> tuple[list[str], list[str]]:
    """The files of a folder that go to the Hub, and what stays: hidden files and what training leaves.

    Args:
        folder: A saved model.

    Returns:
        Paths relative to the folder with forward slashes, sorted; and what is left out, a folder as one entry.
    """
    wanted: list[str] = []
    left_out: list[str] = []
    pending = [folder]
    while pending:
        for path in pending.pop().iterdir():
            name = path.relative_to(folder).as_posix()
            if path.name.startswith(".") or LEFT_OUT.fullmatch(path.name) or not (path.is_file() or path.is_dir()):
                left_out.append(name)
            elif path.is_file():
                wanted.append(name)
            elif path.is_symlink():
                left_out.append(name)
            else:
                pending.append(path)
    return sorted(wanted), sorted(left_out)


def check_complete(folder: Path) -> None:
    """Checks that a folder has all that `from_pretrained` with `trust_remote_code=True` needs, and a card.

    Raises:
        ConversionError: With everything that is missing or damaged.
    """
    if not folder.is_dir():
        raise ConversionError(f"{folder} is not a folder; give the folder that a model was saved to.")
    problems = check_weights(folder) + check_card(folder)
    config, tokenizer = ({}, {})
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        try:
            content = read_json(folder / name)
        except ConversionError as error:
            problems.append(str(error))
            continue
        if name == "config.json":
            config = content
        elif name == "tokenizer_config.json":
            tokenizer = content
    if config:
        if config.get("model_type") != "elmo":
            problems.append(f"config.json: model_type is {config.get('model_type')!r}, not 'elmo'")
        problems += check_auto_map(folder, "config.json", config, REQUIRED_AUTO_CLASSES)
    if tokenizer:
        problems += check_auto_map(folder, "tokenizer_config.json", tokenizer, ("AutoTokenizer",))
    if problems:
        raise ConversionError(
            f"{folder} is not complete, nothing was pushed. Load model and tokenizer with `import hf_elmo`, save both "
            "into one folder, and put a README.md beside them. What is wrong:",
            sorted(set(problems)),
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ConversionError: When there is none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConversionError(f"no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ConversionError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path.name} holds no JSON object")
    return content


def check_weights(folder: Path) -> list[str]:
    """What is wrong with the weights, in one file or in several with an index."""
    if not (folder / INDEX).is_file() or (folder / WEIGHTS).is_file():
        return check_tensors(folder / WEIGHTS)
    try:
        shards = set(read_json(folder / INDEX).get("weight_map", {}).values())
    except (ConversionError, AttributeError, TypeError) as error:
        return [f"{INDEX} cannot be used: {error}"]
    problems = [] if shards else [f"{INDEX} names no file"]
    for shard in sorted(map(str, shards)):
        problems += check_tensors(folder / shard)
    return problems


def check_tensors(path: Path) -> list[str]:
    """What is wrong with one safetensors file: its header is read, its tensors are not."""
    if not path.is_file():
        return [f"no {path.name}"]
    try:
        with safe_open(path, framework="np") as file:
            return [] if file.keys() else [f"{path.name} holds no tensors"]
    except (SafetensorError, OSError) as error:
        return [f"{path.name} is damaged: {error}"]


def check_card(folder: Path) -> list[str]:
    """What is wrong with the card; the Hub validates the metadata again, more strictly."""
    try:
        text = (folder / CARD).read_text(encoding="utf-8")
    except FileNotFoundError:
        return [f"no {CARD}"]
    except (OSError, UnicodeDecodeError) as error:
        return [f"{CARD} cannot be read: {error}"]
    if not text.strip():
        return [f"{CARD} is empty"]
    block = re.match(r"\A---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    if block is None:
        return []
    try:
        metadata = yaml.safe_load(block[1])
    except yaml.YAMLError as error:
        return [f"the metadata of {CARD} is not YAML: {' '.join(str(error).split())}"]
    return [] if metadata is None or isinstance(metadata, dict) else [f"the metadata of {CARD} is not a mapping"]


def check_auto_map(folder: Path, name: str, content: dict[str, Any], required: Iterable[str]) -> list[str]:
    """What is wrong with the `auto_map` of a file, and with the code that it needs.

    Args:
        folder: Where the code must be.
        name: The file with the `auto_map`.
        content: What is in it.
        required: The Auto classes that it must name.
    """
    auto_map = content.get("auto_map")
    if not isinstance(auto_map, dict):
        return [f"{name} has no auto_map, so that nobody could load the model without this package"]
    problems = [
        f"{name}: {auto_class} is missing in auto_map" for auto_class in required if auto_class not in auto_map
    ]
    classes: dict[str, set[str]] = {}
    for auto_class, references in auto_map.items():
        for reference in references if isinstance(references, list) else [references]:
            if reference is None:
                continue
            if not isinstance(reference, str) or not re.fullmatch(r"\w+\.\w+", reference):
                problems.append(f"{name}: {auto_class} is {reference!r} in auto_map, not code of this folder")
                continue
            module, class_name = reference.split(".")
            classes.setdefault(module, set()).add(class_name)
    return problems + check_code(folder, name, classes)


def check_code(folder: Path, name: str, classes: dict[str, set[str]]) -> list[str]:
    """What is missing of the code, followed through relative imports.

    Args:
        folder: Where the code must be.
        name: The file that asks for it.
        classes: Module -> the classes it must define.
    """
    problems: list[str] = []
    asked_by = dict.fromkeys(classes, name)
    pending = list(classes)
    while pending:
        module = pending.pop()
        path = folder / f"{module}.py"
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            problems.append(f"no {path.name}, which {asked_by[module]} needs")
            continue
        except (OSError, ValueError, SyntaxError) as error:
            problems.append(f"{path.name} is not Python: {error}")
            continue
        defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        problems += [f"{path.name} has no class {wanted}" for wanted in classes.get(module, set()) - defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module and node.module not in asked_by:
                asked_by[node.module] = path.name
                pending.append(node.module)
    return problems
