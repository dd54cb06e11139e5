"""`python -m hf_elmo.cli`."""

from . import app

app()
