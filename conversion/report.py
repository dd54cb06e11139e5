"""What a conversion did, for the person who ran it and for the folder's README."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .catalog import CatalogEntry
from .usage import language_model_usage, usage


@dataclass(frozen=True)
class ConversionReport:
    """The result of `convert_checkpoint`.

    Args:
        output_dir: The folder that was written.
        format: The format of the source.
        found: What the source turned out to be, in words.
        files: Name of a source file -> SHA-256 of its content.
        architecture: Property -> value, in words.
        num_parameters: Converted numbers.
        num_tensors: Original tensors, all compared bit for bit.
        num_words: Words whose vectors were compared, boundaries included.
        differences: Layer -> largest absolute difference of a vector's element.
        notes: What was assumed or left out.
        word_splitter: The tokenizer's way to find words.
        stated: What the source says of its origin: property -> value.
        catalog_entry: What the catalog knows about the checkpoint, when it is one of the catalog.
        predicts_words: Whether there are a softmax and its vocabulary, so that the folder is a language model.
    """

    output_dir: Path
    format: str
    found: str
    files: dict[str, str]
    architecture: dict[str, str]
    num_parameters: int
    num_tensors: int
    num_words: int
    differences: dict[str, float]
    notes: tuple[str, ...]
    word_splitter: str
    stated: Mapping[str, str] = field(default_factory=dict)
    catalog_entry: CatalogEntry | None = None
    predicts_words: bool = False

    @property
    def max_difference(self) -> float:
        """The largest difference of all layers."""
        return max(self.differences.values())

    def summary(self) -> str:
        """A few lines for the terminal."""
        lines = [f"Found: {self.found}", f"Converted to: {self.output_dir}", ""]
        lines += [f"  {name + ':':<28}{value}" for name, value in self.architecture.items()]
        lines += ["", "Checked after loading the folder again; largest differences:"]
        lines += [f"  {self.num_tensors} original tensors: equal bit for bit"]
        lines += [
            f"  {name + ':':<28}{difference:.1e} from the original equations in NumPy ({self.num_words} words)"
            for name, difference in self.differences.items()
        ]
        if self.notes:
            lines += ["", *(f"Note: {note}" for note in self.notes)]
        lines += ["", "To use it:", ""]
        lines += [f"  {line}".rstrip() for line in usage(str(self.output_dir), "Some words").splitlines()]
        if self.predicts_words:
            code = language_model_usage(str(self.output_dir), "Some words")
            lines += ["", "As a language model:", "", *(f"  {line}".rstrip() for line in code.splitlines())]
        return "\n".join(lines)


def describe_architecture(config: Any, num_parameters: int) -> dict[str, str]:
    """An `ElmoConfig` in words.

    Args:
        config: The configuration.
        num_parameters: Numbers in the biLM.
    """
    clips = [
        f"{name} {value:g}"
        for name, value in (("cell", config.cell_clip), ("output", config.projection_clip))
        if value
    ]
    filters = ", ".join(f"{count} of width {width}" for width, count in config.filters)
    properties = {
        "Parameters": f"{num_parameters:,}",
        "Vector of a word": f"{config.hidden_size} (both directions)",
        "biLM": f"{config.num_hidden_layers} layers, cell {config.cell_size}, projection {config.projection_size}",
        "Clipping": ", ".join(clips) or "none",
        "Skip connections": "yes" if config.use_skip_connections else "no",
        "Character filters": f"{filters} ({config.hidden_act})",
        "Highway layers": str(config.num_highway_layers),
        "Projection of the filters": "yes" if config.use_token_projection else "no",
        "Characters a word": f"{config.max_characters_per_token}, of which 2 mark its begin and end",
    }
    if config.word_embedding_size is not None:
        properties["Word vectors"] = f"{config.word_vocab_size:,} words of size {config.word_embedding_size}"
    elif config.word_vocab_size is not None:
        properties["Softmax"] = f"{config.word_vocab_size:,} words"
    return properties
