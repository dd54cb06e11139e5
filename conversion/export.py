"""From a folder of transformers back to AllenNLP's and bilm-tf's files: options.json and weights in HDF5."""

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoConfig

from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.tokenization_elmo import ElmoTokenizer

from . import read_allennlp
from .checkpoint import FloatArray
from .convert import (
    LANGUAGE_MODEL,
    PROGRESS_FORMAT,
    check_targets,
    count_parameters,
    quiet_transformers,
    same_bits,
    writing_errors,
)
from .errors import ConversionError
from .mapping import ALLENNLP, MIX_PREFIX, Step, expand
from .operations import OPERATIONS
from .options import write_options
from .staging import check_output, staged_folder

OPTIONS_FILE = "options.json"
WEIGHTS_FILE = "weights.hdf5"
LARGEST_ROUNDING = 2.0**-24
"""How far a small forget bias can be from a sum of 1 and a float32, the only biases that the format can say."""


@dataclass(frozen=True)
class ExportReport:
    """The result of `export_checkpoint`.

    Args:
        output_dir: The folder that was written.
        num_parameters: Exported numbers.
        num_tensors: Tensors in the HDF5 file.
        rounded: Forget biases that the format cannot say exactly; they are off by at most 6e-8.
        notes: What the format has no place for.
    """

    output_dir: Path
    num_parameters: int
    num_tensors: int
    rounded: int
    notes: tuple[str, ...]

    def summary(self) -> str:
        """A few lines for the terminal."""
        exact = "equal bit for bit"
        if self.rounded:
            exact += f", except {self.rounded} forget biases that are rounded by at most 6e-8"
        lines = [
            f"Exported {self.num_parameters:,} numbers in {self.num_tensors} tensors to {self.output_dir}",
            f"  {OPTIONS_FILE}, {WEIGHTS_FILE} (the layout of AllenNLP and bilm-tf)",
            f"  Read again and converted back: {exact}",
        ]
        return "\n".join(lines + [f"Note: {note}" for note in self.notes])


def export_checkpoint(
    folder: str | PathLike[str], output_dir: str | PathLike[str], progress: bool = False
) -> ExportReport:
    """Writes a model as options.json and weights.hdf5, for AllenNLP and bilm-tf.

    Args:
        folder: A folder with an ELMo model, with or without a head; only its biLM is exported.
        output_dir: The folder to write; it must not exist or be empty.
        progress: Whether to show a progress bar on stderr.

    Returns:
        What was exported.

    Raises:
        ConversionError: When the folder holds no complete ELMo model, or one that the format cannot say, or when the
            output cannot be written; nothing is left then.
    """
    source, output = Path(folder), Path(output_dir)
    check_output(output)
    lexicon = ElmoTokenizer.vocab_files_names["character_lexicon"]
    if (source / lexicon).is_file():
        raise ConversionError(
            f"The model in {source} cannot be exported: its characters are those of a lexicon ({lexicon}), and "
            "AllenNLP's and bilm-tf's format has a place for bytes alone."
        )
    with quiet_transformers():
        model = load_model(source)
    options = write_options(model.config)
    steps = expand(ALLENNLP.rules, model.config)
    parameters = model.state_dict()
    check_targets(steps, parameters)
    check_values(source, parameters)
    with (
        staged_folder(output) as staging,
        writing_errors(output),
        tqdm(total=2 * len(steps), disable=not progress, unit="step", bar_format=PROGRESS_FORMAT) as bar,
    ):
        bar.set_description("Writing")
        (staging / OPTIONS_FILE).write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")
        with h5py.File(staging / WEIGHTS_FILE, "w") as file:
            for step in steps:
                values = tuple(parameters[target].numpy() for target in step.targets)
                file.create_dataset(step.source, data=OPERATIONS[step.operation].export(values), dtype="float32")
                bar.update()
        bar.set_description("Comparing")
        rounded = compare_export(staging, steps, parameters, bar)
    return ExportReport(
        output_dir=output,
        num_parameters=count_parameters(model),
        num_tensors=len(steps),
        rounded=rounded,
        notes=describe_losses(model.config),
    )


def load_model(folder: Path) -> ElmoModel:
    """The biLM of a folder in float32.

    Raises:
        ConversionError: When the folder holds no ELMo model or an incomplete one.
    """
    if not (folder / "config.json").is_file():
        raise ConversionError(f"{folder} is no folder of a transformers model: there is no config.json.")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if config.model_type != "elmo":
            raise ConversionError(f"The model in {folder} is no ELMo but {config.model_type!r}.")
        model, report = ElmoModel.from_pretrained(folder, config=config, dtype=torch.float32, output_loading_info=True)
    except ConversionError:
        raise
    except Exception as error:
        raise ConversionError(f"The model in {folder} cannot be loaded: {error}") from error
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(MIX_PREFIX))
    if missing:
        raise ConversionError(f"The weights in {folder} are incomplete:", [f"{name} is missing" for name in missing])
    return model


def check_values(folder: Path, parameters: dict[str, torch.Tensor]) -> None:
    """Checks that the original implementations can use the weights.

    Raises:
        ConversionError: Naming every parameter that they cannot.
    """
    problems = [f"{name} holds NaN or infinity" for name, value in parameters.items() if not value.isfinite().all()]
    table = "embeddings.character_embeddings.weight"
    if parameters[table][0].any():
        problems.append(f"{table} has a row 0 that is not zero, and the format has no place for it")
    if problems:
        raise ConversionError(f"The weights in {folder} cannot be exported:", problems)


def compare_export(staging: Path, steps: list[Step], parameters: dict[str, torch.Tensor], bar: Any) -> int:
    """Reads the written file and converts it back.

    Returns:
        How many forget biases were rounded.

    Raises:
        ConversionError: When anything else differs.
    """
    tensors = read_allennlp.index_tensors(staging / WEIGHTS_FILE)
    rounded = 0
    changed = []
    for step in steps:
        arrays = OPERATIONS[step.operation].convert(tensors[step.source].load())
        for target, back in zip(step.targets, arrays, strict=True):
            value = parameters[target].numpy()
            if step.operation == "gate_bias" and is_rounded(value, back):
                rounded += int((value != back).sum())
            elif not same_bits(value, np.asarray(back)):
                changed.append(f"{target} is not what {step.source} says")
        bar.update()
    if changed:
        raise ConversionError("The exported weights differ from the model's:", changed)
    return rounded


def is_rounded(value: FloatArray, back: FloatArray) -> bool:
    """Whether two biases differ by no more than the format's own rounding."""
    return bool((abs(value - back) <= np.maximum(LARGEST_ROUNDING, np.spacing(abs(value)))).all())


def describe_losses(config: Any) -> tuple[str, ...]:
    """What a model has that the format has no place for."""
    notes = ["the weights of the mix of the layers are not part of this format"]
    if LANGUAGE_MODEL in (config.architectures or []):
        notes.append("the softmax of the language model and its vocabulary are not part of this format")
    elif any("For" in name for name in config.architectures or []):
        notes.append("the head is not part of this format")
    if not config.use_skip_connections:
        notes.append("AllenNLP refuses models without skip connections; bilm-tf reads them")
    if not config.use_token_projection:
        notes.append("AllenNLP needs a projection of the character filters; bilm-tf reads models without it")
    elif config.num_filters == config.projection_size:
        notes.append("bilm-tf leaves out a projection between equal sizes; AllenNLP uses it")
    return tuple(notes)
