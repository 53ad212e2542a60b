"""What runs nightly runs from the top of the repository; each test restores the logger."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    """What measures silences the logger for good."""
    logger = logging.getLogger("multifit")
    level = logger.level
    yield
    logger.setLevel(level)
