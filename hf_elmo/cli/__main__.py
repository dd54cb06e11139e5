"""`python -m hf_elmo.cli`."""

from . import app

if __name__ == "__main__":  # worker processes import this, too
    app()
