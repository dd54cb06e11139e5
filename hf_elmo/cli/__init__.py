"""The command line, `hf-elmo`. Thin: each command calls one function and prints its report.

A module here holds the commands of one purpose; importing it adds them to `app`, in this order in the help.
"""

from .main import app  # isort: skip
from . import checkpoints, demo, embed, info, language_model, training

__all__ = ["app", "checkpoints", "demo", "embed", "info", "language_model", "training"]
