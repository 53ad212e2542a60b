"""Metrics say what mxnet's own say when they are updated by hand, wherever they are computed."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from gluoncv.utils.metrics.voc_detection import VOC07MApMetric

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.data.devices import shares
from multifit.gluon.metrics.stage_metric import Place

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

CE, L2 = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L2Loss()
STILL = TrainerSpec(".*", "sgd", {"learning_rate": 0.0})
SIZES = [12, 12, 7, 1]
M = mx.metric


class Net(gluon.HybridBlock):
    """Scores of five classes, scores of two, and three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.five, self.two, self.real = nn.Dense(5), nn.Dense(2), nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.five(x), self.two(x), self.real(x)


def batches_of(sizes: list[int]) -> list[tuple]:
    rng = np.random.RandomState(1)
    return [
        (
            rng.randn(n, 6).astype("float32"), rng.randint(0, 5, n).astype("float32"),
            rng.randint(0, 2, n).astype("float32"), rng.randn(n, 3).astype("float32"),
        )
        for n in sizes
    ]  # fmt: skip


def spec(metric: Any, name: str, **options: Any) -> TaskSpec:
    names = ["five", "two", "real"]
    return TaskSpec(
        inputs=["x"], outputs=names, labels=names, losses={"five": CE, "two": CE, "real": L2},
        metrics={"m": MetricSpec(metric, outputs=name, labels=name, **options)},
    )  # fmt: skip


def update_by_hand(metric: Any, net: Any, batches: list, devices: int, name: str, prepare: Callable) -> None:
    """One update per batch, with a list of arrays per device, as Gluon's examples do."""
    at = ["five", "two", "real"].index(name)
    for batch in batches:
        label, out, start = nd.array(batch[1 + at]), net(nd.array(batch[0]))[at], 0
        labels, outs = [], []
        for size in shares(len(label), devices):
            if size:
                outs.append(out[start : start + size])
                labels.append(label[start : start + size])
            start += size
        metric.update(*prepare(labels, outs))


METRICS = {
    "accuracy": (lambda: M.Accuracy(), "five", True),
    "top 2": (lambda: M.TopKAccuracy(2), "five", True),
    "F1 macro": (lambda: M.F1(), "two", "one device"),
    "F1 micro": (lambda: M.F1(average="micro"), "two", True),
    "MCC": (lambda: M.MCC(), "two", "one device"),
    "MSE": (lambda: M.MSE(), "real", True),
    "MAE": (lambda: M.MAE(), "real", True),
    "RMSE": (lambda: M.RMSE(), "real", True),
    "Pearson": (lambda: M.PearsonCorrelation(), "real", False),
}


@pytest.mark.parametrize("case", METRICS)
def test_equals_the_metric_updated_by_hand(
    case: str, devices: list, hybridized: bool, pair: Any, train: Any, silent: list
) -> None:
    make, name, where = METRICS[case]
    sizes = SIZES if name != "real" or case != "Pearson" else [12, 12, 8, 4]
    batches, others = batches_of(sizes), batches_of([9, *sizes])
    hand, ours = pair(Net, batches[0][0])
    if hybridized:
        ours.hybridize()
    metric = make()
    estimator = train(ours, spec(metric, name), batches, devices, STILL)
    history = estimator.fit(batches, others, epochs=2, event_handlers=silent)
    for prefix, seen in (("train", batches), ("val", others)):
        expected = make()
        update_by_hand(expected, hand, seen, len(devices), name, lambda labels, outs: (labels, outs))
        np.testing.assert_allclose(history[f"{prefix}_m"], [expected.get()[1]] * 2, rtol=1e-5)
    measure = estimator._engine.stages["train"].figures.metrics[0]
    on_device = where if isinstance(where, bool) else len(devices) == 1
    assert measure.place == (Place.DEVICE if on_device else Place.HOST)
    assert measure.metric is metric


def absolute(label: np.ndarray, out: np.ndarray) -> float:
    return float(np.abs(label - out).mean())


@pytest.mark.parametrize("form", ["function", "CustomMetric", "transform"])
def test_metrics_that_are_updated_batch_by_batch(
    form: str, devices: list, hybridized: bool, pair: Any, train: Any
) -> None:
    batches = batches_of(SIZES)
    hand, ours = pair(Net, batches[0][0])
    if hybridized:
        ours.hybridize()
    if form == "transform":
        metric, name, expected = M.Accuracy(), "two", M.Accuracy()
        given = spec(metric, name, transform=lambda out, label: (1 - label, out), mode="max")
        update_by_hand(
            expected, hand, batches, len(devices), name, lambda labels, outs: ([1 - a for a in labels], outs)
        )
    else:
        name, expected = "real", M.CustomMetric(absolute)
        given = spec(absolute if form == "function" else M.CustomMetric(absolute), name)
        # a function sees the whole batch at once; a CustomMetric is called for each device's share
        count = 1 if form == "function" else len(devices)
        update_by_hand(expected, hand, batches, count, name, lambda labels, outs: (labels, outs))
    history = train(ours, given, batches, devices, STILL).history
    np.testing.assert_allclose(history["train_m"], [expected.get()[1]], rtol=1e-5)


def test_metrics_of_losses(devices: list, hybridized: bool, pair: Any, train: Any) -> None:
    """Fed with what a loss returns, traced or not."""
    batches = batches_of(SIZES)
    hand, ours = pair(Net, batches[0][0])
    if hybridized:
        ours.hybridize()
    names = ["five", "two", "real"]
    losses = {"five": CE, "two": LossSpec(lambda out, label: CE(out, label), "two", "two"), "real": L2}
    metrics = {
        "stock": MetricSpec(M.Loss(), losses="five"),
        "own": MetricSpec(M.Loss(), losses="two"),
        "both": MetricSpec(M.Loss(), losses=["five", "two"]),
    }
    declared = TaskSpec(inputs=["x"], outputs=names, labels=names, losses=losses, metrics=metrics)
    history = train(ours, declared, batches, devices, STILL).history
    means = [history[f"train_{name}"][0] for name in ("five", "two")]
    np.testing.assert_allclose(history["train_stock"], [means[0]], rtol=1e-5)
    np.testing.assert_allclose(history["train_own"], [means[1]], rtol=1e-5)
    np.testing.assert_allclose(history["train_both"], [np.mean(means)], rtol=1e-5)
    five, two, _ = hand(nd.array(np.concatenate([batch[0] for batch in batches])))
    expected = CE(five, nd.array(np.concatenate([batch[1] for batch in batches]))).mean().asscalar()
    np.testing.assert_allclose(means[0], expected, rtol=1e-5)


class Boxes(gluon.HybridBlock):
    """Detections that are read from the input: (N, M, 6) of class, score and corners."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Dense(1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        parts = F.split_v2(x, (1, 2), axis=2)
        return parts[0], parts[1], F.broadcast_add(parts[2], 0 * F.expand_dims(self.shift(x), 1))


def test_detections(devices: list, hybridized: bool, silent: list) -> None:
    rng = np.random.RandomState(5)

    def corners(n: int, m: int) -> np.ndarray:
        low = rng.uniform(0, 50, (n, m, 2))
        return np.concatenate([low, low + rng.uniform(10, 50, (n, m, 2))], axis=2)

    batches = []
    for n in (4, 3, 1):
        truth = np.concatenate([corners(n, 3), rng.randint(0, 2, (n, 3, 1))], axis=2).astype("float32")
        found = np.concatenate(
            [truth[..., 4:], rng.rand(n, 3, 1), truth[..., :4] + rng.randn(n, 3, 4) * 3], axis=2
        )
        batches.append((found.astype("float32"), truth))
    names = ["cat", "dog"]
    metric = MetricSpec(
        VOC07MApMetric(class_names=names), outputs=["boxes", "ids", "scores"], labels=["truth"], mode="max",
        transform=lambda boxes, ids, scores, truth: (boxes, ids, scores, truth[..., :4], truth[..., 4:5]),
    )  # fmt: skip
    declared = TaskSpec(
        inputs=["x"], outputs=["ids", "scores", "boxes"], labels=["truth"], metrics={"VOC": metric}
    )
    net = Boxes()
    if hybridized:
        net.hybridize()
    figures = MultiEstimator(net, declared, context=devices).evaluate(batches, event_handlers=silent)
    expected = VOC07MApMetric(class_names=names)
    for found, truth in batches:
        arrays = [found[..., 2:], found[..., :1], found[..., 1:2], truth[..., :4], truth[..., 4:]]
        expected.update(*[[nd.array(array)] for array in arrays])
    for name, value in zip(*expected.get()):
        assert figures[f"VOC.{name}"] == pytest.approx(value, rel=1e-5)
    assert 0 < figures["VOC.mAP"] <= 1


class Flat(gluon.HybridBlock):
    """Scores of all tokens of all samples, (N * T, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.five = nn.Dense(5, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.reshape(self.five(x), (-1, 5))


@pytest.mark.parametrize("lengths", [[1, 2, 1], [2, 1, 2]], ids=["many tokens later", "many tokens first"])
def test_batches_of_which_some_have_no_device_side_path(
    lengths: list, devices: list, hybridized: bool, pair: Any, train: Any, silent: list
) -> None:
    """Of one token per sample the device-side path can tell which label is whose, of several it cannot."""
    rng = np.random.RandomState(3)
    batches = [
        (rng.randn(8, t, 4).astype("float32"), rng.randint(0, 5, (8, t)).astype("float32")) for t in lengths
    ]
    hand, ours = pair(Flat, batches[0][0])
    if hybridized:
        ours.hybridize()
    metrics = {"acc": MetricSpec(M.Accuracy(), "s", "y"), "mean": MetricSpec(M.Loss(), losses="l")}
    loss = LossSpec(lambda out, label: CE(out, label.reshape((-1,))), "s", "y")
    declared = TaskSpec(outputs="s", labels=["y"], losses={"l": loss}, metrics=metrics)
    estimator = train(ours, declared, batches, devices, STILL)
    history = estimator.fit(batches, epochs=2, event_handlers=silent)
    accuracy, mean = M.Accuracy(), M.Loss()
    for x, y in batches:
        accuracy.update([nd.array(y)], [hand(nd.array(x))])
        mean.update(0, [CE(hand(nd.array(x)), nd.array(y).reshape((-1,)))])
    np.testing.assert_allclose(history["train_acc"], [accuracy.get()[1]] * 2)
    np.testing.assert_allclose(history["train_mean"], [mean.get()[1]] * 2, rtol=1e-6)
    np.testing.assert_allclose(history["train_loss"], [mean.get()[1] * sum(lengths) / 3] * 2, rtol=1e-6)
    measures = {
        measure.term.key: measure.place for measure in estimator._engine.stages["train"].figures.metrics
    }
    assert measures == {"acc": Place.HOST, "mean": Place.DEVICE}
