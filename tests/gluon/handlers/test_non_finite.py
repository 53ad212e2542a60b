"""SkipNonFinite and TerminateOnNaN."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, Every, LossSpec, MultiEstimator, TrainerSpec
from multifit.distributed import ALONE
from multifit.gluon.handler_arrays import CHUNK, GluonArrays
from multifit.handlers import SkipNonFinite, TerminateOnNaN
from tests.common.compare import snapshot
from tests.common.grids import ONE, TWO
from tests.common.handlers import CutsPower, PowerCut
from tests.common.nets import mlp, sequential
from tests.common.specs import L2

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip

from .training import On, assert_equal, fit

# ---- gradients that are not finite are skipped -------------------------------------------------------------


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
        body = TrainerSpec("0.*", "sgd", {"learning_rate": 0.1}, every=2)
        return {"body": body, "head": TrainerSpec("1.*", "sgd", {"learning_rate": head})}

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


@pytest.mark.parametrize("bad", [None, 0, CHUNK - 1, CHUNK, CHUNK + 60])
def test_many_gradients_of_several_types(bad: int | None) -> None:
    arrays = [mx.nd.ones((2,), dtype="float16" if i % 5 == 0 else "float32") for i in range(2 * CHUNK)]
    if bad is not None:
        arrays[bad][1] = np.nan
    assert GluonArrays({}, ALONE).all_finite(arrays).asscalar() == (bad is None)


def test_counts_continue_from_a_checkpoint(tmp_path: Path, caplog: Any) -> None:
    def handlers() -> list[Any]:
        return [SkipNonFinite(), poison(np.nan, {0, 1, 3}), CheckpointHandler(tmp_path, Every(1, "batch"))]

    with pytest.raises(PowerCut):
        fit([*handlers(), CutsPower(2)])
    fit(handlers(), resume=tmp_path)
    counts = [line.partition(" had")[0] for line in warnings(caplog) if "updates" in line]
    assert counts == ['3 of 4 updates of the trainer "trainer" in epoch 1']


# ---- or the fit ends before the update ---------------------------------------------------------------------


def batches(bad: int | None = None, row: int = 1) -> list[Any]:
    """Return six batches of six samples, with NaN in one row of a batch's inputs."""
    random = np.random.RandomState(2)
    data = [(random.randn(6, 4).astype("float32"), random.randn(6, 2).astype("float32")) for _ in range(6)]
    if bad is not None:
        data[bad][0][row, 2] = np.nan
    return data


def run(data: Any, *handlers: Any, devices: Any = ONE) -> tuple[MultiEstimator, list[Any]]:
    """Return the estimator, and all parameters on all devices after each batch."""
    after: list[Any] = []
    losses = {
        "size": LossSpec(L2, "y", "label"),
        "other": LossSpec(lambda out, label: (label**2 + out.zeros_like()).mean(axis=1), "y", "label"),
    }
    trace = On(batch_end=lambda estimator: after.append(snapshot(estimator.net)))
    trainers = TrainerSpec(".*", "adam", {"learning_rate": 0.05})
    options = {"net": mlp(2, devices, norm=True), "losses": losses, "trainers": trainers, "data": data}
    return fit([*handlers, trace], devices, epochs=1, **options), after


@pytest.mark.parametrize(("devices", "row"), [(ONE, 1), (TWO, 5)], ids=str)
def test_it_stops_before_the_update(devices: Any, row: int, caplog: Any) -> None:
    estimator, after = run(batches(3, row), TerminateOnNaN(), devices=devices)
    assert estimator.state.stop_reason == "size is NaN (epoch 1, batch 4)"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "epoch 1, batch 4: size is NaN; the parameters are those from before this batch"
    ]
    finite, unchanged = run(batches(), TerminateOnNaN(), devices=devices)
    plain = run(batches(), devices=devices)[1]
    np.testing.assert_equal(unchanged, plain)
    assert finite.state.stop_reason == "1 epoch" and len(after) == 4
    np.testing.assert_equal([after[2], after[3]], [plain[2], plain[2]])


@pytest.mark.parametrize("bad", [2, 3])  # what the third batch breaks is seen in the fourth
def test_every_few_batches_are_checked_and_restored_as_a_whole(bad: int) -> None:
    own, its = run(batches(bad), TerminateOnNaN(2))
    wrapped, theirs = run(batches(bad), Every(2, "batch", TerminateOnNaN()))
    assert "(epoch 1, batch 4)" in own.state.stop_reason
    assert wrapped.state.stop_reason == own.state.stop_reason
    np.testing.assert_equal(theirs, its)


def test_all_losses_are_named_as_nan_or_infinite() -> None:
    data = batches()
    data[1][1][0, 0] = np.inf
    reason = "size is infinite, other is infinite (epoch 1, batch 2)"
    assert run(data, TerminateOnNaN())[0].state.stop_reason == reason


def test_gradients_are_checked_behind_finite_losses() -> None:
    """A relu hides NaN in the input from the loss, and not from the weights."""
    net = sequential(nn.Dense(5, "relu", in_units=4), nn.Dense(2, in_units=5))
    net.initialize(ctx=TWO)
    losses = {"l": LossSpec(L2, "y", "label")}
    estimator = fit(TerminateOnNaN(), TWO, net=net, losses=losses, data=batches(3, 5))
    assert estimator.state.stop_reason == "the gradient of 0.weight is NaN (epoch 1, batch 4)"
    assert all(np.isfinite(array).all() for array in snapshot(net).values())
