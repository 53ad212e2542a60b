"""The number of threads: what MXNet uses, the command's default, and the warning of a fit."""

import logging
import os

import numpy as np
import psutil
import pytest

from multifit import MultiEstimator
from multifit.utils import threads


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, max(1, (os.cpu_count() or 1) // 2)),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3,2", "MXNET_OMP_MAX_THREADS": "5"}, 3),
        ({"OMP_NUM_THREADS": "many", "MXNET_OMP_MAX_THREADS": "5"}, 5),
        ({"OMP_NUM_THREADS": "0"}, max(1, (os.cpu_count() or 1) // 2)),
    ],
)
def test_the_number_that_mxnet_uses(monkeypatch, environment, expected):
    """It is read once."""
    before = threads.omp_threads()
    monkeypatch.setattr(os, "environ", environment)
    assert threads.omp_threads.__wrapped__() == expected and threads.omp_threads() == before


@pytest.mark.parametrize(
    ("affinity", "physical", "expected"),
    [([0, 1, 2, 3], 2, 2), ([5], 4, 1), ([0, 1], None, 2), (None, 4, 4), (None, None, 8)],
)
def test_usable_cores(monkeypatch, affinity, physical, expected):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else physical)
    if affinity is None:  # as on macOS
        monkeypatch.delattr(psutil.Process, "cpu_affinity", raising=False)
    else:
        monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: affinity, raising=False)
    assert threads.usable_cores() == expected


@pytest.mark.parametrize(("count", "workers", "better"), [(4, 1, 1), (2, 0, None)])
def test_a_fit_warns_of_more_threads_and_workers_than_cores(
    with_threads, monkeypatch, caplog, count, workers, better
):
    gluon = pytest.importorskip("mxnet.gluon")
    with_threads(count)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    point = np.zeros((2, 1), "float32")
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(point, point), 2, num_workers=workers)
    estimator = MultiEstimator(gluon.nn.Dense(1), gluon.loss.L2Loss())
    for _ in range(2):
        estimator.fit(loader, epochs=1)
    warnings = [text for text in caplog.messages if "OMP_NUM_THREADS" in text]
    assert len(warnings) == (better is not None)
    for text in warnings:
        assert f"{count} threads and {workers} loader workers share 2 cores" in text
        assert f"OMP_NUM_THREADS={better} " in text
