"""A fit tells where OpenMP's threads cost speed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from multifit import MultiEstimator
from multifit.estimator import opening
from multifit.threads import Machine, Setting

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip


class Busy:
    """Neighbours that keep so many cores busy."""

    def __init__(self, cores: float) -> None:
        self.cores = cores

    def busy(self) -> float:
        return self.cores


@pytest.mark.parametrize(("threads", "lines"), [("8", 1), ("1", 0)])
def test_once_and_only_where_it_costs(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, threads: str, lines: int
) -> None:
    setting = Setting({"OMP_NUM_THREADS": threads}, Machine(2, 2), Busy(0.0))  # type: ignore[arg-type]
    monkeypatch.setattr(opening, "setting", lambda: setting)
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(mx.nd.ones((4, 2)), mx.nd.ones((4, 1))), 2)
    estimator = MultiEstimator(net, gluon.loss.L2Loss())
    for _ in range(2):
        estimator.fit(loader, epochs=1)
    told = [text for text in caplog.messages if "OMP_NUM_THREADS" in text]
    assert len(told) == lines and all("OMP_NUM_THREADS=2" in text for text in told)
