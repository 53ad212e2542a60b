"""Metrics have the values of mxnet's own when they are updated once by hand, wherever they are computed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gluoncv.utils.metrics.rcnn import RCNNAccMetric, RPNAccMetric
from gluonnlp.metric import LengthNormalizedLoss

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import twins
from tests.common.grids import ONE, TWO, pairwise, two_settings
from tests.common.hand_loop import SILENT, train
from tests.common.nets import hybridized
from tests.common.specs import CE, L2

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

STILL = TrainerSpec(".*", "sgd", {"learning_rate": 0.0})
SIZES = [12, 12, 7, 1]
NAMES = ["five", "two", "real"]
M = mx.metric


class Net(gluon.HybridBlock):
    """Scores of five classes, scores of two, and three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.five, self.two, self.real = nn.Dense(5), nn.Dense(2), nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.five(x), self.two(x), self.real(x)


def batches_of(sizes: list[int]) -> list[tuple]:
    random = np.random.RandomState(1)
    return [
        (
            random.randn(n, 6).astype("float32"), random.randint(0, 5, n).astype("float32"),
            random.randint(0, 2, n).astype("float32"), random.randn(n, 3).astype("float32"),
        )
        for n in sizes
    ]  # fmt: skip


def spec(metric: Any, name: str, **options: Any) -> TaskSpec:
    return TaskSpec(
        inputs=["x"], outputs=NAMES, labels=NAMES, losses={"five": CE, "two": CE, "real": L2},
        metrics={"m": MetricSpec(metric, outputs=name, labels=name, **options)},
    )  # fmt: skip


def as_they_are(labels: list, outs: list) -> tuple[list, list]:
    return labels, outs


def update_by_hand(
    metric: Any, net: Any, batches: list, name: str, prepare: Callable[..., Any] = as_they_are
) -> Any:
    """Update once, with all batches; return the value."""
    at = NAMES.index(name)
    x, label = (nd.array(np.concatenate([batch[i] for batch in batches])) for i in (0, 1 + at))
    metric.update(*prepare([label], [net(x)[at]]))
    return metric.get()[1]


METRICS = {
    "accuracy": (lambda: M.Accuracy(), "five", True),
    "top 2": (lambda: M.TopKAccuracy(2), "five", True),
    "F1 macro": (lambda: M.F1(), "two", True),
    "RMSE": (lambda: M.RMSE(), "real", True),
    "Pearson": (lambda: M.PearsonCorrelation(), "real", False),
}


@pairwise("case", METRICS)
def test_equals_the_metric_updated_by_hand(case: str, devices: list, hybrid: bool) -> None:
    make, name, on_device = METRICS[case]
    batches, others = batches_of(SIZES), batches_of([9, *SIZES])
    hand, net = twins(Net, batches[0][0])
    metric = make()
    estimator = train(hybridized(net, hybrid), spec(metric, name), batches, devices, STILL)
    history = estimator.fit(batches, others, epochs=1, event_handlers=SILENT)
    for stage, data in (("train", batches), ("val", others)):
        expected = update_by_hand(make(), hand, data, name)
        np.testing.assert_allclose(history[f"{stage}_m"], [expected], rtol=1e-5)
    measure = estimator._session.stages["train"].figures.metrics[0]
    assert measure.on_device == on_device
    assert measure.metric is metric


def absolute(label: np.ndarray, out: np.ndarray) -> float:
    return float(np.abs(label - out).max() - np.median(label))


def turned(labels: list, outs: list) -> tuple[list, list]:
    return [1 - label for label in labels], outs


@pairwise("form", ["function", "CustomMetric", "transform"])
def test_metrics_outside_of_the_graph(form: str, devices: list, hybrid: bool) -> None:
    batches = batches_of(SIZES)
    hand, net = twins(Net, batches[0][0])
    if form == "transform":
        declared = spec(M.Accuracy(), "two", transform=lambda out, label: (1 - label, out), mode="max")
        expected = update_by_hand(M.Accuracy(), hand, batches, "two", turned)
    else:
        declared = spec(absolute if form == "function" else M.CustomMetric(absolute), "real")
        expected = update_by_hand(M.CustomMetric(absolute), hand, batches, "real")
    history = train(hybridized(net, hybrid), declared, batches, devices, STILL).history
    np.testing.assert_allclose(history["train_m"], [expected], rtol=1e-5)


class Widest(M.EvalMetric):
    """The mean over batches of the widest range, of the first array of each list."""

    def update(self, labels: Any, preds: Any) -> None:
        self.sum_metric += float((preds[0].max() - labels[0].min()).asscalar())
        self.num_inst += 1


class Outside(M.EvalMetric):
    """The share of all numbers that are beyond the mean of each row, whatever the rows are."""

    def update(self, labels: Any, preds: Any) -> None:
        (pred,) = preds
        self.sum_metric += float((pred > pred.mean(axis=-1, keepdims=True)).sum().asscalar())
        self.num_inst += pred.size


def in_one_row(out: Any, *labels: Any) -> Any:
    return labels[0], out.reshape((-1, 1, 1, 3)).transpose((1, 0, 2, 3))


def as_numpy(out: Any, *labels: Any) -> Any:
    return labels[0].asnumpy(), out


AS_THEY_ARE = {"outputs": "real", "labels": "real"}
OF_TOOLKITS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "the first array only": (RCNNAccMetric, {"outputs": "five", "labels": "five"}),
    "two labels": (RPNAccMetric, {"outputs": "real", "labels": ["real", "weight"]}),
    "two labels and a loss": (LengthNormalizedLoss, {"losses": "five", "labels": ["two", "five"]}),
    "means of batches": (lambda: Widest("m"), AS_THEY_ARE),
    "among others": (lambda: M.CompositeEvalMetric([M.MAE(), RCNNAccMetric()]),
                     {"outputs": "five", "labels": "five", "names": ["mae", "own"],
                      "transform": lambda out, label: (label, out.argmax(axis=1).expand_dims(1))}),
    "without an axis of samples": (lambda: Outside("m"), {**AS_THEY_ARE, "transform": in_one_row}),
    "no arrays of MXNet": (lambda: Outside("m"), {**AS_THEY_ARE, "transform": as_numpy}),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_TOOLKITS)
def test_a_metric_that_is_not_mxnets_is_the_same_on_two_devices(case: str) -> None:
    make, takes = OF_TOOLKITS[case]
    batches = [(*batch, (batch[3] > 0).astype("float32")) for batch in batches_of(SIZES)]
    figures = []
    for devices in (ONE, TWO):
        mx.random.seed(1)
        net = Net()
        net.initialize(ctx=devices)
        declared = TaskSpec(
            inputs=["x"], outputs=NAMES, labels=[*NAMES, "weight"],
            losses={"five": CE, "two": CE, "real": L2}, metrics={"m": MetricSpec(make(), **takes)},
            unused=[] if "weight" in takes["labels"] else ["weight"],
        )  # fmt: skip
        estimator = MultiEstimator(net, declared, context=devices)
        found = estimator.evaluate(batches, event_handlers=SILENT)
        figures.append([value for name, value in found.items() if name.startswith("m")])
    assert figures[0] and np.isfinite(figures[0]).all()
    np.testing.assert_allclose(figures[1], figures[0], rtol=1e-5)


@two_settings
def test_metrics_of_losses(devices: list, hybrid: bool) -> None:
    """Fed with what a loss returns, traced or not."""
    batches = batches_of(SIZES)
    hand, net = twins(Net, batches[0][0])
    losses = {"five": CE, "two": LossSpec(lambda out, label: CE(out, label), "two", "two"), "real": L2}
    metrics = {
        "stock": MetricSpec(M.Loss(), losses="five"),
        "own": MetricSpec(M.Loss(), losses="two"),
        "both": MetricSpec(M.Loss(), losses=["five", "two"]),
    }
    declared = TaskSpec(inputs=["x"], outputs=NAMES, labels=NAMES, losses=losses, metrics=metrics)
    history = train(hybridized(net, hybrid), declared, batches, devices, STILL).history
    means = [history[f"train_{name}"][0] for name in ("five", "two")]
    figures = [history[f"train_{name}"][0] for name in metrics]
    np.testing.assert_allclose(figures, [*means, np.mean(means)], rtol=1e-5)
    five, _, _ = hand(nd.array(np.concatenate([batch[0] for batch in batches])))
    expected = CE(five, nd.array(np.concatenate([batch[1] for batch in batches]))).mean().asscalar()
    np.testing.assert_allclose(means[0], expected, rtol=1e-5)


class Flat(gluon.HybridBlock):
    """Scores of all tokens of all samples, (N * T, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.five = nn.Dense(5, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.reshape(self.five(x), (-1, 5))


@pairwise("lengths", [(1, 2, 1), (2, 1, 2)])
def test_tokens_in_rows_of_their_own(lengths: tuple, devices: list, hybrid: bool) -> None:
    """Labels of one token per sample are counted as samples, those of several one by one."""
    random = np.random.RandomState(3)
    batches = [
        (random.randn(8, t, 4).astype("float32"), random.randint(0, 5, (8, t)).astype("float32"))
        for t in lengths
    ]
    hand, net = twins(Flat, batches[0][0])
    metrics = {"acc": MetricSpec(M.Accuracy(), "s", "y"), "mean": MetricSpec(M.Loss(), losses="l")}
    loss = LossSpec(lambda out, label: CE(out, label.reshape((-1,))), "s", "y")
    declared = TaskSpec(outputs="s", labels=["y"], losses={"l": loss}, metrics=metrics)
    estimator = train(hybridized(net, hybrid), declared, batches, devices, STILL)
    history = estimator.fit(batches, epochs=2, event_handlers=SILENT)
    accuracy, mean = M.Accuracy(), M.Loss()
    for x, y in batches:
        accuracy.update([nd.array(y)], [hand(nd.array(x))])
        mean.update(0, [CE(hand(nd.array(x)), nd.array(y).reshape((-1,)))])
    np.testing.assert_allclose(history["train_acc"], [accuracy.get()[1]] * 2)
    np.testing.assert_allclose(history["train_mean"], [mean.get()[1]] * 2, rtol=1e-6)
    np.testing.assert_allclose(history["train_loss"], [mean.get()[1] * sum(lengths) / 3] * 2, rtol=1e-6)
    assert all(metric.on_device for metric in estimator._session.stages["train"].figures.metrics)
