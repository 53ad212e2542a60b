"""Losses of scope "batch" get a list per device, as gluoncv's train_ssd calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gluoncv.loss import SSDMultiBoxLoss

from multifit import LossSpec, TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.grids import ONE, TWO, pairwise, plain_or_hybrid, two_settings
from tests.common.hand_loop import ADAM, assert_trains_as_by_hand, train, trainer_of
from tests.common.nets import Heads, hybridized
from tests.common.specs import L2

from mxnet import autograd, gluon, nd  # isort: skip

TRAINER = TrainerSpec(".*", "adam", ADAM)


def tiny_ssd() -> Heads:
    """Return a net of scores of four classes and boxes for six anchors."""
    return Heads(
        lambda *heads: tuple(head.reshape((0, 6, 4)) for head in heads), hidden=16, cls=6 * 4, box=6 * 4
    )


def scenes(sizes: list[int], without_positives: bool = False) -> list[tuple]:
    random = np.random.RandomState(4)
    batches = []
    for i, n in enumerate(sizes):
        classes = random.randint(0, 4, (n, 6)) * random.randint(0, 2, (n, 6))
        if without_positives and i % 3 == 0:
            classes[:] = 0
        boxes = random.randn(n, 6, 4) * (classes > 0)[..., None]
        arrays = random.randn(n, 10), classes, boxes
        batches.append(tuple(array.astype("float32") for array in arrays))
    return batches


def train_ssd(net: Any, batches: list, contexts: list, weight: float) -> list[float]:
    """Gluoncv's train_ssd: lists per device, one backward, one step of size 1."""
    trainer, loss = trainer_of(net, "adam", ADAM), SSDMultiBoxLoss()
    sums = []
    for batch in batches:
        data, cls_targets, box_targets = [
            gluon.utils.split_and_load(array, contexts[: len(array)], even_split=False) for array in batch
        ]
        with autograd.record():
            cls_preds, box_preds = map(list, zip(*[net(x) for x in data]))
            sum_loss, _, _ = loss(cls_preds, box_preds, cls_targets, box_targets)
            weighted = [weight * value for value in sum_loss]
        autograd.backward(weighted)
        trainer.step(1)
        sums.append(sum(float(value.sum().asscalar()) for value in sum_loss))
    return sums


def spec(losses: dict[str, LossSpec], **options: Any) -> TaskSpec:
    return TaskSpec(
        inputs=["x"], outputs=["cls", "box"], labels=["cls_targets", "box_targets"], losses=losses, **options
    )


def multibox(weight: Any = 1.0) -> TaskSpec:
    loss = LossSpec(
        SSDMultiBoxLoss(), ["cls", "box"], ["cls_targets", "box_targets"], weight=weight,
        returns=["sum", "cls", "box"], minimize="sum", scope="batch",
    )  # fmt: skip
    return spec({"mb": loss})


CASES = {
    "even": ([8] * 5, False, 1.0),
    "uneven last": ([8] * 4 + [5], False, 1.0),
    "odd": ([7] * 5, False, 1.0),
    "small": ([2, 3] * 3, False, 1.0),
    "weighted": ([8] * 5, False, 0.5),
    "without positives": ([8] * 6, True, 1.0),  # the loss is one number per device there, not per sample
}


@pairwise("case", CASES)
def test_equals_train_ssd(case: str, devices: list, hybrid: bool) -> None:
    sizes, without_positives, weight = CASES[case]
    batches = scenes(sizes, without_positives)
    hand, net = twins(tiny_ssd, batches[0][0])
    hand.collect_params().reset_ctx(devices)
    sums = train_ssd(hand, batches, devices, weight)
    declared = multibox(lambda state: weight) if weight != 1 else multibox()
    history = train(hybridized(net, hybrid), declared, batches, devices, TRAINER).history
    assert_same_parameters(net, hand)
    if not without_positives:
        expected = np.average(sums, weights=sizes)
        figures = {name: history[f"train_{name}"][0] for name in ("loss", "mb", "mb.sum", "mb.cls", "mb.box")}
        np.testing.assert_allclose(figures["loss"], weight * expected, rtol=1e-4)
        np.testing.assert_allclose([figures["mb"], figures["mb.sum"]], expected, rtol=1e-4)
        np.testing.assert_allclose(figures["mb.cls"] + figures["mb.box"], expected, rtol=1e-4)


@plain_or_hybrid
def test_two_devices_equal_one(hybrid: bool) -> None:
    batches = scenes([8, 5, 1, 7, 7, 7])
    one, two = twins(tiny_ssd, batches[0][0])
    train(one, multibox(), batches, ONE, TRAINER)
    train(hybridized(two, hybrid), multibox(), batches, TWO, TRAINER)
    assert_same_parameters(two, one)


@two_settings
def test_a_constant_moves_nothing(devices: list, hybrid: bool) -> None:
    """Autograd itself refuses to differentiate what does not depend on any output."""

    def boxes(outs: list, labels: list) -> list:
        if not any(label.asnumpy().any() for label in labels):
            return [nd.zeros(1, ctx=out.context) for out in outs]
        return [L2(out, label) / sum(map(len, labels)) for out, label in zip(outs, labels)]

    batches = scenes([8] * 7, without_positives=True)
    declared = spec(
        {"box": LossSpec(boxes, "box", "box_targets", scope="batch")}, unused=["cls", "cls_targets"]
    )
    assert_trains_as_by_hand(
        tiny_ssd, declared, [batch for batch in batches if batch[1].any()],
        lambda net, x, classes, truth: L2(net(x)[1], truth), devices, hybrid, "adam", ADAM, fed=batches,
    )  # fmt: skip


@two_settings
def test_stands_beside_other_losses(devices: list, hybrid: bool) -> None:
    """A loss that is normalised over all devices at once, and one per device, make one objective."""

    def mean_of_all(outs: list, labels: list) -> list:
        count = sum(len(label) for label in labels)
        return [L2(out, label) / count for out, label in zip(outs, labels)]

    def objective(net: Any, x: Any, classes: Any, boxes: Any) -> Any:
        cls, box = net(x)
        return 3 * L2(box, boxes) + 2 * L2(nd.mean(cls, axis=2), classes)

    losses = {
        "box": LossSpec(mean_of_all, "box", "box_targets", weight=3, scope="batch"),
        "cls": LossSpec(lambda out, label: L2(nd.mean(out, axis=2), label), "cls", "cls_targets", weight=2),
    }
    options = {"learning_rate": 0.02, "momentum": 0.9}
    batches = scenes([8] * 4 + [3])
    assert_trains_as_by_hand(tiny_ssd, spec(losses), batches, objective, devices, hybrid, options=options)
