"""What the benchmarks do to their own process ends with each test."""

from __future__ import annotations

import logging
from typing import Iterator

import pytest


@pytest.fixture(autouse=True)
def logger_stays_as_it_is() -> Iterator[None]:
    """A benchmark silences the logger for good."""
    logger = logging.getLogger("multifit")
    level = logger.level
    yield
    logger.setLevel(level)
