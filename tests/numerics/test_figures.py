"""Figures of losses are exact means over the epoch; metrics of all kinds; accuracy of labels of all kinds.

What stock metrics and functions give, and that no figure depends on how a pass is cut: test_whole_pass.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gluoncv.utils.metrics.rcnn import RCNNAccMetric, RPNAccMetric
from gluonnlp.metric import LengthNormalizedLoss

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.gluon.metrics.sums import CHUNK, Accumulator
from multifit.losses import SequenceCELoss
from tests.common.compare import twins
from tests.common.data import digit_batches, regression_batches
from tests.common.grids import ONE, TWO, pairwise, plain_or_hybrid, two_settings
from tests.common.hand_loop import SILENT, SIZES, train
from tests.common.nets import PARTS, Parts, hybridized, sequential
from tests.common.shared_nets import two_heads
from tests.common.specs import BCE, CE, L2, digit_spec, one_loss_spec

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

M = mx.metric
STILL = TrainerSpec(".*", "sgd", {"learning_rate": 0.0})


def assert_figures(history: Any, expected: dict[str, Any], stage: str = "train") -> None:
    """Check the figures of every epoch."""
    for name, value in expected.items():
        values = history[f"{stage}_{name}"]
        np.testing.assert_allclose(values, [value] * len(values), rtol=1e-5, err_msg=name)


def joined(batches: Any) -> list[np.ndarray]:
    return [np.concatenate(column) for column in zip(*batches)]


# ---- losses ------------------------------------------------------------------------------------------------


@pairwise("weight", [0.5, 0.0, "function"])
def test_objective_and_terms_of_uneven_batches(weight: Any, devices: list, hybrid: bool) -> None:
    batches, others = digit_batches(SIZES), digit_batches([9, 9, 2], seed=4)
    hand, net = twins(two_heads, batches[0][0])
    number = 0.5 if weight == "function" else weight
    spec = digit_spec(parity=(lambda state: 0.5) if weight == "function" else weight)
    estimator = train(hybridized(net, hybrid), spec, batches, devices, STILL)
    history = estimator.fit(batches, others, epochs=2, event_handlers=SILENT)
    for stage, data in (("train", batches), ("val", others)):
        x, *labels = map(nd.array, joined(data))
        digit, parity = (
            loss(out, label).asnumpy().mean() for loss, out, label in zip((CE, BCE), hand(x), labels)
        )
        figures = {"loss": digit + number * parity, "digit": digit, "parity": parity}
        assert_figures(history, figures, stage)
    assert estimator.evaluate(others, event_handlers=SILENT) == pytest.approx(figures, rel=1e-5)


@two_settings
def test_parts(devices: list, hybrid: bool) -> None:
    batches = regression_batches(SIZES)
    hand, net = twins(lambda: nn.Dense(4), batches[0][0])
    spec = one_loss_spec(hybridized(Parts(), hybrid), weight=2, returns=list(PARTS), minimize="sample")
    history = train(hybridized(net, hybrid), spec, batches, devices, STILL).history
    x, y = joined(batches)
    errors = (hand(nd.array(x)).asnumpy() - y) ** 2
    mean = errors.mean()
    parts = {"l": mean, "l.mean": mean, "l.sample": mean, "l.all": errors.sum(1).mean(), "loss": 2 * mean}
    assert_figures(history, parts)


@pairwise("case", ["tokens everywhere", "a batch without tokens"])
def test_means_over_tokens(case: str, devices: list, hybrid: bool) -> None:
    random, loss = np.random.RandomState(0), SequenceCELoss()
    batches = []
    for i, n in enumerate(SIZES):
        length = random.randint(1, 6, n) * (0 if case == "a batch without tokens" and i == 1 else 1)
        batches.append((random.randn(n, 5, 3).astype("float32"), random.randint(0, 7, (n, 5)), length))
    hand, net = twins(lambda: nn.Dense(7, flatten=False), batches[0][0])
    terms = {
        "token": LossSpec(loss, "out", ["y", "length"], normalize_by="length"),
        "sequence": LossSpec(loss, "out", ["y", "length"], weight=0.1),
    }
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y", "length"], losses=terms)
    history = train(hybridized(net, hybrid), spec, batches, devices, STILL).history
    x, y, length = map(nd.array, joined(batches))
    total = loss(hand(x), y, length).asnumpy().sum()
    token, sequence = total / length.asnumpy().sum(), total / len(length)
    assert_figures(history, {"token": token, "sequence": sequence, "loss": token + 0.1 * sequence})


@plain_or_hybrid
def test_a_batch_that_is_normalised_by_nothing_counts_for_nothing(hybrid: bool) -> None:
    """Its objective is 0, whatever its losses are."""
    by = "y" if hybrid else lambda slots: float(slots["y"].sum().asscalar())
    x = np.ones((4, 2), "float32")
    batches = [(x, np.zeros(4, "float32")), (x, np.ones(4, "float32"))]
    hand, net = twins(lambda: nn.Dense(1), x)
    spec = one_loss_spec(lambda out, y: L2(out, nd.ones_like(out) * 3), normalize_by=by)
    history = train(hybridized(net, hybrid), spec, batches, None, STILL).history
    value = (0.5 * (hand(nd.array(x)).asnumpy() - 3) ** 2).mean()
    assert_figures(history, {"l": value, "loss": value})


@two_settings
def test_sums_stay_exact_beyond_what_float32_counts(devices: list, hybrid: bool) -> None:
    big = 2.0**24
    batches = [(np.ones((2, 3), "float32"), np.full(2, value, "float32")) for value in [big, *[1.0] * 11]]
    spec = one_loss_spec(lambda out, y: y + 0 * out.reshape((-1,)))
    history = train(hybridized(nn.Dense(1), hybrid), spec, batches, devices, STILL).history
    assert history["train_l"] == history["train_loss"] == [(big + 11) / 12]


# few numbers wait and are added up many at once, many are added at once
@pytest.mark.parametrize("width, count", [(2, CHUNK), (2, CHUNK + 1), (5000, 3)])
def test_an_accumulator_adds_up_batches_and_devices(width: int, count: int) -> None:
    sums, read = Accumulator(), []
    assert sums.read() == 0.0
    for device in (0, 1):
        for i in range(count):
            sums.add(nd.full((width,), 2.0**24 + i, ctx=mx.cpu(device), dtype="float64"))
            read.append(sums.read()[0])  # reading changes nothing
    total = 2 * (count * 2.0**24 + count * (count - 1) / 2)
    assert read == sorted(read) and read[-1] == total
    other = Accumulator()
    other.load(sums.state())
    for each in (sums, other):
        np.testing.assert_array_equal(each.read(), np.full(width, total))


# ---- metrics -----------------------------------------------------------------------------------------------

NAMES = ["five", "two", "real"]


class Net(gluon.HybridBlock):
    """Scores of five classes, scores of two, and three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.five, self.two, self.real = nn.Dense(5), nn.Dense(2), nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.five(x), self.two(x), self.real(x)


def batches_of(*sizes: int) -> list[tuple]:
    random = np.random.RandomState(1)
    return [
        (
            random.randn(n, 6).astype("float32"), random.randint(0, 5, n).astype("float32"),
            random.randint(0, 2, n).astype("float32"), random.randn(n, 3).astype("float32"),
        )
        for n in sizes
    ]  # fmt: skip


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


REAL, FIVE = {"outputs": "real", "labels": "real"}, {"outputs": "five", "labels": "five"}
OF_TOOLKITS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "the first array only": (RCNNAccMetric, FIVE),
    "two labels": (RPNAccMetric, {"outputs": "real", "labels": ["real", "weight"]}),
    "two labels and a loss": (LengthNormalizedLoss, {"losses": "five", "labels": ["two", "five"]}),
    "means of batches": (lambda: Widest("m"), REAL),
    "among others": (
        lambda: M.CompositeEvalMetric([M.MAE(), RCNNAccMetric()]),
        {**FIVE, "names": ["mae", "own"],
         "transform": lambda out, label: (label, out.argmax(axis=1).expand_dims(1))},
    ),
    "without an axis of samples": (lambda: Outside("m"), {**REAL, "transform": in_one_row}),
    "no arrays of MXNet": (lambda: Outside("m"), {**REAL, "transform": as_numpy}),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_TOOLKITS)
def test_a_metric_that_is_not_mxnets_is_the_same_on_two_devices(case: str) -> None:
    make, takes = OF_TOOLKITS[case]
    batches = [(*batch, (batch[3] > 0).astype("float32")) for batch in batches_of(12, 7, 1)]
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
        found = MultiEstimator(net, declared, context=devices).evaluate(batches, event_handlers=SILENT)
        figures.append([value for name, value in found.items() if name.startswith("m")])
    assert figures[0] and np.isfinite(figures[0]).all()
    np.testing.assert_allclose(figures[1], figures[0], rtol=1e-5)


@two_settings
def test_metrics_of_losses(devices: list, hybrid: bool) -> None:
    """Fed with what a loss returns, traced or not."""
    batches = batches_of(12, 7, 1)
    hand, net = twins(Net, batches[0][0])
    losses = {"five": CE, "two": LossSpec(lambda out, label: CE(out, label), "two", "two"), "real": L2}
    metrics = {
        "stock": MetricSpec(M.Loss(), losses="five"),
        "own": MetricSpec(M.Loss(), losses="two"),
        "both": MetricSpec(M.Loss(), losses=["five", "two"]),
    }
    declared = TaskSpec(inputs=["x"], outputs=NAMES, labels=NAMES, losses=losses, metrics=metrics)
    history = train(hybridized(net, hybrid), declared, batches, devices, STILL).history
    x, *labels = map(nd.array, joined(batches))
    five, two = (CE(out, label).mean().asscalar() for out, label in zip(hand(x)[:2], labels))
    assert_figures(history, {"stock": five, "own": two, "both": (five + two) / 2, "five": five, "two": two})


@pairwise("lengths", [(1, 2, 1), (2, 1, 2)])
def test_tokens_in_rows_of_their_own(lengths: tuple, devices: list, hybrid: bool) -> None:
    """Labels of one token per sample are counted as samples, those of several one by one."""
    random = np.random.RandomState(3)
    batches = [
        (random.randn(8, t, 4).astype("float32"), random.randint(0, 5, (8, t)).astype("float32"))
        for t in lengths
    ]
    rows = nn.HybridLambda(lambda F, scores: F.reshape(scores, (-1, 5)))
    hand, net = twins(lambda: sequential(nn.Dense(5, flatten=False), rows), batches[0][0])
    metrics = {"acc": MetricSpec(M.Accuracy(), "s", "y"), "mean": MetricSpec(M.Loss(), losses="l")}
    loss = LossSpec(lambda out, label: CE(out, label.reshape((-1,))), "s", "y")
    declared = TaskSpec(outputs="s", labels=["y"], losses={"l": loss}, metrics=metrics)
    estimator = train(hybridized(net, hybrid), declared, batches, devices, STILL)
    accuracy, mean = M.Accuracy(), M.Loss()
    for x, y in batches:
        accuracy.update([nd.array(y)], [hand(nd.array(x))])
        mean.update(0, [CE(hand(nd.array(x)), nd.array(y).reshape((-1,)))])
    value = mean.get()[1]
    expected = {"acc": accuracy.get()[1], "mean": value, "loss": value * sum(lengths) / 3}
    assert_figures(estimator.history, expected)
    assert all(metric.on_device for metric in estimator._session.stages["train"].figures.metrics)


# ---- accuracy of outputs that have the shape of their labels: of one-hot labels, of classes, or refused ----

RNG = np.random.RandomState(3)
CLASSES = RNG.randint(0, 3, 21)
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
SCORES = RNG.normal(size=(21, 3)).astype("float32")
MAPS = np.eye(3, dtype="float32")[RNG.randint(0, 3, (21, 4))]
MAP_SCORES = RNG.normal(size=(21, 4, 3)).astype("float32")
ANSWERS = np.tile(np.float32([[1, 1, 0], [0, 0, 0], [1, 0, 1]]), (7, 1))
HALF_MISSING = np.where(np.arange(21)[:, None] % 2, ONE_HOT, np.float32(np.nan))
RIGHT = SCORES.argmax(axis=1) == CLASSES
MAPS_RIGHT = MAP_SCORES.argmax(axis=2) == MAPS.argmax(axis=2)
UNCLEAR = "the outputs have the shape of the labels, but they hold no classes (whole numbers), and the labels"


class Kept(M.Accuracy):
    """A subclass that is updated as its base is."""


def cut(*arrays: np.ndarray) -> list[Any]:
    return [[array[i : i + 8] for array in arrays] for i in (0, 8, 16)]


def identity(metric: Any, devices: Any = None, **fields: Any) -> MultiEstimator:
    """An estimator whose net returns its input."""
    metrics = {"m": MetricSpec(metric, "y", "label", **fields)}
    spec = TaskSpec(outputs="y", labels=[LabelSpec("label", missing="nan")], metrics=metrics)
    return MultiEstimator(gluon.nn.HybridLambda("identity"), spec, context=devices)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 3, shape)


def same(*shape: int) -> np.ndarray:
    return numbers(0, *shape) == numbers(1, *shape)


# the metric, outputs, labels, and what is right
ACCURACIES: dict[str, tuple[Callable[[], Any], np.ndarray, np.ndarray, np.ndarray]] = {
    "one-hot": (M.Accuracy, SCORES, ONE_HOT, RIGHT),
    "smoothed": (M.Accuracy, SCORES, 0.9 * ONE_HOT + np.float32(0.1 / 3), RIGHT),
    "a subclass": (Kept, SCORES, ONE_HOT, RIGHT),
    "some samples": (M.Accuracy, SCORES, HALF_MISSING, RIGHT[1::2]),
    "some samples in another metric": (
        lambda: M.CompositeEvalMetric([Kept()]), SCORES, HALF_MISSING, RIGHT[1::2]
    ),
    "maps": (M.Accuracy, MAP_SCORES.swapaxes(1, 2), MAPS.swapaxes(1, 2), MAPS_RIGHT),
    "classes last": (lambda: M.Accuracy(axis=-1), MAP_SCORES, MAPS, MAPS_RIGHT),
    "classes": (M.Accuracy, numbers(0, 21), numbers(1, 21), same(21)),
    "classes in a column": (M.Accuracy, numbers(0, 21, 1), numbers(1, 21, 1), same(21, 1)),
    "classes of tokens": (M.Accuracy, numbers(0, 21, 4).astype("float32"), numbers(1, 21, 4), same(21, 4)),
}  # fmt: skip


@pytest.mark.parametrize(("make", "outputs", "label", "right"), ACCURACIES.values(), ids=ACCURACIES)
def test_an_accuracy(make: Any, outputs: np.ndarray, label: np.ndarray, right: np.ndarray) -> None:
    (value, *_) = identity(make(), TWO).evaluate(cut(outputs, label.astype("float32")), []).values()
    assert value == pytest.approx(right.mean())


@two_settings
def test_one_hot_labels_are_counted_on_the_device_in_training(devices: list, hybrid: bool) -> None:
    net = hybridized(nn.Dense(3, in_units=3), hybrid)
    loss = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)
    metrics = {"m": MetricSpec(M.Accuracy(), "y", "y")}
    spec = TaskSpec(outputs="y", labels=["y"], losses={"y": loss}, metrics=metrics)
    data = cut(SCORES, ONE_HOT)
    estimator = MultiEstimator(net, spec, STILL, devices, initializer="xavier")
    history = estimator.fit(data, data, epochs=2, event_handlers=SILENT)
    right = estimator.predict(data)["y"].argmax(axis=1) == CLASSES
    assert history["train_m"] == history["val_m"] == pytest.approx([right.mean()] * 2)
    assert [metric.on_device for metric in estimator._session.stages["train"].figures.metrics] == [True]


# the metric, its fields, outputs, labels, and whether it is seen in the first batch
REFUSED: dict[str, tuple[Any, dict[str, Any], np.ndarray, np.ndarray, bool]] = {
    "in another metric": (
        M.CompositeEvalMetric([M.CompositeEvalMetric([M.Accuracy()])]), {}, SCORES, ANSWERS, True
    ),
    "transformed to lists": (
        M.Accuracy(), {"transform": lambda scores, label: ([label], [scores])}, SCORES, ANSWERS, True
    ),
    "a transformed subclass": (
        Kept(), {"transform": lambda scores, label: (label, scores)}, SCORES, ANSWERS, True
    ),
    "labels that are one-hot at first": (
        M.Accuracy(), {}, SCORES, np.concatenate([ONE_HOT[:16], ANSWERS[16:]]), False
    ),
    "outputs that are classes at first": (
        M.Accuracy(), {}, np.concatenate([ANSWERS[:16], SCORES[16:]]), ANSWERS, False
    ),
}  # fmt: skip


@pytest.mark.parametrize(("metric", "fields", "outputs", "labels", "early"), REFUSED.values(), ids=REFUSED)
def test_what_is_unclear_is_refused(metric: Any, fields: Any, outputs: Any, labels: Any, early: bool) -> None:
    if early:
        (value, *_) = identity(metric, **fields).evaluate(cut(SCORES, ONE_HOT), []).values()
        assert value == pytest.approx(RIGHT.mean())
    data = iter(cut(outputs, labels))
    with pytest.raises(SpecError, match='metrics."m".: ') as caught:
        identity(metric, None if early else TWO, **fields).evaluate(data, [])
    assert UNCLEAR in str(caught.value)
    assert len(list(data)) == (2 if early else 0)
