"""ELMo for the Hugging Face ecosystem."""

from ._version import __version__

__all__ = ["__version__"]
