"""Each test restores the logger."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    """What measures silences the logger for good."""
    logger = logging.getLogger("multifit")
    level = logger.level
    yield
    logger.setLevel(level)
