"""The benchmarks run from the top of the repository; each test restores the logger."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    """A benchmark silences the logger for good."""
    logger = logging.getLogger("multifit")
    level = logger.level
    yield
    logger.setLevel(level)
