"""SkipNonFinite."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, Every, TrainerSpec
from multifit.distributed import ALONE
from multifit.gluon.handler_arrays import CHUNK, GluonArrays
from multifit.handlers import SkipNonFinite
from tests.common.grids import ONE, TWO
from tests.common.handlers import CutsPower, PowerCut

import mxnet as mx  # isort: skip
from mxnet.gluon import nn

from .training import On, assert_equal, fit


def poison(value: float, steps: Any, trainer: str = "trainer") -> Any:
    """Return a handler that puts a value into one gradient of one trainer, in the batches named."""

    def change_gradients(estimator: Any) -> None:
        if estimator.state.step in steps:
            *_, last = estimator.gradients()[trainer].values()
            for gradient in last:
                gradient[0] = value

    return On(change_gradients=change_gradients)


def warnings(caplog: Any) -> list[str]:
    return [r.getMessage() for r in caplog.records if (r.name, r.levelname) == ("multifit", "WARNING")]


def hold(*steps: int) -> Any:
    """Return a handler that holds the update of the batches named."""
    return On(hold_update=lambda estimator: estimator.state.step in steps)


@pytest.mark.parametrize(("devices", "value"), [(ONE, np.nan), (TWO, -np.inf)], ids=str)
def test_a_batch_with_non_finite_gradients_updates_nothing(caplog: Any, devices: Any, value: float) -> None:
    large = poison(1e18, {7})  # which is finite
    ours = fit([SkipNonFinite(), poison(value, {1, 2, 6}), large], devices)
    assert_equal(ours, fit([hold(1, 2, 6), large], devices))
    end = "had gradients that were not finite and were set to 0"
    assert warnings(caplog) == [
        f'2 of 4 updates of the trainer "trainer" in epoch 1 {end}',
        f'1 of 4 updates of the trainer "trainer" in epoch 2 {end}',
    ]


def test_trainers_are_checked_and_counted_one_by_one(caplog: Any) -> None:
    def trainers(head: float) -> Any:
        sgd = {"learning_rate": 0.1}
        return {
            "body": TrainerSpec("0.*", "sgd", sgd, every=2),
            "head": TrainerSpec("1.*", "sgd", {"learning_rate": head}),
        }

    handlers = [SkipNonFinite(), poison(np.nan, set(range(8)), "head")]
    assert_equal(fit(handlers, trainers=trainers(0.1)), fit(trainers=trainers(0.0)))
    fit([SkipNonFinite(), poison(np.nan, {1}, "body")], trainers=trainers(0.1), epochs=1)
    counts = [line.split(" had")[0] for line in warnings(caplog)]
    heads = [f'4 of 4 updates of the trainer "head" in epoch {epoch}' for epoch in (1, 2)]
    assert counts == [*heads, '1 of 2 updates of the trainer "body" in epoch 1']


def test_sparse_gradients() -> None:
    def run(handlers: Any) -> Any:
        mx.random.seed(1)
        net = nn.Sequential()
        net.add(nn.Embedding(5, 4, sparse_grad=True), nn.Dense(3, in_units=4))
        net.initialize()
        return fit(handlers, net=net, data=[(mx.nd.array([[0], [1]]), mx.nd.array([2, 0]))] * 3, epochs=1)

    assert_equal(run([SkipNonFinite(), poison(np.nan, {1})]), run(hold(1)))


def test_many_gradients_of_several_types() -> None:
    functions = GluonArrays({}, ALONE)
    for bad in (None, 0, CHUNK - 1, CHUNK, CHUNK + 60):
        arrays = [mx.nd.ones((2,), dtype="float16" if i % 5 == 0 else "float32") for i in range(2 * CHUNK)]
        if bad is not None:
            arrays[bad][1] = np.nan
        assert functions.all_finite(arrays).asscalar() == (bad is None), bad


def test_counts_continue_from_a_checkpoint(tmp_path: Path, caplog: Any) -> None:
    def handlers() -> list[Any]:
        return [SkipNonFinite(), poison(np.nan, {0, 1, 3}), CheckpointHandler(tmp_path, Every(1, "batch"))]

    with pytest.raises(PowerCut):
        fit([*handlers(), CutsPower(2)])
    fit(handlers(), resume=tmp_path)
    counts = [line.partition(" had")[0] for line in warnings(caplog) if "updates" in line]
    assert counts == ['3 of 4 updates of the trainer "trainer" in epoch 1']
