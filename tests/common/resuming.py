"""Fits that are cut off and resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.common.compare import assert_unchanged, snapshot
from tests.common.handlers import CutsPower, PowerCut


def assert_resumes_bit_for_bit(run: Callable[..., Any], folder: Path, *steps: int) -> None:
    """Check that a fit which is cut off after any of these batches and resumed is that of one without a stop.

    ``run(folder, *handlers, **options)`` makes a net, fits it with checkpoints in `folder` and returns the
    estimator.
    """
    through = run(folder / "through")
    for step in steps:
        parts = folder / str(step)
        with pytest.raises(PowerCut):
            run(parts, CutsPower(step))
        resumed = run(parts, resume=parts)
        assert_unchanged(resumed.net, snapshot(through.net))
        np.testing.assert_equal(dict(resumed.history), dict(through.history))
