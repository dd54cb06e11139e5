"""From an original checkpoint to a complete folder for transformers, compared with the original before it appears."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.tokenization_elmo import ElmoTokenizer

from . import verify
from .card import model_card
from .catalog import CatalogEntry
from .checkpoint import SourceCheckpoint
from .errors import ConversionError
from .mapping import MIX_PREFIX, SOFTMAX_PREFIX, Step
from .operations import OPERATIONS
from .options import CHARACTERS_WITHOUT_PADDING
from .prepare import prepared_source
from .report import ConversionReport, describe_architecture
from .staging import check_output, staged_folder

TOLERANCE = 5e-5
"""Two right evaluations in single precision differ by about 1e-5, a mistake shows at 0.1 and more."""

MIX = "mix of the layers"

LANGUAGE_MODEL = "ElmoForPreTraining"
LANGUAGE_MODEL_PREFIX = "elmo."
"""The class that reads a folder with a softmax, and where it keeps the biLM."""


def convert_checkpoint(
    source: str | PathLike[str],
    output_dir: str | PathLike[str],
    options: str | PathLike[str] | None = None,
    format: str = "auto",
    word_splitter: str | None = None,
    progress: bool = False,
    catalog_entry: CatalogEntry | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ConversionReport:
    """Converts an original checkpoint into a folder for `from_pretrained`.

    The folder has the configuration, the weights (safetensors), the tokenizer, the code for loading without this
    package, and a README.md. It is loaded again and compared with the original; it appears only when all is well.

    Args:
        source: The original weights file, or the folder or the archive (.zip, .tar.gz) with it.
        output_dir: The folder to write; it must not exist or be empty.
        options: The original options file; looked for beside the weights by default.
        format: A format's name, or `"auto"`.
        word_splitter: How the tokenizer finds words in text: `"whitespace"`, `"treebank"` or `"punctuation"`; by
            default what the catalog says, otherwise `"whitespace"`.
        progress: Whether to show a progress bar on stderr.
        catalog_entry: What the catalog knows about this checkpoint; the README says it then.
        overrides: Options to be used in the place of the original's, by their dotted paths, such as
            `{"lstm.cell_clip": 5}`.

    Returns:
        What was converted and how close it is.

    Raises:
        ConversionError: When the source cannot be converted or the output cannot be written; nothing is left then.

    Example:
        >>> from hf_elmo.conversion import convert_checkpoint
        >>> report = convert_checkpoint("weights.hdf5", "elmo", word_splitter="treebank")
        >>> print(report.summary())
    """
    output = Path(output_dir)
    word_splitter = word_splitter or (catalog_entry.word_splitter if catalog_entry else "whitespace")
    check_output(output)
    options_file = None if options is None else Path(options)
    with (
        prepared_source(Path(source), options_file, format, overrides) as prepared,
        staged_folder(output) as folder,
        writing_errors(output),
        quiet_transformers(),
        tqdm(total=2 * len(prepared.steps) + 2, disable=not progress, unit="step", bar_format=PROGRESS_FORMAT) as bar,
    ):
        checkpoint, config, steps = prepared.checkpoint, prepared.config, prepared.steps
        notes = prepared.notes + compare_catalog(catalog_entry, checkpoint, config)
        tokenizer = make_tokenizer(checkpoint, config, word_splitter)
        bar.set_description("Reading")
        model, softmax = build_model(checkpoint, steps, config, bar)
        bar.set_description("Saving")
        tokenizer.save_pretrained(folder)
        save_model(folder, model, softmax)
        for name, path in checkpoint.kept_files.items():
            shutil.copyfile(path, folder / name)
        share_mode(folder)
        predicts_words = bool(softmax) and ElmoTokenizer.vocab_files_names["word_vocabulary"] in checkpoint.kept_files
        del model, softmax
        bar.update()
        bar.set_description("Comparing")
        loaded = AutoModel.from_pretrained(folder, trust_remote_code=False, dtype=torch.float32)
        compare_config(loaded.config, config)
        compare_tensors(loaded.state_dict() | load_softmax(folder), checkpoint, steps, bar)
        expected = prepared.known.evaluate(checkpoint)
        saved_tokenizer = load_tokenizer(folder)
        compare_lexicons(saved_tokenizer, checkpoint)
        differences = compare_outputs(loaded, saved_tokenizer, expected)
        num_parameters = count_parameters(loaded)
        report = ConversionReport(
            output_dir=output,
            format=checkpoint.format,
            found=prepared.found,
            files={path.name: sha256(path) for path in prepared.files},
            architecture=describe_architecture(config, num_parameters),
            num_parameters=num_parameters,
            num_tensors=len(steps),
            num_words=expected.num_words,
            differences=differences,
            notes=notes,
            word_splitter=word_splitter,
            stated=checkpoint.stated,
            catalog_entry=catalog_entry,
            predicts_words=predicts_words,
        )
        (folder / "README.md").write_text(model_card(report), encoding="utf-8")
        bar.update()
    return report


COMPARED_SIZES = ("cell_size", "projection_size", "num_filters", "num_highway_layers")
"""The published sizes, under the names that they have in `ElmoConfig` too."""

PROGRESS_FORMAT = "{desc}{percentage:3.0f}% |{bar:30}| {elapsed}"


def compare_catalog(entry: CatalogEntry | None, checkpoint: SourceCheckpoint, config: ElmoConfig) -> tuple[str, ...]:
    """Whether files can be the checkpoint whose name a person gave them; the card would say its origin otherwise.

    Returns:
        A note where the format is another than the catalog's.

    Raises:
        ConversionError: When the sizes are others than those published.
    """
    if entry is None:
        return ()
    if entry.sizes is not None:
        sizes = {name: getattr(entry.sizes, name) for name in COMPARED_SIZES}
        wrong = [
            f"{name} is {getattr(config, name)}, but {size} was published"
            for name, size in sizes.items()
            if getattr(config, name) != size
        ]
        if wrong:
            raise ConversionError(f"{checkpoint.weights_file.name} is not {entry.name}; its sizes are others:", wrong)
    if checkpoint.format == entry.format:
        return ()
    return (f"The catalog knows {entry.name} in the format {entry.format}; these files are {checkpoint.format}.",)


def make_tokenizer(checkpoint: SourceCheckpoint, config: ElmoConfig, word_splitter: str) -> ElmoTokenizer:
    """The tokenizer of a model.

    Raises:
        ConversionError: When there is no such word splitter.
    """
    try:
        return ElmoTokenizer(
            word_splitter=word_splitter,
            max_characters_per_token=config.max_characters_per_token,
            **checkpoint.tokenizer,
        )
    except ValueError as error:
        raise ConversionError(str(error)) from error


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a saved folder.

    Raises:
        ConversionError: When it cannot be loaded, for example because a kept vocabulary is none.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except ValueError as error:
        reason = str(error).replace(f"{folder}{os.sep}", "")
        raise ConversionError(f"The converted tokenizer cannot be loaded: {reason}") from error


def share_mode(folder: Path) -> None:
    """Gives every file the mode of a new file; safetensors makes its own readable for the owner alone."""
    mode = (folder / "config.json").stat().st_mode
    for path in folder.iterdir():
        path.chmod(mode)


def build_model(
    checkpoint: SourceCheckpoint, steps: Sequence[Step], config: ElmoConfig, bar: Any
) -> tuple[ElmoModel, dict[str, torch.Tensor]]:
    """A model with the original weights, and the parameters of the softmax where the original has one.

    Raises:
        ConversionError: With every tensor that holds NaN, infinity or a padding row that is not zero; also when the
            tables do not fill the model.
    """
    model = ElmoModel(config)
    parameters = model.state_dict()
    check_targets(steps, parameters)
    softmax: dict[str, torch.Tensor] = {}
    problems = []
    for step in steps:
        array = checkpoint.tensors[step.source].load()
        if not np.isfinite(array).all():
            problems.append(f"{step.source} holds NaN or infinity")
            continue
        if step.operation == "character_table" and len(array) > CHARACTERS_WITHOUT_PADDING and array[0].any():
            problems.append(f"{step.source} has {len(array)} rows, but the first, for masked positions, is not zero")
        for target, value in zip(step.targets, OPERATIONS[step.operation].convert(array), strict=True):
            tensor = torch.from_numpy(np.ascontiguousarray(value))
            if target.startswith(SOFTMAX_PREFIX):
                softmax[target] = tensor
            else:
                parameters[target].copy_(tensor)
        bar.update()
    if problems:
        raise ConversionError(f"The weights in {checkpoint.weights_file} cannot be used:", problems)
    return model, softmax


def save_model(folder: Path, model: ElmoModel, softmax: Mapping[str, torch.Tensor]) -> None:
    """Saves a biLM, or with a softmax the language model that it is part of."""
    if not softmax:
        model.save_pretrained(folder)
        return
    bilm = {f"{LANGUAGE_MODEL_PREFIX}{name}": value for name, value in model.state_dict().items()}
    model.save_pretrained(folder, state_dict={**bilm, **softmax})
    model.config.architectures = [LANGUAGE_MODEL]
    model.config.save_pretrained(folder)


def load_softmax(folder: Path) -> dict[str, torch.Tensor]:
    """The parameters of the softmax in a saved folder, none where there is no softmax."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.startswith(SOFTMAX_PREFIX)]  # noqa: SIM118
            found.update({name: file.get_tensor(name) for name in names})
    return found


def check_targets(steps: Sequence[Step], parameters: Mapping[str, torch.Tensor]) -> None:
    """Checks that the steps fill every parameter of the biLM once, and nothing else.

    Raises:
        ConversionError: Naming every parameter that is left over or unknown.
    """
    filled = [target for step in steps for target in step.targets]
    wanted = {name for name in parameters if not name.startswith(MIX_PREFIX)}
    problems = [f"nothing fills {name}" for name in sorted(wanted - set(filled))]
    extra = sorted(name for name in set(filled) - set(parameters) if not name.startswith(SOFTMAX_PREFIX))
    problems += [f"the model has no {name}" for name in extra]
    problems += [f"{name} is filled twice" for name in sorted(set(filled)) if filled.count(name) > 1]
    if problems:
        raise ConversionError("The table of the conversion and the model do not fit together:", problems)


def compare_config(loaded: Any, config: ElmoConfig) -> None:
    """Checks that the saved configuration is the one that was made."""
    changed = [
        f"{name} was {value!r} and is {getattr(loaded, name, None)!r}"
        for name, value in config.to_diff_dict().items()
        if name in ElmoConfig.__annotations__ and getattr(loaded, name, None) != value
    ]
    if changed:
        raise ConversionError("The saved configuration differs from the original:", changed)


def compare_tensors(
    parameters: Mapping[str, torch.Tensor], checkpoint: SourceCheckpoint, steps: Sequence[Step], bar: Any
) -> None:
    """Checks that every loaded parameter is the converted original, bit for bit.

    Raises:
        ConversionError: Naming every parameter that is not.
    """
    changed = []
    for step in steps:
        arrays = OPERATIONS[step.operation].convert(checkpoint.tensors[step.source].load())
        for target, array in zip(step.targets, arrays, strict=True):
            if not same_bits(parameters[target].numpy(), array):
                changed.append(f"{target} is not the converted {step.source}")
        bar.update()
    if changed:
        raise ConversionError("The saved weights differ from the original:", changed)


def same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two float32 arrays are equal in shape and in every bit."""
    return first.dtype == second.dtype and np.array_equal(first.view(np.int32), second.view(np.int32))


def compare_lexicons(tokenizer: Any, checkpoint: SourceCheckpoint) -> None:
    """Checks that characters and words of a saved tokenizer have the numbers of the original.

    Raises:
        ConversionError: When they do not.
    """
    for name in ("character_lexicon", "word_vocabulary"):
        original = checkpoint.tokenizer.get(name)
        if original is not None and original != getattr(tokenizer, name):
            raise ConversionError(f"The tokenizer's {name} differs from the original.")


def compare_outputs(model: torch.nn.Module, tokenizer: Any, expected: verify.Expected) -> dict[str, float]:
    """The largest difference between the loaded model and the original equations, for each layer and each mix.

    Raises:
        ConversionError: When a layer differs by more than two right evaluations can.
    """
    words = [list(sentence) for sentence in expected.sentences]
    batch = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**batch, output_hidden_states=True)
    layers = [f"biLM layer {layer}" if layer else "token layer" for layer in range(len(expected.layers))]
    mixes = [f"{MIX} {mix + 1}" if mix else MIX for mix in range(len(expected.mixes))]
    return {
        name: compare_output(name, ours, sentences)
        for name, ours, sentences in [
            *zip(layers, output.hidden_states, expected.layers, strict=True),
            *zip(mixes, output.representations[: len(mixes)], expected.mixes, strict=True),
        ]
    }


def compare_output(name: str, ours: torch.Tensor, expected: Sequence[verify.DoubleArray]) -> float:
    """The largest difference between an output (sentences, words, 2P) and what the original equations give.

    Raises:
        ConversionError: When it is more than rounding explains.
    """
    pairs = [(row[: len(sentence)], sentence) for row, sentence in zip(ours.numpy(), expected, strict=True)]
    difference = max(float(abs(row - sentence).max()) for row, sentence in pairs)
    scale = max(1.0, *(float(abs(sentence).max()) for sentence in expected))
    # Also true for NaN, which compares false with everything.
    if not difference <= TOLERANCE * scale:
        raise ConversionError(
            f"The converted model differs from the original by {difference:.3g} in the {name}, more than the "
            f"{TOLERANCE * scale:.1g} that rounding explains; nothing was written."
        )
    return difference


def count_parameters(model: torch.nn.Module) -> int:
    """Numbers in the biLM."""
    return sum(value.numel() for name, value in model.named_parameters() if not name.startswith(MIX_PREFIX))


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def writing_errors(output: Path) -> Iterator[None]:
    """Turns a full disk and its like into a `ConversionError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConversionError(f"Writing {output} failed: {error}") from error


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keeps transformers' own progress bars and advice off the terminal."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
