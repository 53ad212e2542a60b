"""Handlers that Gluon's Estimator calls between backward and update change what the update uses."""

from __future__ import annotations

import logging
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest

from multifit import (
    Every,
    HandlerError,
    LossSpec,
    MultiEstimator,
    TaskSpec,
    TerminateOnNaN,
    TrainerSpec,
)
from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot, twins
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import ONE, TWO, pairwise
from tests.common.nets import mlp, two_heads
from tests.common.specs import CE, L2, one_loss_spec, two_head_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon.contrib.estimator import BatchEnd, EpochEnd, Estimator  # isort: skip

X, Y = mx.nd.array(np.random.RandomState(1).randn(22, 4)), mx.nd.array(np.random.RandomState(2).randn(22, 2))
SGD = {"learning_rate": 0.1, "momentum": 0.9}


@cache
def loader() -> Any:
    """Return batches of 8, 8 and 6 samples: a mean is divided by different numbers."""
    return gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 8)


def gradients(net: Any) -> list[Any]:
    return [p.grad(context) for p in net.collect_params().values() for context in p.list_ctx()]


class Early(BatchEnd):
    """Called before Gluon's update, or just so."""

    priority = -3000


class Zero(Early):
    def batch_end(self, estimator: Any, **arguments: Any) -> None:
        for gradient in gradients(estimator.net):
            gradient[:] = 0


class ZeroFirstLayer(Early):
    priority = -2000  # Gluon's update handler is called after those of the same priority

    def batch_end(self, estimator: Any, **arguments: Any) -> None:
        for context in estimator.context:
            estimator.net[0].weight.grad(context)[:] = 0


class ZeroOneDevice(Early):
    """Zeroes what the first device computed; Gluon adds the other's up afterwards."""

    def batch_end(self, estimator: Any, **arguments: Any) -> None:
        estimator.net[0].weight.grad(estimator.context[0])[:] = 0


class Clip(Early):
    """Clips the gradients of sums, each device's its own, with another norm for every batch."""

    def batch_end(self, estimator: Any, batch: Any, pred: Any, label: Any, loss: Any) -> None:
        for context, losses in zip(estimator.context, loss):
            arrays = [p.grad(context) for p in estimator.net.collect_params().values()]
            gluon.utils.clip_global_norm(arrays, float(losses.mean().asscalar()))


class Noise(Early):
    """Uses the batch, the predictions and the labels."""

    def batch_end(self, estimator: Any, *args: Any, **arguments: Any) -> None:
        pull = sum(float((p - y).sum().asscalar()) for p, y in zip(arguments["pred"], arguments["label"]))
        for gradient in gradients(estimator.net):
            gradient += pull * len(arguments["batch"][0]) / 100


class Stops(Early, EpochEnd):
    """Stops after two batches, as Gluon's handlers do; the second one's update is still made."""

    count = 0

    def batch_end(self, estimator: Any, *args: Any, **arguments: Any) -> bool:
        self.count += 1
        return self.count == 2

    def epoch_end(self, estimator: Any, *args: Any, **arguments: Any) -> bool:
        return self.count == 2


HANDLERS = {kind.__name__: kind for kind in (Zero, ZeroFirstLayer, ZeroOneDevice, Clip, Noise, Stops)}


def estimator_of(net: Any, contexts: Any = ONE, trainers: Any = None) -> MultiEstimator:
    return MultiEstimator(net, one_loss_spec(L2), trainers or TrainerSpec(".*", "sgd", SGD), contexts)


def gluons(handler: Any, contexts: Any) -> Any:
    """Return a net that Gluon's Estimator has trained."""
    net = mlp(2, contexts)
    trainer = gluon.Trainer(net.collect_params(), "sgd", SGD)
    theirs = Estimator(net, L2, mx.metric.MSE(), trainer=trainer, context=contexts)
    theirs.logger.handlers = [logging.NullHandler()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(loader(), epochs=2, event_handlers=[handler])
    return net


@pairwise("handler", HANDLERS)
def test_they_change_the_update_as_in_gluons_estimator(handler: str, devices: list, hybrid: bool) -> None:
    net, kind = mlp(2, devices, hybrid), HANDLERS[handler]
    before = snapshot(net)
    estimator_of(net, devices).fit(loader(), epochs=2, event_handlers=kind())
    assert_same_parameters(net, gluons(kind(), devices))
    if kind is Zero:
        assert_unchanged(net, before)
    for parameter in net.collect_params().values():  # the devices do not drift apart
        first, *others = [data.asnumpy() for data in parameter.list_data()]
        assert all((first == other).all() for other in others)


def test_a_trainer_of_the_users_own() -> None:
    net = mlp(2, TWO)
    trainer = gluon.Trainer(net.collect_params(), "sgd", SGD)
    estimator_of(net, TWO, trainer).fit(loader(), epochs=2, event_handlers=Clip())
    assert_same_parameters(net, gluons(Clip(), TWO))


class Spy(Early):
    """Counts its calls, and looks at what it can see."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def batch_end(self, estimator: Any, batch: Any, pred: Any, label: Any, loss: Any) -> None:
        state = estimator.state
        weights = estimator.net[0].weight.data(estimator.context[0]).asnumpy().copy()
        norm = float(sum((g**2).sum().asscalar() for g in gradients(estimator.net))) ** 0.5
        self.seen.append((state.step, state.samples, len(batch[0]), weights, norm))


def test_they_are_called_once_a_batch_with_the_counters_of_any_batch_end() -> None:
    spy, late = Spy(), []

    class Late:
        def batch_end(self, estimator: Any) -> None:
            late.append((estimator.state.step, estimator.state.samples))

    estimator = estimator_of(mlp(2))
    estimator.fit(loader(), epochs=2, event_handlers=[spy, Late()])
    assert [each[:3] for each in spy.seen] == [
        (1, 8, 8), (2, 16, 8), (3, 22, 6), (4, 30, 8), (5, 38, 8), (6, 44, 6)
    ]  # fmt: skip
    assert [each[:2] for each in spy.seen] == late
    assert (estimator.state.step, estimator.state.samples) == (6, 44)


def test_every_calls_them_every_few_batches() -> None:
    spy = Spy()
    estimator_of(mlp(2)).fit(loader(), epochs=2, event_handlers=Every(2, "batch", spy))
    assert [each[0] for each in spy.seen] == [2, 4, 6]


def test_clipping_and_change_gradients_come_after_them_on_the_scale_of_the_mean() -> None:
    norms = []

    class Looks:
        def change_gradients(self, estimator: Any) -> None:
            (arrays,) = estimator.gradients().values()
            norms.append(float(sum((each[0] ** 2).sum().asscalar() for each in arrays.values())) ** 0.5)

    spy, nets = Spy(), []
    for handlers in ([spy, Looks()], []):
        nets.append(mlp(2))
        clipped = TrainerSpec(".*", "sgd", SGD, clip_norm=0.05)
        estimator_of(nets[-1], trainers=clipped).fit(loader(), epochs=2, event_handlers=handlers)
    assert norms == pytest.approx([each[-1] / each[2] for each in spy.seen], rel=1e-5)
    assert_same_parameters(*nets)


def test_several_trainers_and_losses() -> None:
    """A gradient set to 0 does not reach its trainer; the others are trained as if nothing had happened."""

    class FreezeBody(Early):
        def batch_end(self, estimator: Any, pred: Any, loss: Any, **_: Any) -> None:
            assert set(pred) == set(loss) == {"digit", "size"}
            for name, parameter in estimator.parameters.items():
                if name.startswith("body"):
                    parameter.grad()[:] = 0

    trainers = {"body": TrainerSpec("body.*", "sgd", SGD), "heads": TrainerSpec("(digit|size).*", "adam")}
    arrays = two_head_arrays()
    batches, nets = in_batches(arrays.values()), twins(two_heads, next(iter(arrays.values())))
    before = snapshot(nets[0])
    MultiEstimator(nets[0], two_head_spec(), trainers).fit(batches, epochs=2, event_handlers=FreezeBody())
    MultiEstimator(nets[1], two_head_spec(), trainers["heads"], frozen=["body.*"]).fit(batches, epochs=2)
    assert_same_parameters(*nets)
    moved = {name for name, value in snapshot(nets[0]).items() if (value != before[name]).any()}
    assert {name.split(".")[0] for name in moved} == {"digit", "size"}


def test_sparse_gradients_are_scaled_too() -> None:
    class Looks(Early):
        def batch_end(self, estimator: Any, **_: Any) -> None:
            stypes.append(estimator.net[0].weight.grad().stype)

    stypes: list[str] = []
    weights = []
    for handlers in ([Looks()], []):
        mx.random.seed(1)
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Embedding(5, 3, sparse_grad=True), gluon.nn.Dense(2))
        net.initialize()
        net(mx.nd.zeros((1, 1)))
        data = [(np.array([[1], [2], [1]], "float32"), np.array([0, 1, 0], "float32"))]
        MultiEstimator(net, CE, TrainerSpec(".*", "sgd", SGD)).fit(data, epochs=2, event_handlers=handlers)
        weights.append(net[0].weight.data().asnumpy())
    np.testing.assert_allclose(*weights, rtol=1e-5, atol=1e-7)
    assert stypes == ["row_sparse"] * 2


def test_updates_that_are_held_back_are_an_error() -> None:
    net = mlp(2)
    before = snapshot(net)
    for run in ("fit", "profile"):
        arguments = {"epochs": 1} if run == "fit" else {"batches": 2}
        with pytest.raises(ValueError, match="Zero, Clip: .* TerminateOnNaN holds .* change_gradients in"):
            handlers = [TerminateOnNaN(), Zero(), Clip()]
            getattr(estimator_of(net), run)(loader(), event_handlers=handlers, **arguments)
    assert_unchanged(net, before)


class Doubled(MultiEstimator):
    """Trains on another batch than the loader's."""

    def fit_batch(self, batch: Any) -> Any:
        return super().fit_batch([array * 2 for array in batch])


class Own(MultiEstimator):
    """Trains by itself."""

    def fit_batch(self, batch: Any) -> Any:
        return self.evaluate_batch(batch)


def test_an_overridden_step_calls_them_or_is_an_error() -> None:
    class SeesTheLoaders(Early):
        def batch_end(self, estimator: Any, batch: Any, **_: Any) -> None:
            seen.append(batch)

    seen: list[Any] = []
    data = list(loader())
    spec = TaskSpec(outputs=["y"], labels=["truth"], losses={"l2": LossSpec(L2, "y", "truth")})
    Doubled(mlp(2), spec).fit(data, epochs=1, event_handlers=SeesTheLoaders())
    assert all(each is batch for each, batch in zip(seen, data)) and len(seen) == 3
    with pytest.raises(HandlerError, match=r"Zero must be called between .* super\(\).fit_batch"):
        Own(mlp(2), spec).fit(data, epochs=1, event_handlers=Zero())


def test_a_failure_names_the_handler() -> None:
    class Fails(Early):
        def batch_end(self, estimator: Any) -> None:
            raise OSError("no")

    with pytest.raises(OSError, match=r"^no\nraised in Fails.batch_end \(epoch 1, batch 1\)$"):
        estimator_of(mlp(2)).fit(loader(), epochs=1, event_handlers=Fails())


def test_the_profiler_calls_and_times_them() -> None:
    net, spy = mlp(2), Spy()
    assert "handlers/Spy" in {p.name for p in estimator_of(net).profile(loader(), 2, spy).parts}
    assert len({each[0] for each in spy.seen}) == len(spy.seen)
