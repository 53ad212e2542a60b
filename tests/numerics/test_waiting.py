"""Nothing in the loop waits for the engine, and switching modes traces nothing again."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.losses import SequenceCELoss

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

CE, BCE = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.SigmoidBinaryCrossEntropyLoss()


class Waits:
    """Counts what waits for the engine between the end of an epoch's first batch and the end of its last."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.listening, self.count = False, 0
        for name in ("asnumpy", "asscalar", "wait_to_read"):
            patch.setattr(mx.nd.NDArray, name, self.counted(getattr(mx.nd.NDArray, name)))
        patch.setattr(mx.nd, "waitall", self.counted(mx.nd.waitall))

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any) -> Any:
            self.count += self.listening
            return function(*args)

        return counting

    def batch_end(self, estimator: Any, **facts: Any) -> None:
        self.listening = estimator.state.batch < 7


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


def placed(batches: list[tuple]) -> list[tuple]:
    return [tuple(nd.array(array) for array in batch) for batch in batches]


METRICS = {
    "acc": MetricSpec(mx.metric.Accuracy(), outputs="digit", labels="digit"),
    "top": MetricSpec(mx.metric.TopKAccuracy(2), outputs="digit", labels="digit"),
    "ce": MetricSpec(mx.metric.Loss(), losses="digit"),
}


@pytest.mark.parametrize("trainers", [1, 2])
@pytest.mark.parametrize("own", [False, True], ids=["stock losses", "own losses"])
def test_stock_metrics_wait_for_nothing(
    own: bool, trainers: int, devices: list, hybridized: bool,
    two_heads: type, data: Any, train: Any, silent: list, waits: Waits,
) -> None:  # fmt: skip
    net = two_heads()
    if hybridized:
        net.hybridize()
    parity = (lambda out, label: BCE(out, label)) if own else BCE
    spec = TaskSpec(
        inputs=["x"], outputs=["digit", "parity"], labels=["digit", "parity"], metrics=METRICS,
        losses={"digit": CE, "parity": LossSpec(parity, weight=lambda state: 1 / (1 + state.step))},
    )  # fmt: skip
    specs = {
        "body": TrainerSpec("body.*", clip_norm=1.0, lr_scheduler=mx.lr_scheduler.FactorScheduler(3)),
        "heads": TrainerSpec("(digit|parity).*", "sgd"),
    }
    estimator = MultiEstimator(net, spec, specs if trainers == 2 else specs["body"].__class__(".*"), devices)
    history = estimator.fit(placed(data([8] * 7 + [3])), epochs=2, event_handlers=[*silent, waits])
    assert waits.count == 0
    assert 0 < history["train_acc"][1] < 1


def test_normalisers_wait_for_nothing(
    devices: list, hybridized: bool, train: Any, silent: list, waits: Waits
) -> None:
    net, rng = nn.Dense(7, flatten=False), np.random.RandomState(0)
    if hybridized:
        net.hybridize()
    batches = placed(
        [(rng.randn(4, 5, 3), rng.randint(0, 7, (4, 5)), rng.randint(0, 6, 4)) for _ in range(8)]
    )
    loss = LossSpec(SequenceCELoss(), "out", ["y", "length"], normalize_by="length")
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y", "length"], losses={"l": loss})
    MultiEstimator(net, spec, context=devices).fit(batches, epochs=1, event_handlers=[*silent, waits])
    assert waits.count == 0


def test_a_metric_that_waits_is_noticed(two_heads: type, data: Any, silent: list, waits: Waits) -> None:
    metrics = {"r": MetricSpec(mx.metric.Accuracy(), "digit", "digit", transform=lambda out, y: (y, out))}
    spec = TaskSpec(
        inputs=["x"], outputs=["digit", ...], labels=["digit", "parity"], unused=["parity"],
        losses={"digit": CE}, metrics=metrics,
    )  # fmt: skip
    estimator = MultiEstimator(two_heads(), spec)
    estimator.fit(placed(data([8] * 8)), epochs=1, event_handlers=[*silent, waits])
    assert waits.count >= 7


class TwoModes(gluon.HybridBlock):
    """Returns other outputs when evaluating, as SSD does."""

    traces = 0

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.out = nn.Dense(6), nn.Dropout(0.5), nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        TwoModes.traces += F is mx.sym
        scores = self.out(self.drop(self.body(x)))
        if autograd.is_training():
            return scores, F.sum(scores, axis=1)
        return F.argmax(scores, axis=1), F.softmax(scores), F.ones_like(scores)


class Evaluates:
    """Evaluates after every batch."""

    def __init__(self, data: list) -> None:
        self.data, self.seen, self.traces = data, [], []

    def batch_end(self, estimator: Any, pred: Any = None, **facts: Any) -> None:
        assert {name: arrays[0].shape[1:] for name, arrays in pred.items()} == {"scores": (3,), "total": ()}
        self.seen.append(estimator.evaluate(self.data, event_handlers=[])["acc"])
        self.traces.append(TwoModes.traces)


@pytest.mark.parametrize("static", [False, True])
def test_each_mode_has_its_own_outputs_and_is_traced_once(
    static: bool, devices: list, data: Any, silent: list
) -> None:
    batches = [batch[:2] for batch in data([8] * 6)]
    batches = [(x, digit % 3) for x, digit in batches]
    measured = TaskSpec(
        inputs=["x"], outputs=["class", "chance", ...], labels=["y"], unused=["class"],
        metrics={"acc": MetricSpec(mx.metric.Accuracy(), outputs="chance", labels="y")},
    )  # fmt: skip
    spec = TaskSpec(
        inputs=["x"], outputs=["scores", "total"], labels=["y"], unused=["total"],
        losses={"y": LossSpec(CE, "scores", "y")}, evaluate=measured,
    )  # fmt: skip
    net = TwoModes()
    net.hybridize(static_alloc=static)
    estimator = MultiEstimator(net, spec, context=devices)
    handler = Evaluates(batches)
    estimator.fit(batches, batches, epochs=2, event_handlers=[*silent, handler])
    assert (
        len(set(handler.traces[1:])) == 1
    )  # after the first batch, which is checked, and the second, which is traced
    x, y = (np.concatenate(column) for column in zip(*batches))
    chance = estimator.predict(x)["chance"]
    assert handler.seen[-1] == pytest.approx((chance.argmax(1) == y).mean())
    plain = TwoModes()
    plain.initialize(ctx=devices)
    plain(nd.array(x, ctx=devices[0]))
    for name, parameter in plain._collect_params_with_prefix().items():
        parameter.set_data(net._collect_params_with_prefix()[name].data())
    np.testing.assert_allclose(chance, plain(nd.array(x))[1].asnumpy(), rtol=1e-4, atol=1e-6)
