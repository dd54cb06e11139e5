"""From a path that a person names to everything that the conversion needs, before any tensor is read."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_elmo.configuration_elmo import ElmoConfig

from .archives import unpacked
from .checkpoint import SourceCheckpoint
from .configure import complete_options
from .formats import CheckpointFormat, choose_format, find_format
from .mapping import CHARACTER_TABLE, Layout, Step, expand, find_tensor, match, used_rules
from .options import CHARACTERS_WITHOUT_PADDING


@dataclass(frozen=True)
class PreparedSource:
    """A checkpoint whose tensors fit together, for as long as its files are there.

    Args:
        given: What the person named: a file, a folder or an archive.
        is_archive: Whether it is an archive.
        known: The format.
        checkpoint: What the reader returned, with complete options.
        config: The configuration of the converted model.
        steps: What becomes of each tensor.
        notes: What was assumed or left out.
    """

    given: Path
    is_archive: bool
    known: CheckpointFormat
    checkpoint: SourceCheckpoint
    config: ElmoConfig
    steps: list[Step]
    notes: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that was read, the archive first."""
        return ((self.given,) if self.is_archive else ()) + self.checkpoint.files

    @property
    def found(self) -> str:
        """What the source turned out to be."""
        names = " + ".join(path.name for path in self.checkpoint.files)
        place = f" in the archive {self.given.name}" if self.is_archive else ""
        return f"{names}{place}; format {self.checkpoint.format} ({self.known.title})"


@contextlib.contextmanager
def prepared_source(
    source: Path, options: Path | None = None, format: str = "auto", overrides: Mapping[str, Any] | None = None
) -> Iterator[PreparedSource]:
    """Finds, reads and checks a checkpoint; an archive is unpacked for as long as the block lasts.

    Args:
        source: The original weights file, or the folder or the archive with it.
        options: The original options file; looked for beside the weights by default.
        format: A format's name, or `"auto"`.
        overrides: Options in the place of the original's, by their dotted paths.

    Raises:
        ConversionError: When the source cannot be converted.
    """
    with unpacked(source, lambda folder: find_format(folder, format) is not None) as files:
        known = choose_format(files, format)
        checkpoint = complete_options(known.read(files, options), overrides or {})
        config, assumed = known.configure(checkpoint, known.layout)
        steps = plan(checkpoint, known.layout, config)
        yield PreparedSource(
            given=source,
            is_archive=files != source,
            known=known,
            checkpoint=checkpoint,
            config=config,
            steps=steps,
            notes=(*checkpoint.notes, *assumed, *describe_precision(checkpoint, steps)),
        )


def describe_precision(checkpoint: SourceCheckpoint, steps: Sequence[Step]) -> tuple[str, ...]:
    """A note when weights are not stored in single precision."""
    others = sorted({checkpoint.tensors[step.source].dtype for step in steps} - {"float32"})
    return (f"Weights stored as {' and '.join(others)} were converted to float32.",) if others else ()


def plan(checkpoint: SourceCheckpoint, layout: Layout, config: ElmoConfig) -> list[Step]:
    """The steps that convert a checkpoint, checked against its tensors before any of them is read.

    Raises:
        ConversionError: With every tensor that is unknown, missing or of another shape.
    """
    table = find_tensor(layout, checkpoint.tensors, CHARACTER_TABLE)
    with_padding = table is not None and table.shape[:1] == (CHARACTERS_WITHOUT_PADDING + 1,)
    steps = expand(used_rules(layout, checkpoint.tensors), config, CHARACTERS_WITHOUT_PADDING + with_padding)
    options_file = f" and {checkpoint.options_file.name}" if checkpoint.options_file else ""
    where = f"{checkpoint.weights_file.name}{options_file}"
    match(steps, checkpoint.tensors, layout.ignored, where)
    return steps
