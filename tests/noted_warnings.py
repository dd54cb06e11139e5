"""What transformers warns of, for tests to look at."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def noted_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Lets `caplog` see what transformers warns of, once, whether or not another test has let it propagate."""
    logger = logging.getLogger("transformers")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, "transformers"):
            yield
    finally:
        logger.removeHandler(caplog.handler)
        logger.propagate = propagate
