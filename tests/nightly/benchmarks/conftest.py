"""The benchmarks run from the top of the repository; what they do to their process ends with each test."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))


@pytest.fixture(autouse=True)
def logger_stays_as_it_is() -> Iterator[None]:
    """A benchmark silences the logger for good."""
    logger = logging.getLogger("multifit")
    level = logger.level
    yield
    logger.setLevel(level)
