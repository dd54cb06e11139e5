"""What goes wrong in a conversion, said in one sentence that names the file or the field."""

from collections.abc import Sequence


class ConversionError(ValueError):
    """A checkpoint cannot be converted or exported as it stands.

    Args:
        summary: One sentence that names the file or the field.
        problems: Every single finding, where there can be several; all of them are part of the message.
    """

    def __init__(self, summary: str, problems: Sequence[str] = ()) -> None:
        self.summary = summary
        self.problems = tuple(problems)
        super().__init__("\n".join([summary, *(f"  - {problem}" for problem in self.problems)]))
