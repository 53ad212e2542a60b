"""ExecutedSplit: what autograd would compute of a cut graph, without it, for small batches."""

from typing import Any

import numpy as np
import pytest

from multifit import TrainerSpec
from multifit.balance import MGDA, UPGrad
from multifit.gluon.execution import bound_executor
from multifit.gluon.execution.split_graph import ExecutedSplit
from tests.common.compare import assert_unchanged, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import TWO
from tests.common.shared_nets import three_tasks
from tests.gluon.balance.test_gradients import NETS, fitted

KINDS = {**NETS, "a weight of 0": (NETS["skips"][0], lambda: three_tasks(parity=0.0))}
METHODS = {
    "UPGrad": lambda: UPGrad(),
    "MGDA, every second batch": lambda: MGDA(every=2),
    "tasks of several losses": lambda: UPGrad(tasks={"both": ["digit", "parity"]}),
}
BATCHES = digit_batches([6, 6, 6, 6, 4, 6])
TRAINERS: dict[str, dict[str, Any]] = {
    "each batch": {},
    "each second batch": {"every": 2, "accumulate": True},
    "clipped": {"clip_norm": 0.1},
}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[ExecutedSplit]:
    """Return a list to which every batch adds what ran it."""
    runs, forward = list[ExecutedSplit](), ExecutedSplit.forward
    monkeypatch.setattr(ExecutedSplit, "forward", lambda self, *a: (runs.append(self), forward(self, *a))[1])
    return runs


@pytest.mark.parametrize(
    "name,method,trainer,devices",
    [
        *((name, "UPGrad", "each batch", None) for name in KINDS if name not in ("two heads", "topk")),
        ("two heads", "UPGrad", "each second batch", TWO),
        ("two heads", "UPGrad", "clipped", None),
        ("topk", "MGDA, every second batch", "each batch", TWO),
        ("skips", "tasks of several losses", "each batch", TWO),
    ],
)
def test_a_fit_is_the_same_bit_for_bit(
    name: str,
    method: str,
    trainer: str,
    devices: Any,
    monkeypatch: pytest.MonkeyPatch,
    runs: list[ExecutedSplit],
) -> None:
    make, spec = KINDS[name]
    nets, figures = twins(make, BATCHES[0][0]), []
    for net, most in zip(nets, (bound_executor.MAX_BYTES, 0)):
        monkeypatch.setattr(bound_executor, "MAX_BYTES", most)
        trainers = TrainerSpec(".*", "adam", {"learning_rate": 0.02}, **TRAINERS[trainer])
        options: dict[str, Any] = {"trainers": trainers, "batches": BATCHES, "spec": spec()}
        estimator = fitted(net, METHODS[method](), 2, devices, **options)
        figures.append(estimator.figures("train"))
        if most:
            assert bool(runs) == (name != "running statistics")
            assert len(set(runs)) <= (1 if devices is None else 2)
            runs.clear()
    assert not runs
    np.testing.assert_equal(figures[0], figures[1])  # a task of weight 0 has figures that are NaN
    assert_unchanged(nets[1], snapshot(nets[0]))
