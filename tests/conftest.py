"""What all tests share: one thread, a fixed seed, multifit before mxnet (Python 3.12 needs that)."""

from __future__ import annotations

import os
from typing import Callable

# Two test processes with OpenMP's default of one thread per core each would slow each other many times over.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# matplotlib must not look for a screen.
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest  # noqa: E402

from multifit.gluon.seed import seed_everything  # noqa: E402
from multifit.threads import setting  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state, so that it says the same alone and among others."""
    seed_everything(0)


@pytest.fixture(autouse=True)
def threads_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fit says about threads depends on what else the machine does: here it has said it already."""
    monkeypatch.setattr(setting(), "_told", True)


@pytest.fixture
def with_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``with_threads(2)``: MXNet is taken to have so many threads from here on."""
    return lambda count: monkeypatch.setattr(setting(), "_threads", (count, True))
