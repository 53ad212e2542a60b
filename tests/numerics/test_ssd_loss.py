"""gluoncv's SSD loss as a graph of ours trains as gluoncv's own over the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gluoncv.loss import SSDMultiBoxLoss

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters, copy_parameters, snapshot, twins
from tests.common.grids import ONE, in_turn
from tests.common.hand_loop import ADAM, SILENT, trainer_of
from tests.common.nets import Heads, hybridized
from tests.common.ranks import run_ranks

from mxnet import autograd, gluon  # isort: skip

TRAINER = TrainerSpec(".*", "adam", ADAM)
MINING = {"min_hard_negatives": 2, "negative_mining_ratio": 1.5, "rho": 0.3, "lambd": 2.0}


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


def train_ssd(net: Any, batches: list, contexts: list, weight: float, options: Any) -> np.ndarray:
    """Train as gluoncv's train_ssd: lists per device, one backward, one step of size 1.

    Returns each batch's losses, in all, of classes and of boxes.
    """
    trainer, loss = trainer_of(net, "adam", ADAM), SSDMultiBoxLoss(**options)
    sums = []
    for batch in batches:
        data, cls_targets, box_targets = [
            gluon.utils.split_and_load(array, contexts[: len(array)], even_split=False) for array in batch
        ]
        with autograd.record():
            cls_preds, box_preds = map(list, zip(*[net(x) for x in data]))
            parts = loss(cls_preds, box_preds, cls_targets, box_targets)
            weighted = [weight * value for value in parts[0]]
        autograd.backward(weighted)
        trainer.step(1)
        sums.append([sum(float(value.sum().asscalar()) for value in part) for part in parts])
    return np.array(sums)


def multibox(weight: Any = 1.0, **options: Any) -> TaskSpec:
    loss = LossSpec(
        SSDMultiBoxLoss(**options), ["cls", "box"], ["cls_targets", "box_targets"], weight=weight,
        returns=["sum", "cls", "box"],
    )  # fmt: skip
    return TaskSpec(
        inputs=["x"], outputs=["cls", "box"], labels=["cls_targets", "box_targets"], losses={"mb": loss}
    )


CASES: dict[str, Any] = {
    "uneven last": ([8] * 4 + [5], False, 1.0, {}),
    "small": ([2, 3] * 3, False, 1.0, {}),
    "weighted": ([8] * 5, False, 0.5, {}),
    "without positives": ([8] * 6, True, 1.0, {}),
    "without positives, but with negatives": ([8] * 6, True, 1.0, MINING),
}


@in_turn("case", CASES)
def test_equals_train_ssd(case: str, devices: list, hybrid: bool) -> None:
    sizes, without_positives, weight, options = CASES[case]
    batches = scenes(sizes, without_positives)
    hand, net = twins(tiny_ssd, batches[0][0])
    hand.collect_params().reset_ctx(devices)
    sums = train_ssd(hand, batches, devices, weight, options)
    declared = multibox(lambda state: weight, **options) if weight != 1 else multibox(**options)
    estimator = MultiEstimator(hybridized(net, hybrid), declared, TRAINER, devices)
    history = estimator.fit(batches, epochs=1, event_handlers=SILENT)
    assert_same_parameters(net, hand)
    matched = [max((batch[1] > 0).sum(), bool(options)) for batch in batches]
    expected = np.average(sums, 0, matched)
    figures = [history[f"train_{name}"][0] for name in ("mb.sum", "mb.cls", "mb.box", "mb", "loss")]
    np.testing.assert_allclose(figures, [*expected, expected[0], weight * expected[0]], rtol=1e-4)
    plan = estimator.check(batches).train
    assert any("/ matched anchors" in row.goes_to for row in plan.rows)
    assert "/ matched anchors" in declared.summary()


@pytest.mark.parametrize(("ranks", "options"), [(2, {}), (3, MINING)], ids=["defaults", "all options"])
def test_ranks_train_as_gluoncvs_loss_over_the_whole_batch(ranks: int, options: dict[str, Any]) -> None:
    batches = scenes([8, 5, 1, 7], without_positives=True)
    start, hand = twins(tiny_ssd, batches[0][0])
    sums = train_ssd(hand, batches, ONE, 1.0, options)
    matched = [max((batch[1] > 0).sum(), bool(options)) for batch in batches]

    def train(world: Any) -> Any:
        net = tiny_ssd()
        net.initialize()
        copy_parameters(start, net)
        estimator = MultiEstimator(net, multibox(**options), TRAINER, world=world)
        history = estimator.fit(batches, epochs=1, event_handlers=SILENT)
        return snapshot(net), [history[f"train_mb.{part}"][0] for part in ("sum", "cls", "box")]

    for parameters, figures in run_ranks(ranks, train):
        np.testing.assert_allclose(figures, np.average(sums, 0, matched), rtol=1e-5)
        for name, value in snapshot(hand).items():
            np.testing.assert_allclose(parameters[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
