"""Fits that are cut off and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

from multifit import HandlerError
from tests.common.compare import assert_unchanged, snapshot
from tests.common.handlers import CutsPower


def assert_resumes_bit_for_bit(run: Callable[..., Any], folder: Path, step: int) -> None:
    """Check that a fit which is cut off after a batch and resumed is that of an uninterrupted run.

    ``run(folder, *handlers, **options)`` makes a net, fits it with checkpoints in `folder` and returns the
    estimator.
    """
    through = run(folder / "through")
    with pytest.raises(HandlerError):
        run(folder / "parts", CutsPower(step))
    resumed = run(folder / "parts", resume=folder / "parts")
    assert_unchanged(resumed.net, snapshot(through.net))
    assert dict(resumed.history) == dict(through.history)
