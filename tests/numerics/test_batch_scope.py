"""Losses of scope "batch" get a list per device, as gluoncv's train_ssd calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gluoncv.loss import SSDMultiBoxLoss

from multifit import LossSpec, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

ADAM = {"learning_rate": 5e-3}


class TinySSD(gluon.HybridBlock):
    """Scores of four classes and boxes for six anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Dense(16, activation="relu")
        self.cls = nn.Dense(6 * 4)
        self.box = nn.Dense(6 * 4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        hidden = self.body(x)
        return F.reshape(self.cls(hidden), (0, 6, 4)), F.reshape(self.box(hidden), (0, 6, 4))


def scenes(sizes: list[int], without_positives: bool = False) -> list[tuple]:
    rng = np.random.RandomState(4)
    found = []
    for i, n in enumerate(sizes):
        classes = rng.randint(0, 4, (n, 6)) * rng.randint(0, 2, (n, 6))
        if without_positives and i % 3 == 0:
            classes[:] = 0
        boxes = rng.randn(n, 6, 4) * (classes > 0)[..., None]
        found.append((rng.randn(n, 10).astype("float32"), classes.astype("float32"), boxes.astype("float32")))
    return found


def train_ssd(net: Any, batches: list, contexts: list, loss: Any, weight: float = 1.0) -> list[float]:
    """Gluoncv's train_ssd: lists per device, one backward, one step of size 1."""
    trainer = gluon.Trainer(net.collect_params(), "adam", ADAM)
    sums = []
    for batch in batches:
        data, cls_targets, box_targets = [
            gluon.utils.split_and_load(array, contexts[: len(array)], even_split=False) for array in batch
        ]
        with autograd.record():
            cls_preds, box_preds = map(list, zip(*[net(x) for x in data]))
            sum_loss, cls_loss, box_loss = loss(cls_preds, box_preds, cls_targets, box_targets)
            weighted = [weight * value for value in sum_loss]
        autograd.backward(weighted)
        trainer.step(1)
        sums.append(sum(float(value.sum().asscalar()) for value in sum_loss))
    return sums


def spec(weight: Any = 1.0, loss: Any = None) -> TaskSpec:
    multibox = LossSpec(
        loss or SSDMultiBoxLoss(), ["cls", "box"], ["cls_targets", "box_targets"], weight=weight,
        returns=["sum", "cls", "box"], minimize="sum", scope="batch",
    )  # fmt: skip
    return TaskSpec(
        inputs=["x"], outputs=["cls", "box"], labels=["cls_targets", "box_targets"], losses={"mb": multibox}
    )


@pytest.mark.parametrize("sizes", [[8] * 20, [8] * 19 + [5], [7] * 20, [2, 3] * 10], ids=str)
def test_equals_train_ssd(
    sizes: list[int], devices: list, hybridized: bool, pair: Any, train: Any, same: Any
) -> None:
    batches = scenes(sizes)
    hand, ours = pair(TinySSD, batches[0][0])
    hand.collect_params().reset_ctx(devices)
    if hybridized:
        ours.hybridize()
    sums = train_ssd(hand, batches, devices, SSDMultiBoxLoss())
    estimator = train(ours, spec(), batches, devices, TrainerSpec(".*", "adam", ADAM))
    same(ours, hand)
    expected = np.average(sums, weights=sizes)
    for figure in ("train_loss", "train_mb", "train_mb.sum"):
        np.testing.assert_allclose(estimator.history[figure], [expected], rtol=1e-4)
    parts = estimator.history["train_mb.cls"][0] + estimator.history["train_mb.box"][0]
    np.testing.assert_allclose(parts, expected, rtol=1e-4)


def test_two_devices_equal_one(hybridized: bool, pair: Any, train: Any, same: Any) -> None:
    batches = scenes([8, 5, 1, 7] * 5)
    one, two = pair(TinySSD, batches[0][0])
    if hybridized:
        two.hybridize()
    for net, contexts in ((one, [mx.cpu(0)]), (two, [mx.cpu(0), mx.cpu(1)])):
        train(net, spec(), batches, contexts, TrainerSpec(".*", "adam", ADAM))
    same(two, one)


def test_obeys_its_weight(devices: list, hybridized: bool, pair: Any, train: Any, same: Any) -> None:
    batches = scenes([8] * 20)
    hand, ours = pair(TinySSD, batches[0][0])
    hand.collect_params().reset_ctx(devices)
    if hybridized:
        ours.hybridize()
    trainer_loss = SSDMultiBoxLoss()
    sums = train_ssd(hand, batches, devices, trainer_loss, 0.5)
    estimator = train(ours, spec(lambda state: 0.5), batches, devices, TrainerSpec(".*", "adam", ADAM))
    same(ours, hand)
    np.testing.assert_allclose(estimator.history["train_mb"], [np.mean(sums)], rtol=1e-4)
    np.testing.assert_allclose(estimator.history["train_loss"], [0.5 * np.mean(sums)], rtol=1e-4)


def test_batches_without_positives(devices: list, hybridized: bool, pair: Any, train: Any, same: Any) -> None:
    """The loss returns one number per device there, in place of one per sample."""
    batches = scenes([8] * 20, without_positives=True)
    hand, ours = pair(TinySSD, batches[0][0])
    hand.collect_params().reset_ctx(devices)
    if hybridized:
        ours.hybridize()
    train_ssd(hand, batches, devices, SSDMultiBoxLoss())
    train(ours, spec(), batches, devices, TrainerSpec(".*", "adam", ADAM))
    same(ours, hand)


def test_a_constant_moves_nothing(
    devices: list, hybridized: bool, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    """Autograd itself refuses to differentiate what does not depend on any output."""
    batches, l2 = scenes([8] * 20, without_positives=True), gluon.loss.L2Loss()
    hand, ours = pair(TinySSD, batches[0][0])
    if hybridized:
        ours.hybridize()

    def boxes(outs: list, labels: list) -> list:
        if not any(label.asnumpy().any() for label in labels):
            return [nd.zeros(1, ctx=out.context) for out in outs]
        return [l2(out, label) / sum(map(len, labels)) for out, label in zip(outs, labels)]

    trainer = gluon.Trainer(hand.collect_params(), "adam", ADAM)
    positive = [batch for batch in batches if batch[1].any()]
    by_hand(hand, [trainer], positive, lambda net, x, classes, truth: l2(net(x)[1], truth))
    declared = TaskSpec(
        inputs=["x"], outputs=["cls", "box"], labels=["cls_targets", "box_targets"],
        losses={"box": LossSpec(boxes, "box", "box_targets", scope="batch")}, unused=["cls", "cls_targets"],
    )  # fmt: skip
    train(ours, declared, batches, devices, TrainerSpec(".*", "adam", ADAM))
    same(ours, hand)


def test_stands_beside_other_losses(
    devices: list, hybridized: bool, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    """A loss that is normalised over all devices at once, and one per device, make one objective."""
    batches = scenes([8] * 19 + [3])
    hand, ours = pair(TinySSD, batches[0][0])
    if hybridized:
        ours.hybridize()
    l2 = gluon.loss.L2Loss()

    def mean_of_all(outs: list, labels: list) -> list:
        count = sum(len(label) for label in labels)
        return [l2(out, label) / count for out, label in zip(outs, labels)]

    def objective(net: Any, x: Any, classes: Any, boxes: Any) -> Any:
        cls, box = net(x)
        return 3 * l2(box, boxes) + 2 * l2(nd.mean(cls, axis=2), classes)

    sgd = {"learning_rate": 0.02, "momentum": 0.9}
    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", sgd)], batches, objective)
    losses = {
        "box": LossSpec(mean_of_all, "box", "box_targets", weight=3, scope="batch"),
        "cls": LossSpec(lambda out, label: l2(nd.mean(out, axis=2), label), "cls", "cls_targets", weight=2),
    }
    declared = TaskSpec(
        inputs=["x"], outputs=["cls", "box"], labels=["cls_targets", "box_targets"], losses=losses
    )
    train(ours, declared, batches, devices, TrainerSpec(".*", "sgd", sgd))
    same(ours, hand)
