"""The data of two heads, and the log, for the tests of the estimator."""

import logging
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from multifit import MultiEstimator, TrainerSpec
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """Return 20 samples for the heads "digit" and "size"."""
    return two_head_arrays()


@pytest.fixture
def batches(arrays: dict[str, np.ndarray]) -> list[tuple[np.ndarray, ...]]:
    """Return them in batches of 8, 8 and 4."""
    return in_batches(arrays.values())


@pytest.fixture
def estimator() -> MultiEstimator:
    """Return one for a net of the two heads."""
    return MultiEstimator(two_heads(), two_head_spec(), TrainerSpec(".*", "adam", {"learning_rate": 0.02}))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return ``log()``: the lines that multifit has logged so far."""
    with caplog.at_level(logging.INFO, logger="multifit"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "multifit"]
