"""Labels that may be missing: objectives, figures and metrics are those of what is present, by hand."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gluoncv.utils.metrics.segmentation import SegmentationMetric

from multifit import CheckpointHandler, DataError, Every, LabelSpec, LossSpec, MetricSpec  # isort: skip
from multifit import MultiEstimator, TaskSpec  # isort: skip
from multifit.gluon.metrics.base import Coverage
from multifit.losses import SegmentationCELoss, SequenceCELoss
from multifit.metrics import BinaryAccuracy
from tests.common.grids import ONE, TWO, in_turn
from tests.common.hand_loop import SILENT, assert_trains_as_by_hand
from tests.common.nets import Heads, hybridized
from tests.common.resuming import assert_resumes_bit_for_bit

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

SIZES = [8, 8, 8, 8, 5, 8, 8]
NAN = math.nan
L, M = gluon.loss, mx.metric


def inputs(dtype: str = "float32") -> list[Any]:
    random = np.random.RandomState(0)
    return [random.normal(size=(size, 5)).astype(dtype) for size in SIZES]


def rows_present(batch: int, size: int) -> Any:
    """All samples, some, but one, none, some, none again, some."""
    present = np.random.RandomState(batch).rand(size) < 0.6
    present[0] = True
    special = {0: present | True, 2: np.arange(size) == 3, 3: present & False, 5: present & False}
    return special.get(batch, present)


def labels(draw: Callable[[Any, int], Any], dtype: str = "float32") -> list[Any]:
    return [draw(np.random.RandomState(9 + i), size).astype(dtype) for i, size in enumerate(SIZES)]


def without(ys: list[Any], share: float | None) -> list[Any]:
    """Take whole samples out of labels, or a share of the values, and all of the fourth batch's."""
    for i, y in enumerate(ys):
        by_value = np.random.RandomState(i).rand(*y.shape) < (1.0 if i == 3 else share or 0)
        y[~rows_present(i, len(y)) if share is None else by_value] = NAN
    return ys


class Dense(gluon.nn.HybridBlock):
    """A layer, whose outputs have a shape."""

    def __init__(self, units: int, shape: tuple[int, ...] = (0, -1), dtype: str = "float32") -> None:
        super().__init__()
        self.shape, self.dense = shape, gluon.nn.Dense(units, in_units=5, dtype=dtype)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.reshape(self.dense(x), self.shape)


# ---- one label ---------------------------------------------------------------------------------------------


def own_loss(output: Any, label: Any) -> Any:
    return mx.nd.log(1 + mx.nd.square(output - label)).sum(axis=1)


def own_matrix(output: Any, label: Any) -> Any:
    return mx.nd.log(1 + mx.nd.square(output - label))


class OwnMatrix(gluon.HybridBlock):
    """`own_matrix` as a part of the step graph."""

    def hybrid_forward(self, F: Any, output: Any, label: Any) -> Any:
        return F.log(1 + F.square(output - label))


class Unchanged(L.L2Loss):
    """A subclass that computes what its base does."""


def taken(kept: Any, *arrays: Any) -> Any:
    """Select what is present of an output and a label; None where there is nothing."""
    kept = np.flatnonzero(kept)
    return [array.take(mx.nd.array(kept)) for array in arrays] if kept.size else None


def whole_rows(output: Any, label: Any) -> Any:
    return taken(np.isfinite(label.asnumpy().reshape(len(label), -1)).all(axis=1), output, label)


def cells(columns: int) -> Callable[..., Any]:
    """Select the values that are present, each with its score or its `columns` scores."""

    def select(output: Any, label: Any) -> Any:
        pair = output.reshape((-1, columns)), label.reshape((-1,) if columns > 1 else (-1, 1))
        return taken(np.isfinite(label.asnumpy()).ravel(), *pair)

    return select


def pixels(output: Any, label: Any) -> Any:
    """Select the samples that have some; of each, the loss is the mean over its pixels."""
    known = mx.nd.array(np.nan_to_num(label.asnumpy(), nan=-1))
    return taken((known.asnumpy() >= 0).any(axis=(1, 2)), output, known)


def normal(*shape: int) -> Any:
    return lambda r, n: r.normal(size=(n, *shape))


def whole(top: int, *shape: int) -> Any:
    return lambda r, n: r.randint(0, top, (n, *shape))


def chances(r: Any, n: int) -> Any:
    return r.dirichlet([1] * 3, n)


CE, BCE = L.SoftmaxCrossEntropyLoss(), L.SigmoidBCELoss()

# The loss, the net's units, shape and dtype, how labels are drawn, the share that is taken out (None: whole
# samples), what is present, and a factor: of a sample, a loss of one's own is the sum of its values.
KINDS: dict[str, tuple[Any, tuple[Any, ...], Any, float | None, Any, float]] = {
    "classes": (CE, (3,), whole(3), None, whole_rows, 1),
    "probabilities": (L.SoftmaxCrossEntropyLoss(sparse_label=False), (3,), chances, None, whole_rows, 1),
    "a column": (BCE, (1,), whole(2, 1), None, whole_rows, 1),
    "KL": (L.KLDivLoss(from_logits=False), (3,), chances, None, whole_rows, 1),
    "L2": (L.L2Loss(), (2,), normal(2), None, whole_rows, 1),
    "hinge": (L.HingeLoss(), (1,), lambda r, n: r.randint(0, 2, n) * 2 - 1, None, whole_rows, 1),
    "Poisson": (L.PoissonNLLLoss(), (1,), whole(5, 1), None, whole_rows, 1),
    "own": (own_loss, (2,), normal(2), None, whole_rows, 1),
    "own, a matrix": (own_matrix, (2,), normal(2), None, whole_rows, 1),
    "classes, float64": (CE, (3, (0, -1), "float64"), whole(3), None, whole_rows, 1),
    "own, a matrix, float64": (own_matrix, (2, (0, -1), "float64"), normal(2), None, whole_rows, 1),
    "values": (L.L2Loss(), (3,), normal(3), 0.5, cells(1), 1),
    "values of a subclass": (Unchanged(), (3,), normal(3), 0.5, cells(1), 1),
    "values of an own loss": (own_matrix, (3,), normal(3), 0.5, cells(1), 3),
    "values of own maps": (hybridized(OwnMatrix()), (4, (0, 2, 2)), normal(2, 2), 0.5, cells(1), 4),
    "answers": (BCE, (3,), whole(2, 3), 0.5, cells(1), 1),
    "tokens": (CE, (12, (0, -1, 4)), whole(4, 3), 0.5, cells(4), 1),
    "pixels": (SegmentationCELoss(), (12, (0, 3, 2, 2)), whole(3, 2, 2), 0.6, pixels, 1),
}


@in_turn("name", KINDS)
def test_what_is_missing_is_left_out(name: str, devices: Any, hybrid: bool) -> None:
    fn, net, draw, share, select, factor = KINDS[name]
    dtype = net[2] if len(net) > 2 else "float32"

    def objective(net: Any, x: Any, y: Any) -> Any:
        output = net(x)
        chosen = select(output, y)
        if chosen is None:
            return (output * 0).sum()
        loss = fn(*chosen) * factor
        return loss.sum() / len(chosen[0]) if loss.size > 1 else loss  # Gluon's Poisson loss is a mean

    batches = [list(pair) for pair in zip(inputs(dtype), without(labels(draw, dtype), share))]
    spec = TaskSpec(outputs="y", labels=[LabelSpec("y", missing="nan")], losses={"y": fn})
    assert_trains_as_by_hand(
        lambda: Dense(*net), spec, batches, objective, devices, hybrid, options={"learning_rate": 0.1},
        by=lambda x: 1,
    )  # fmt: skip


# ---- several labels of a loss ------------------------------------------------------------------------------


def figures(spec: TaskSpec, *batches: Any) -> dict[str, float]:
    """Evaluate a net that returns its first three inputs."""
    net = gluon.nn.HybridLambda(lambda F, x: F.slice_axis(x, axis=1, begin=0, end=3))
    return MultiEstimator(net, spec).evaluate(list(batches), [])


def with_gaps(*shape: int, seed: int = 5) -> np.ndarray:
    random = np.random.RandomState(seed)
    values = random.normal(size=shape).astype("float32")
    values[random.rand(*shape) < 0.4] = NAN
    return values


def of_loss(loss: Any, *names: Any) -> TaskSpec:
    declared = [LabelSpec(name, missing="nan") for name in names]
    return TaskSpec(outputs="y", labels=declared, losses={"y": LossSpec(loss, "y", list(names))})


X = inputs()[0]
A, B, C = with_gaps(8, 3), with_gaps(8, 3, seed=6), with_gaps(8, seed=7)
WIDE, WIDER = with_gaps(8, 1).repeat(2, axis=1), with_gaps(8, 1, seed=6).repeat(3, axis=1)
SUM = X[:, :3].sum(axis=1)


def distance(output: Any, a: Any, b: Any, c: Any) -> Any:
    return mx.nd.abs(output - a - b - c.reshape((-1, 1)))


def of_sums(output: Any, *labels: Any) -> Any:
    return mx.nd.abs(
        output.sum(axis=1) - sum(label.reshape((len(label), -1)).sum(axis=1) for label in labels)
    )


# Of a label with one value for each sample, that value is one of all columns.
SEVERAL = {
    "values": (of_loss(distance, "a", "b", "c"), [X, A, B, C], np.abs(X[:, :3] - A - B - C[:, None]), 3),
    "samples, as widths differ": (
        of_loss(of_sums, "a", "b"), [X, WIDE, WIDER], np.abs(SUM - WIDE.sum(axis=1) - WIDER.sum(axis=1)), 1
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "batch", "values", "factor"), SEVERAL.values(), ids=SEVERAL)
def test_what_is_present_in_all_labels_of_a_loss_counts(
    spec: Any, batch: Any, values: Any, factor: int
) -> None:
    np.testing.assert_allclose(figures(spec, batch)["y"], np.nanmean(values) * factor, rtol=1e-5)


def test_a_label_whose_mask_says_where_it_is() -> None:
    """A mask of None leaves all samples out."""
    losses = {"y": LossSpec(of_sums, "y", ["a", "b"])}
    declared = [LabelSpec("a", missing="known"), LabelSpec("b", missing="nan"), "known"]
    spec = TaskSpec(outputs="y", labels=declared, losses=losses)
    known, second = np.array([1, 1, 0, 1, 1, 0, 0, 0], "float32"), C.copy()
    second[[1, 2]], second[[0, 3, 4]] = NAN, 1
    first = np.nan_to_num(A)
    once = figures(spec, [X, first, second, known])
    kept = [0, 3, 4]
    expected = np.abs(SUM - first.sum(axis=1) - second)[kept].mean()
    np.testing.assert_allclose(once["y"], expected, rtol=1e-6)
    coverage = {"coverage_a": 4 / 8, "coverage_b": np.isfinite(second).mean()}
    assert once == pytest.approx({**once, **coverage})
    twice = figures(spec, [X, first, second, known], [X, first, second, None])
    assert twice == pytest.approx({**once, "coverage_a": 2 / 8})
    net = MultiEstimator(gluon.nn.HybridLambda("identity"), spec)
    assert net.predict([(X, first, second, None)])["y"].shape == X.shape  # no mask is known yet


def test_sequences_count_as_a_whole() -> None:
    """One of two is present: the loss is its alone. A sequence that lacks a token is refused."""
    tokens = np.array([[1, 2, 0], [NAN, NAN, NAN]], "float32")
    losses = {"y": LossSpec(SequenceCELoss(), "y", ["y", "length"])}
    spec = TaskSpec(outputs="y", labels=[LabelSpec("y", missing="nan"), "length"], losses=losses)
    net = Dense(12, (0, 3, 4))
    net.initialize()
    batch = [np.ones((2, 5), "float32"), tokens, np.array([2, 2], "float32")]
    alone = [array[:1] for array in batch]
    found = [MultiEstimator(net, spec).evaluate([each], [])["y"] for each in (batch, alone)]
    np.testing.assert_allclose(*found, rtol=1e-6)
    tokens[1, 1:] = 1
    message = 'losses\\["y"\\]: 1 value of "y" is missing in samples that have others'
    with pytest.raises(DataError, match=message):
        MultiEstimator(net, spec).evaluate([batch], [])


@pytest.mark.parametrize("missing", ["y", "other"])
def test_a_hybridized_loss_may_have_other_users(missing: str) -> None:
    """MXNet keeps a graph of it for the number of arguments of the first call."""
    loss = hybridized(L.L2Loss())
    values = {"y": np.ones((8, 3), "float32"), "other": np.ones((8, 3), "float32"), missing: A}
    declared = [LabelSpec(name, missing="nan") if name == missing else name for name in values]
    spec = TaskSpec(outputs=["y", "other"], labels=declared, losses={"y": loss, "other": loss})
    net = gluon.nn.HybridLambda(lambda F, x: 2 * [F.slice_axis(x, axis=1, begin=0, end=3)])
    found = MultiEstimator(net, spec).evaluate([[X, *values.values()]], [])
    for name, value in values.items():
        np.testing.assert_allclose(found[name], np.nanmean((X[:, :3] - value) ** 2) / 2, rtol=1e-5)
    assert loss(mx.nd.ones((2, 3)), mx.nd.zeros((2, 3))).asnumpy().tolist() == [0.5, 0.5]


def test_a_loss_or_a_metric_that_takes_the_mask_gets_all_samples() -> None:
    def masked(output: Any, label: Any, mask: Any) -> Any:
        return (mx.nd.abs(output - label) * mask).sum(axis=1)

    def weighted(labels: Any, output: Any) -> float:
        return np.average(np.abs(output - labels[0]), weights=labels[1])

    spec = TaskSpec(
        outputs="y", labels=[LabelSpec("y", missing="known"), "known"],
        losses={"y": LossSpec(masked, "y", ["y", "known"], normalize_by="known")},
        metrics={"error": MetricSpec(weighted, "y", ["y", "known"])},
    )  # fmt: skip
    found = figures(spec, [X, np.nan_to_num(A, nan=7.0), np.isfinite(A).astype("float32")])
    expected = np.nanmean(np.abs(X[:, :3] - A))
    np.testing.assert_allclose([found["y"], found["error"]], expected, rtol=1e-5)


# ---- a label of two tasks ----------------------------------------------------------------------------------

MARKS: dict[Any, float] = {"nan": NAN, -1: -1.0, "known": 7.0}


def two_heads() -> Any:
    return Heads(body=gluon.nn.Dense(6, activation="tanh", in_units=5), kind=3, amount=1)


def two_tasks(missing: Any = -1, metrics: bool = True, **losses: Any) -> TaskSpec:
    figures = {
        "accuracy": MetricSpec(M.Accuracy(), "kind", "kind"),
        "top": MetricSpec(M.TopKAccuracy(2), "kind", "kind"),
        "mae": MetricSpec(M.MAE(), "amount", "amount"),
        "mean": MetricSpec(M.Loss(), losses="kind"),
    }
    return TaskSpec(
        outputs=["kind", "amount"], metrics=figures if metrics else None,
        labels=[LabelSpec("kind", missing=missing), "amount", *(["known"] if missing == "known" else [])],
        losses={"kind": L.SoftmaxCrossEntropyLoss(), "amount": L.L2Loss(), **losses},
    )  # fmt: skip


def two_task_batches(missing: Any = -1, present: bool = True) -> tuple[list[Any], list[Any]]:
    """Return batches, and for each the rows of which `kind` is present, if any is."""
    amounts, kinds = labels(normal()), labels(whole(3))
    rows = [rows_present(i, size) & present for i, size in enumerate(SIZES)]
    for kind, there in zip(kinds, rows):
        kind[~there] = MARKS[missing]
    batches = [list(triple) for triple in zip(inputs(), kinds, amounts)]
    if missing == "known":
        batches = [[*batch, there.astype("float32")] for batch, there in zip(batches, rows)]
    return batches, rows


# what says that a label is missing, whether None stands for a whole label, and a normalizer for each sample
RULES: dict[str, tuple[Any, bool, float | None]] = {
    "NaN": ("nan", False, None), "a number": (-1, False, None), "a slot": ("known", False, None),
    "NaN or None": ("nan", True, None), "a slot or None": ("known", True, None),
    "a normalizer": (-1, False, 0.25),
}  # fmt: skip


@in_turn("rule", RULES)
def test_rules(rule: str, devices: Any, hybrid: bool) -> None:
    missing, none, number = RULES[rule]
    batches, rows = two_task_batches(missing)
    fed = [list(batch) for batch in batches]
    for batch, present in zip(fed, rows):
        if none and not present.any():
            batch[1], batch[3:] = None, [None] * len(batch[3:])

    def objective(net: Any, x: Any, kind: Any, amount: Any, *known: Any) -> Any:
        scores, value = net(x)
        loss = L.L2Loss()(value, amount).mean()
        there = known[0].asnumpy() if known else np.isin(kind.asnumpy(), [0, 1, 2])
        pair = taken(there, scores, kind)
        return (
            loss if pair is None else loss + CE(*pair).sum() / (number * len(x) if number else len(pair[0]))
        )

    of_kind = LossSpec(CE, normalize_by=lambda slots: mx.nd.ones_like(slots["kind"]) * number)
    spec = two_tasks(missing, **({"kind": of_kind} if number else {}))
    options = {"options": {"learning_rate": 0.1}, "by": lambda x: 1, "fed": fed}
    assert_trains_as_by_hand(two_heads, spec, batches, objective, devices, hybrid, **options)


@pytest.mark.parametrize("missing", ["nan", "known"])
def test_a_resumed_fit_may_go_on_with_a_label_that_is_none(missing: str, tmp_path: Path) -> None:
    """What stands for it has the shape and the dtype that batches before the stop have shown."""
    batches, _ = two_task_batches(missing)
    batches[2][1] = None

    def run(folder: Path, *handlers: Any, **options: Any) -> Any:
        net = two_heads()
        net.initialize(mx.init.Constant(0.1))
        estimator = MultiEstimator(net, two_tasks(missing, metrics=False))
        saving = CheckpointHandler(folder, Every(2, "batch"), seed=1)
        estimator.fit(batches[:4], epochs=1, event_handlers=[*SILENT, saving, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 2)


# The weights of a loss without a label and of another one, and that of the other one in the objective: it is
# measured, no part of the objective, or there is nothing else.
@pytest.mark.parametrize(("kind", "amount", "weight"), [(1.0, 2.0, 2.0), (1.0, 0.0, NAN), (0.0, 0.0, 0.0)])
def test_where_nothing_is_present_nothing_is_measured(kind, amount, weight, caplog) -> None:
    batches, _ = two_task_batches(present=False)
    losses = {"kind": LossSpec(CE, weight=kind), "amount": LossSpec(L.L2Loss(), weight=amount)}
    net = two_heads()
    net.initialize()
    last = MultiEstimator(net, two_tasks(**losses)).fit(batches, batches, 1, event_handlers=SILENT).last
    for stage in ("train", "val"):
        np.testing.assert_allclose(last[f"{stage}_loss"], weight * last[f"{stage}_amount"], rtol=1e-6)
        assert all(math.isnan(last[f"{stage}_{name}"]) for name in ("kind", "accuracy", "top", "mean"))
        assert last[f"{stage}_coverage_kind"] == 0
    warned = "train_loss is nan in epoch 1: no sample has a label that a loss takes" in caplog.text
    assert warned == math.isnan(weight)


# ---- metrics -----------------------------------------------------------------------------------------------


def test_figures_are_those_of_what_is_present() -> None:
    batches, rows = two_task_batches()
    kept = [[array[there] for array in batch] for batch, there in zip(batches, rows) if there.any()]
    net = hybridized(two_heads())
    net.initialize()
    estimator = MultiEstimator(net, two_tasks(), context=TWO)
    found, expected = (estimator.evaluate(data, []) for data in (batches, kept))
    for name in ("accuracy", "top", "kind", "mean"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name
    assert found["coverage_kind"] == pytest.approx(np.concatenate(rows).mean())
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


NUMBERS, FLAGS = whole_numbers(12, 3, classes=4), whole_numbers(12, 3, classes=2)
REAL = np.random.RandomState(5).normal(size=(12, 3)).astype("float32")
FIRST, LAST = probabilities(12, 4, 3, axis=1), probabilities(12, 3, 4, axis=2)
# how a metric is made, the output, the label, and the output's axes with the classes last, if it has classes
VALUES: dict[str, tuple[Any, Any, Any, Any]] = {
    "accuracy": (M.Accuracy, FIRST, NUMBERS, (0, 2, 1)),
    "accuracy along the last axis": (lambda: M.Accuracy(axis=-1), LAST, NUMBERS, (0, 1, 2)),
    "binary accuracy": (BinaryAccuracy, REAL, FLAGS, None),
    "percent": (Percent, REAL, FLAGS, None),
    "MAE": (M.MAE, REAL, NUMBERS, None),
    "RMSE": (M.RMSE, REAL, NUMBERS, None),
    "Pearson": (M.PearsonCorrelation, REAL, NUMBERS, None),
    "PCC": (M.PCC, FIRST, NUMBERS, (0, 2, 1)),
    "MCC": (M.MCC, probabilities(12, 2, 3, axis=1), FLAGS, (0, 2, 1)),
    "pixels": (lambda: SegmentationMetric(4), probabilities(12, 4, 3, 2, axis=1),
               whole_numbers(12, 3, 2, classes=4), (0, 2, 3, 1)),
    "two in one": (lambda: M.CompositeEvalMetric([M.MAE(), BinaryAccuracy()]), REAL, NUMBERS, None),
}  # fmt: skip


@pytest.mark.parametrize("cut", [False, True], ids=["one batch", "three batches"])
@pytest.mark.parametrize("name", VALUES)
def test_metrics_see_single_values(name: str, cut: bool) -> None:
    """They are those of the metric itself, updated with the values that are present as single samples.

    One of three batches has no value, and one device of another has none.
    """
    make, output, label, classes_last = VALUES[name]
    label = label.copy()
    label[np.random.RandomState(6).rand(*label.shape) < 0.6] = NAN
    label[: 6 * cut] = NAN
    known = np.isfinite(label)
    values = output[known] if classes_last is None else output.transpose(classes_last)[known]
    expected = M.Accuracy() if isinstance(make(), M.Accuracy) else make()
    expected.update([mx.nd.array(label[known])], [mx.nd.array(values)])
    got = expected.get()
    numbers = got if isinstance(got[0], float) else np.ravel(got[1])
    parts = [slice(4, 8), slice(4), slice(8, 12)] if cut else [slice(12)]
    metrics = {"m": MetricSpec(make(), "y", "label")}
    spec = TaskSpec(outputs="y", labels=[LabelSpec("label", missing="nan")], metrics=metrics)
    estimator = MultiEstimator(gluon.nn.HybridLambda("identity"), spec, context=TWO if cut else ONE)
    found = estimator.evaluate([[output[part], label[part]] for part in parts], [])
    np.testing.assert_allclose([found[each] for each in found if each.startswith("m")], numbers, rtol=1e-5)


def test_each_pair_of_a_metric_has_its_own_missing_labels() -> None:
    one, two = FIRST, probabilities(12, 5, axis=1)
    a, b = NUMBERS.copy(), whole_numbers(12, classes=5)
    a[::2, 1], a[3], b[5:] = NAN, NAN, NAN
    spec = TaskSpec(
        inputs=["one", "two"], outputs=["one", "two"],
        labels=[LabelSpec(name, missing="nan") for name in "ab"],
        metrics={"m": MetricSpec(M.Accuracy(), ["one", "two"], ["a", "b"])},
    )  # fmt: skip
    net = gluon.nn.HybridLambda(lambda F, one, two: (F.identity(one), F.identity(two)))
    batches = [[array[i : i + 6] for array in (one, two, a, b)] for i in (0, 6)]
    right = np.append((one.argmax(axis=1) == a)[np.isfinite(a)], (two.argmax(axis=1) == b)[:5])
    np.testing.assert_allclose(MultiEstimator(net, spec).evaluate(batches, [])["m"], right.mean())


def test_coverage_on_the_host() -> None:
    metric = Coverage()
    metric.update([mx.nd.array([1, 0, 1, 1]), mx.nd.array([0, 0])], [])
    assert metric.get() == ("coverage", 0.5)
