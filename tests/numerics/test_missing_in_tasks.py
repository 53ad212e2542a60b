"""Missing labels in nets of several tasks: rules, masks, figures."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gluoncv.utils.metrics.segmentation import SegmentationMetric

from multifit import (
    CheckpointHandler,
    Every,
    LabelSpec,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    TaskSpec,
)
from multifit.metrics import BinaryAccuracy
from tests.common.grids import TWO
from tests.common.hand_loop import SILENT, assert_trains_as_by_hand
from tests.common.nets import Heads, hybridized
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.numerics.test_missing_labels import (
    NAN,
    PLAIN,
    SIZES,
    L,
    inputs,
    labels,
    rows_present,
)

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip


RULES: dict[str, tuple[Any, float]] = {
    "NaN": ("nan", NAN),
    "a number": (-1, -1.0),
    "a slot": ("known", 7.0),
}


def two_heads() -> Any:
    return Heads(body=gluon.nn.Dense(6, activation="tanh", in_units=5), kind=3, amount=1)


def two_tasks(missing: Any, batches: list[Any], **kinds: Any) -> TaskSpec:
    metrics = {
        "accuracy": MetricSpec(mx.metric.Accuracy(), "kind", "kind"),
        "top": MetricSpec(mx.metric.TopKAccuracy(2), "kind", "kind"),
        "mae": MetricSpec(mx.metric.MAE(), "amount", "amount"),
        "loss": MetricSpec(mx.metric.Loss(), losses="kind"),
    }
    metrics["mean"] = metrics.pop("loss")
    slots = ["known"] if len(batches[0]) == 4 else []
    return TaskSpec(
        outputs=["kind", "amount"],
        labels=[LabelSpec("kind", missing=missing), "amount", *slots],
        losses={"kind": L.SoftmaxCrossEntropyLoss(), "amount": L.L2Loss()},
        metrics=metrics,
        **kinds,
    )


def two_task_batches(mark: float, with_slot: bool) -> tuple[list[Any], list[Any]]:
    """Return batches, and for each the rows of which `kind` is present."""
    amounts = labels(lambda r, n: r.normal(size=n))
    kinds = labels(lambda r, n: r.randint(0, 3, n))
    rows = [rows_present(i, size) for i, size in enumerate(SIZES)]
    for kind, present in zip(kinds, rows):
        kind[~present] = mark
    batches = [list(triple) for triple in zip(inputs(), kinds, amounts)]
    return [[*b, r.astype("float32")] for b, r in zip(batches, rows)] if with_slot else batches, rows


def by_hand(net: Any, x: Any, kind: Any, amount: Any, *known: Any) -> Any:
    scores, value = net(x)
    present = known[0].asnumpy() if known else np.isin(kind.asnumpy(), [0, 1, 2])
    kept = mx.nd.array(np.flatnonzero(present))
    loss = L.L2Loss()(value, amount).mean()
    if not len(np.flatnonzero(present)):
        return loss
    return loss + L.SoftmaxCrossEntropyLoss()(scores.take(kept), kind.take(kept)).mean()


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule: str) -> None:
    missing, mark = RULES[rule]
    devices = TWO if rule == "a slot" else None
    batches, _ = two_task_batches(mark, missing == "known")
    spec = two_tasks(missing, batches)
    assert_trains_as_by_hand(two_heads, spec, batches, by_hand, devices, True, options=PLAIN, by=lambda x: 1)


@pytest.mark.parametrize("rule", ["NaN", "a slot"])
def test_none_stands_for_a_whole_label(rule: str) -> None:
    missing, mark = RULES[rule]
    batches, rows = two_task_batches(mark, missing == "known")
    fed = [list(batch) for batch in batches]
    for batch, present in zip(fed, rows):
        if not present.any():
            batch[1] = None
            batch[3:] = [None] * len(batch[3:])
    spec = two_tasks(missing, batches)
    assert_trains_as_by_hand(
        two_heads, spec, batches, by_hand, None, True, options=PLAIN, by=lambda x: 1, fed=fed
    )


def test_metrics_see_what_is_present() -> None:
    batches, rows = two_task_batches(-1.0, False)
    net = hybridized(two_heads(), True)
    net.initialize()
    spec = two_tasks(-1, batches)
    estimator = MultiEstimator(net, spec, context=TWO)
    figures = estimator.evaluate(batches, [])
    scores = estimator.predict(batches)["kind"]
    kinds, present = np.concatenate([b[1] for b in batches]), np.concatenate(rows)
    scores, kinds = scores[present], kinds[present].astype(int)
    loss = -np.log(np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True))[np.arange(len(kinds)), kinds]
    np.testing.assert_allclose(figures["accuracy"], (scores.argmax(axis=1) == kinds).mean())
    best = np.argsort(scores, axis=1)[:, 1:]
    np.testing.assert_allclose(figures["top"], (best == kinds[:, None]).any(axis=1).mean())
    np.testing.assert_allclose([figures["kind"], figures["mean"]], loss.mean(), rtol=1e-5)
    np.testing.assert_allclose(figures["coverage_kind"], present.mean())
    metrics = estimator._session.stages["evaluate"].figures.metrics
    on_device = {metric.term.key: metric.on_device for metric in metrics}
    assert on_device["accuracy"] and on_device["coverage_kind"]


class Percent(BinaryAccuracy):
    """A subclass with a figure of its own, which is updated batch by batch."""

    def get(self) -> tuple[str, float]:
        name, share = super().get()
        return name, 100 * share


def whole_numbers(*shape: int, classes: int) -> np.ndarray:
    return np.random.RandomState(3).randint(0, classes, shape).astype("float32")


def probabilities(*shape: int, axis: int) -> np.ndarray:
    scores = np.exp(np.random.RandomState(4).normal(size=shape))
    return (scores / scores.sum(axis=axis, keepdims=True)).astype("float32")


M = mx.metric
NUMBERS = whole_numbers(12, 3, classes=4)
REAL = np.random.RandomState(5).normal(size=(12, 3)).astype("float32")
FIRST, LAST = probabilities(12, 4, 3, axis=1), probabilities(12, 3, 4, axis=2)
# how a metric is made, the output, the label, and the output's axes with the classes last, if it has classes
VALUES: dict[str, tuple[Any, Any, Any, Any]] = {
    "accuracy": (M.Accuracy, FIRST, NUMBERS, (0, 2, 1)),
    "accuracy along the last axis": (lambda: M.Accuracy(axis=-1), LAST, NUMBERS, (0, 1, 2)),
    "binary accuracy": (BinaryAccuracy, REAL, whole_numbers(12, 3, classes=2), None),
    "percent": (Percent, REAL, whole_numbers(12, 3, classes=2), None),
    "MAE": (M.MAE, REAL, NUMBERS, None),
    "RMSE": (M.RMSE, REAL, NUMBERS, None),
    "Pearson": (M.PearsonCorrelation, REAL, NUMBERS, None),
    "PCC": (M.PCC, FIRST, NUMBERS, (0, 2, 1)),
    "MCC": (M.MCC, probabilities(12, 2, 3, axis=1), whole_numbers(12, 3, classes=2), (0, 2, 1)),
    "pixels": (lambda: SegmentationMetric(4), probabilities(12, 4, 3, 2, axis=1),
               whole_numbers(12, 3, 2, classes=4), (0, 2, 3, 1)),
    "two in one": (lambda: M.CompositeEvalMetric([M.MAE(), BinaryAccuracy()]), REAL, NUMBERS, None),
}  # fmt: skip


def evaluated(metric: Any, batches: list[Any], devices: Any = None, **fields: Any) -> list[float]:
    """Return the figures of a metric that compares the input with the label, of which some values are NaN."""
    spec = TaskSpec(
        outputs="y", labels=[LabelSpec("label", missing="nan")],
        metrics={"m": MetricSpec(metric, "y", "label", **fields)},
    )  # fmt: skip
    figures = MultiEstimator(gluon.nn.HybridLambda("identity"), spec, context=devices).evaluate(batches, [])
    return [figures[name] for name in figures if name.startswith("m")]


@pytest.mark.parametrize("name", VALUES)
def test_metrics_see_single_values(name: str) -> None:
    """They are those of the metric itself, updated with the values that are present as single samples."""
    make, output, label, classes_last = VALUES[name]
    label = label.copy()
    label[np.random.RandomState(6).rand(*label.shape) < 0.6] = NAN
    known = np.isfinite(label)
    values = output[known] if classes_last is None else output.transpose(classes_last)[known]
    metric = make()
    expected = M.Accuracy() if isinstance(metric, M.Accuracy) else make()
    expected.update([mx.nd.array(label[known])], [mx.nd.array(values)])
    got = expected.get()
    figures = got if isinstance(got[0], float) else np.ravel(got[1])
    np.testing.assert_allclose(evaluated(metric, [[output, label]]), figures, rtol=1e-5)


@pytest.mark.parametrize("name", ["accuracy", "binary accuracy", "percent"])
def test_single_values_of_several_batches(name: str) -> None:
    """One batch has no value, and one device of another has none."""
    make, output, label, _ = VALUES[name]
    label = label.copy()
    label[np.random.RandomState(6).rand(*label.shape) < 0.6] = NAN
    label[:6] = NAN
    known = np.isfinite(label)
    right = output.argmax(axis=1) == label if name == "accuracy" else (output > 0) == (label > 0.5)
    batches = [[output[i : i + 4], label[i : i + 4]] for i in (4, 0, 8)]
    scale = 100 if name == "percent" else 1
    np.testing.assert_allclose(evaluated(make(), batches, TWO), scale * right[known].mean())


def test_each_pair_of_a_metric_has_its_own_missing_labels() -> None:
    one, two = FIRST, probabilities(12, 5, axis=1)
    a, b = NUMBERS.copy(), whole_numbers(12, classes=5)
    a[::2, 1], a[3], b[5:] = NAN, NAN, NAN
    spec = TaskSpec(
        inputs=["one", "two"], outputs=["one", "two"],
        labels=[LabelSpec("a", missing="nan"), LabelSpec("b", missing="nan")],
        metrics={"m": MetricSpec(mx.metric.Accuracy(), ["one", "two"], ["a", "b"])},
    )  # fmt: skip
    net = gluon.nn.HybridLambda(lambda F, one, two: (F.identity(one), F.identity(two)))
    batches = [[array[i : i + 6] for array in (one, two, a, b)] for i in (0, 6)]
    right = np.append((one.argmax(axis=1) == a)[np.isfinite(a)], (two.argmax(axis=1) == b)[:5])
    np.testing.assert_allclose(MultiEstimator(net, spec).evaluate(batches, [])["m"], right.mean())


# the weights of a loss without a label and of another one, and that of the other one in the objective
OBJECTIVES: dict[str, tuple[Any, Any, float]] = {
    "measured": (1.0, 2.0, 2.0),
    "no part of the objective": (1.0, 0.0, NAN),
    "all there is": (0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_of_which_nothing_is_present_is_not_measured(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind, amount, weight = OBJECTIVES[name]
    batches, _ = two_task_batches(-1.0, False)
    for batch in batches:
        batch[1][:] = -1
    losses = {
        "kind": LossSpec(L.SoftmaxCrossEntropyLoss(), weight=kind),
        "amount": LossSpec(L.L2Loss(), weight=amount),
    }
    net = two_heads()
    net.initialize()
    spec = TaskSpec(
        outputs=["kind", "amount"], labels=[LabelSpec("kind", missing=-1), "amount"], losses=losses
    )
    estimator = MultiEstimator(net, spec)
    history = estimator.fit(batches, batches, epochs=1, event_handlers=SILENT)
    for stage in ("train", "val"):
        expected = weight * history.last[f"{stage}_amount"]
        np.testing.assert_allclose(history.last[f"{stage}_loss"], expected, rtol=1e-6)
    warned = "train_loss is nan in epoch 1: no sample has a label that a loss takes" in caplog.text
    assert warned == math.isnan(weight)


def test_an_explicit_normalizer_counts() -> None:
    batches, _ = two_task_batches(-1.0, False)
    spec = two_tasks(-1, batches)
    ours = TaskSpec(
        outputs=["kind", "amount"], labels=[LabelSpec("kind", missing=-1), "amount"],
        losses={
            "kind": LossSpec(L.SoftmaxCrossEntropyLoss(), normalize_by=lambda slots: 2.0),
            "amount": L.L2Loss(),
        },
    )  # fmt: skip
    assert spec.terms[0].present == ours.terms[0].present

    def objective(net: Any, x: Any, kind: Any, amount: Any) -> Any:
        scores, value = net(x)
        kept = mx.nd.array(np.flatnonzero(kind.asnumpy() >= 0))
        loss = L.L2Loss()(value, amount).mean()
        if not (kind.asnumpy() >= 0).any():
            return loss
        return loss + L.SoftmaxCrossEntropyLoss()(scores.take(kept), kind.take(kept)).sum() / 2

    assert_trains_as_by_hand(two_heads, ours, batches, objective, None, True, options=PLAIN, by=lambda x: 1)


@pytest.mark.parametrize("rule", ["NaN", "a slot"])
def test_a_resumed_fit_may_go_on_with_a_label_that_is_none(rule: str, tmp_path: Path) -> None:
    """What stands for it has the shape and the dtype that batches before the stop have shown."""
    missing, mark = RULES[rule]
    batches, _ = two_task_batches(mark, rule == "a slot")
    batches[2][1] = None

    def run(folder: Path, *handlers: Any, **options: Any) -> Any:
        net = two_heads()
        net.initialize(mx.init.Constant(0.1))
        estimator = MultiEstimator(net, two_tasks(missing, batches))
        saving = CheckpointHandler(folder, Every(2, "batch"), seed=1)
        estimator.fit(batches, epochs=2, event_handlers=[*SILENT, saving, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 2)


def test_nothing_present_in_an_epoch_is_not_measured() -> None:
    batches, _ = two_task_batches(-1.0, False)
    for batch in batches:
        batch[1][:] = -1
    net = two_heads()
    net.initialize()
    history = MultiEstimator(net, two_tasks(-1, batches)).fit(batches, epochs=1, event_handlers=SILENT)
    last = history.last
    assert all(math.isnan(last[f"train_{name}"]) for name in ("kind", "accuracy", "top", "mean"))
    assert last["train_loss"] == last["train_amount"]
    assert last["train_coverage_kind"] == 0
