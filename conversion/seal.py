"""The last line of a generated card, by which an untouched one is told from one that a person has changed."""

import hashlib
import re

PATTERN = re.compile(r"\A(?P<card>.*\n)<!-- hf-elmo card (?P<digest>[0-9a-f]{64}): .*-->\n?\Z", re.DOTALL)


def seal(card: str) -> str:
    """Ends a generated card with a comment that holds the SHA-256 of what stands before it.

    Args:
        card: The text of a README.md.

    Returns:
        The text with the comment as its last line.
    """
    card = card if card.endswith("\n") else f"{card}\n"
    return f"{card}<!-- hf-elmo card {digest(card)}: once anybody edits this file, hf-elmo leaves it alone -->\n"


def is_sealed(content: bytes) -> bool:
    """Whether a README.md is as `seal` left it: generated, and changed by nobody since."""
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return False
    found = PATTERN.match(text)
    return found is not None and digest(found["card"]) == found["digest"]


def digest(card: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(card.encode("utf-8")).hexdigest()
