"""Losses that ignore the gradient that they receive train as in a hand-written loop."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.grids import pairwise
from tests.common.hand_loop import SGD, SILENT, train, trainer_of
from tests.common.nets import hybridized

from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

SIZES = [6, 6, 6, 4, 6]
toolkit = pytest.importorskip("gluoncv.loss")


class OwnGradient(gluon.loss.Loss):
    """A cross entropy of SoftmaxOutput, which makes its own gradient."""

    def __init__(self) -> None:
        super().__init__(None, 0)

    def hybrid_forward(self, F: Any, pred: Any, label: Any) -> Any:
        options = {"multi_output": True, "use_ignore": True, "ignore_label": -1, "normalization": "valid"}
        probability = F.SoftmaxOutput(pred, label, **options)
        return F.mean(-F.log(F.pick(probability, label, axis=1)), axis=0, exclude=True)


class Maps(gluon.HybridBlock):
    """(N, 2, 4, 4) -> some score maps of three classes."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layers = [nn.Conv2D(3, 3, padding=1) for _ in range(outputs)]
        for layer in self.layers:
            self.register_child(layer)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return [layer(x) for layer in self.layers]


LOSSES = {
    "block": (1, OwnGradient()),
    "function": (1, lambda out, y: OwnGradient()(out, y)),
    "with an auxiliary output": (2, toolkit.MixSoftmaxCrossEntropyLoss(aux=True)),
    "ICNetLoss": (4, toolkit.ICNetLoss(crop_size=4)),
}


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.RandomState(0)
    labels = [random.randint(-1, 3, (size, 4, 4)).astype("float32") for size in SIZES]
    return [(random.randn(len(y), 2, 4, 4).astype("float32"), y) for y in labels]


def spec_of(outputs: int, loss: Any, **options: Any) -> TaskSpec:
    names = [f"out{i}" for i in range(outputs)]
    return TaskSpec(
        inputs=["x"], outputs=names, labels=["y"], losses={"l": LossSpec(loss, names, "y", **options)}
    )


@pairwise("case", LOSSES)
def test_equals_the_hand_written_loop(case: str, devices: list, hybrid: bool) -> None:
    outputs, loss = LOSSES[case]
    data = batches()
    hand, net = twins(lambda: Maps(outputs), data[0][0])
    trainer = trainer_of(hand)
    for x, y in data:
        half = len(x) // len(devices)
        with autograd.record():
            parts = [nd.array(x[i : i + half]) for i in range(0, len(x), half)]
            labels = [nd.array(y[i : i + half]) for i in range(0, len(x), half)]
            losses = [loss(*hand(part), label) for part, label in zip(parts, labels)]
        autograd.backward(losses)
        trainer.step(len(x))
    estimator = train(hybridized(net, hybrid), spec_of(outputs, loss), data, devices)
    assert_same_parameters(net, hand)
    assert 0.3 < estimator.history["train_l"][0] < 10


@pytest.mark.parametrize(
    "options",
    [{"weight": 0.5}, {"weight": lambda state: 1.0}, {"normalize_by": lambda slots: 3.0}],
    ids=["weight", "function", "normalizer"],
)
def test_what_it_would_ignore_is_refused(options: dict) -> None:
    estimator = MultiEstimator(Maps(1), spec_of(1, OwnGradient(), **options))
    with pytest.raises(SpecError, match=r'losses\["l"\]: OwnGradient ignores its weight'):
        estimator.check(batches())


def test_a_loss_that_ignores_only_some_of_it_is_refused() -> None:
    spec = spec_of(1, lambda out, y: OwnGradient()(out, y) + nd.square(out).mean(axis=0, exclude=True))
    with pytest.raises(SpecError, match="gave one that is not four times as large, so weights"):
        MultiEstimator(Maps(1), spec).check(batches())


def test_handlers_cannot_change_its_objective() -> None:
    estimator = MultiEstimator(Maps(1), spec_of(1, OwnGradient()), TrainerSpec(".*", "sgd", SGD))
    halves = SimpleNamespace(change_objective=lambda estimator, objectives: [each / 2 for each in objectives])
    with pytest.raises(SpecError, match=r'losses\["l"\]: it ignores the gradient.*change the objective'):
        estimator.fit(batches(), epochs=1, event_handlers=[*SILENT, halves])
