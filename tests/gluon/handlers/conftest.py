"""The log of a fit."""

from __future__ import annotations

import logging
from typing import Any

import pytest


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Any:
    """Return ``log()``: the warnings of multifit so far."""
    with caplog.at_level(logging.WARNING, logger="multifit"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "multifit"]
