"""Compares a converted folder with the original files again, long after the conversion or after a download."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import AutoTokenizer

from .convert import (
    PROGRESS_FORMAT,
    compare_config,
    compare_lexicons,
    compare_outputs,
    compare_tensors,
    load_softmax,
    quiet_transformers,
    sha256,
)
from .errors import ConversionError
from .export import load_model
from .prepare import PreparedSource, prepared_source


@dataclass(frozen=True)
class VerificationReport:
    """The result of `verify_folder`.

    Args:
        folder: The folder that was verified.
        found: What the source turned out to be, in words.
        num_tensors: Original tensors, all equal bit for bit.
        num_words: Words whose vectors were compared, boundaries included.
        differences: Layer -> largest absolute difference of a vector's element.
    """

    folder: Path
    found: str
    num_tensors: int
    num_words: int
    differences: dict[str, float]

    def summary(self) -> str:
        """A few lines for the terminal."""
        lines = [f"Found: {self.found}", f"{self.folder} is this checkpoint:"]
        lines += [f"  {self.num_tensors} original tensors: equal bit for bit"]
        lines += [
            f"  {name + ':':<28}{difference:.1e} from the original equations in NumPy ({self.num_words} words)"
            for name, difference in self.differences.items()
        ]
        return "\n".join(lines)


def verify_folder(
    folder: str | PathLike[str],
    against: str | PathLike[str],
    options: str | PathLike[str] | None = None,
    format: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> VerificationReport:
    """Verifies that a folder is the conversion of an original checkpoint, by the checks of `convert_checkpoint`.

    Configuration and weights must be equal and outputs as close as rounding lets them be; files that are kept as they
    are, such as a vocabulary, must be equal. How the tokenizer splits text is free, and was not part of the original.

    Stored vectors (.npz) cannot be verified against: they do not say with which states, boundaries and padding they
    were computed.

    Args:
        folder: The folder.
        against: The original weights file, or the folder or the archive with it.
        options: The original options file; looked for beside the weights by default.
        format: A format's name, or `"auto"`.
        overrides: Options that were used in the place of the original's, by their dotted paths.
        progress: Whether to show a progress bar on stderr.

    Returns:
        How close the folder is.

    Raises:
        ConversionError: When something differs, or when the folder or the original cannot be read.
    """
    place = Path(folder)
    options_file = None if options is None else Path(options)
    with (
        prepared_source(Path(against), options_file, format, overrides) as prepared,
        quiet_transformers(),
        tqdm(total=len(prepared.steps), disable=not progress, unit="step", bar_format=PROGRESS_FORMAT) as bar,
    ):
        bar.set_description("Comparing")
        model = load_model(place)
        compare_config(model.config, prepared.config)
        compare_tensors(model.state_dict() | load_softmax(place), prepared.checkpoint, prepared.steps, bar)
        compare_kept_files(place, prepared)
        tokenizer, expected = load_tokenizer(place), prepared.known.evaluate(prepared.checkpoint)
        compare_lexicons(tokenizer, prepared.checkpoint)
        return VerificationReport(
            folder=place,
            found=prepared.found,
            num_tensors=len(prepared.steps),
            num_words=expected.num_words,
            differences=compare_outputs(model.eval(), tokenizer, expected),
        )


def compare_kept_files(folder: Path, prepared: PreparedSource) -> None:
    """Checks that the files which a conversion takes over as they are did not change.

    Raises:
        ConversionError: Naming every file that is missing or differs.
    """
    changed = [
        name
        for name, path in prepared.checkpoint.kept_files.items()
        if not (folder / name).is_file() or sha256(folder / name) != sha256(path)
    ]
    if changed:
        raise ConversionError(f"The files in {folder} differ from the original:", changed)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder.

    Raises:
        ConversionError: When it cannot be loaded.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    # What transformers raises on a damaged folder depends on where the damage is.
    except Exception as error:
        raise ConversionError(f"The tokenizer in {folder} cannot be loaded: {error}") from error
