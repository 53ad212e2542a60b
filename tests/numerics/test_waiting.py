"""Nothing in the loop waits for the engine, and switching modes traces nothing again."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MixUp, MultiEstimator, TaskSpec, TrainerSpec
from multifit.losses import SequenceCELoss
from tests.common.compare import copy_parameters
from tests.common.data import digit_batches
from tests.common.grids import TWO, pairwise
from tests.common.hand_loop import SILENT
from tests.common.nets import Heads, hybridized
from tests.common.specs import BCE, CE, digit_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


class Waits:
    """Counts what waits for the engine between the end of an epoch's first batch and the end of its last."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.listening, self.count = False, 0
        for name in ("asnumpy", "asscalar", "wait_to_read", "_sync_copyfrom"):  # the last in mx.nd.array
            patch.setattr(mx.nd.NDArray, name, self.counted(getattr(mx.nd.NDArray, name)))
        patch.setattr(mx.nd, "waitall", self.counted(mx.nd.waitall))

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any) -> Any:
            self.count += self.listening
            return function(*args)

        return counting

    def batch_end(self, estimator: Any, **arguments: Any) -> None:
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


def sequences() -> list[tuple]:
    random = np.random.RandomState(0)
    shapes = [
        (random.randn(4, 5, 3), random.randint(0, 7, (4, 5)), random.randint(0, 6, 4)) for _ in range(8)
    ]
    return placed(shapes)


def heads() -> Heads:
    return Heads(digit=5, parity=1)


BODY = TrainerSpec("body.*", clip_norm=1.0, lr_scheduler=mx.lr_scheduler.FactorScheduler(3))
NORMALIZED = LossSpec(SequenceCELoss(), "out", ["y", "length"], normalize_by="length")
CHANGING = LossSpec(lambda out, label: BCE(out, label), weight=lambda state: 1 / (1 + state.step))
TURNED = MetricSpec(mx.metric.Accuracy(), "digit", "digit", transform=lambda out, y: (y, out))
COPIED = MetricSpec(lambda label, out: 1.0, "digit", "digit")  # whose arrays are copied to the host
# The net, spec, batches, trainers and handlers, and how often a training waits at least.
WAITING: dict[str, tuple[Any, Any, Any, Any, list[Any], int]] = {
    "stock metrics": (
        heads, digit_spec(losses={"digit": CE, "parity": CHANGING}, metrics=METRICS),
        placed(digit_batches([8] * 7 + [3])), {"body": BODY, "heads": TrainerSpec("(digit|parity).*", "sgd")},
        [], 0,
    ),
    "arrays of numpy": (
        heads, digit_spec(metrics=METRICS),
        [(x.astype("float64"), *labels) for x, *labels in digit_batches([8] * 8)], None,
        [MixUp(inputs="x")], 0,
    ),
    "a normalizer": (
        lambda: nn.Dense(7, flatten=False),
        TaskSpec(inputs=["x"], outputs="out", labels=["y", "length"], losses={"l": NORMALIZED}),
        sequences(), None, [], 0,
    ),
    "a transform": (heads, digit_spec(metrics={"m": TURNED}), placed(digit_batches([8] * 8)), None, [], 0),
    "a function": (heads, digit_spec(metrics={"m": COPIED}), placed(digit_batches([8] * 8)), None, [], 7),
}  # fmt: skip


@pairwise("case", WAITING)
def test_a_training_waits_for_nothing(case: str, devices: list, hybrid: bool, waits: Waits) -> None:
    make, spec, batches, trainers, handlers, least = WAITING[case]
    estimator = MultiEstimator(hybridized(make(), hybrid), spec, trainers, devices)
    estimator.fit(batches, epochs=2, event_handlers=[*SILENT, *handlers, waits])
    assert waits.count >= least and (least or waits.count == 0)


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

    def batch_end(self, estimator: Any, pred: Any = None, **arguments: Any) -> None:
        assert {name: arrays[0].shape[1:] for name, arrays in pred.items()} == {"scores": (3,), "total": ()}
        self.seen.append(estimator.evaluate(self.data, event_handlers=[])["acc"])
        self.traces.append(TwoModes.traces)


@pytest.mark.parametrize("static, devices", [(False, None), (True, TWO)], ids=["one device", "static, two"])
def test_each_mode_has_its_own_outputs_and_is_traced_once(static: bool, devices: Any) -> None:
    batches = [(x, digit % 3) for x, digit, _ in digit_batches([8] * 4)]
    measured = TaskSpec(
        inputs=["x"], outputs=["class", "chance", ...], labels=["y"], unused=["class"],
        metrics={"acc": MetricSpec(mx.metric.Accuracy(), outputs="chance", labels="y")},
    )  # fmt: skip
    spec = TaskSpec(
        inputs=["x"], outputs=["scores", "total"], labels=["y"], unused=["total"],
        losses={"y": LossSpec(CE, "scores", "y")}, evaluate=measured,
    )  # fmt: skip
    net = hybridized(TwoModes(), static_alloc=static)
    estimator = MultiEstimator(net, spec, context=devices)
    handler = Evaluates(batches)
    estimator.fit(batches, batches, epochs=2, event_handlers=[*SILENT, handler])
    # the first batch is checked and the second traced; nothing is traced after them
    assert len(set(handler.traces[1:])) == 1
    x, y = (np.concatenate(column) for column in zip(*batches))
    chance = estimator.predict(x)["chance"]
    assert handler.seen[-1] == pytest.approx((chance.argmax(1) == y).mean())
    plain = TwoModes()
    plain.initialize(ctx=devices)
    plain(nd.array(x))
    copy_parameters(net, plain)
    np.testing.assert_allclose(chance, plain(nd.array(x))[1].asnumpy(), rtol=1e-4, atol=1e-6)
