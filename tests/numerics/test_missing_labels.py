"""Labels that may be missing: as a hand-written loop over what is present."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec
from multifit.gluon.metrics.base import Coverage
from multifit.losses import SegmentationCELoss, SequenceCELoss
from tests.common.grids import TWO, pairwise
from tests.common.hand_loop import assert_trains_as_by_hand

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

PLAIN = {"learning_rate": 0.1}
SIZES = [8, 8, 8, 8, 5, 8, 8]
NAN = math.nan
L = gluon.loss


def inputs(dtype: str = "float32") -> list[Any]:
    random = np.random.RandomState(0)
    return [random.normal(size=(size, 5)).astype(dtype) for size in SIZES]


def rows_present(batch: int, size: int) -> Any:
    """All samples, some, but one, none, some, none again, some."""
    present = np.random.RandomState(batch).rand(size) < 0.6
    present[0] = True
    return {0: present | True, 2: np.arange(size) == 3, 3: present & False, 5: present & False}.get(
        batch, present
    )


def labels(draw: Callable[[Any, int], Any], dtype: str = "float32") -> list[Any]:
    return [draw(np.random.RandomState(9 + i), size).astype(dtype) for i, size in enumerate(SIZES)]


def dense(units: int, shape: tuple[int, ...] = (0, -1), dtype: str = "float32") -> Callable[[], Any]:
    class Net(gluon.nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.dense = gluon.nn.Dense(units, in_units=5, dtype=dtype)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.reshape(self.dense(x), shape)

    return Net


def own_loss(output: Any, label: Any) -> Any:
    return mx.nd.log(1 + mx.nd.square(output - label)).sum(axis=1)


def own_matrix(output: Any, label: Any) -> Any:
    return mx.nd.log(1 + mx.nd.square(output - label))


# the loss, the units of the output, how labels are drawn: for losses of whole samples
PER_SAMPLE: dict[str, tuple[Any, int, Any]] = {
    "classes": (L.SoftmaxCrossEntropyLoss(), 3, lambda r, n: r.randint(0, 3, n)),
    "probabilities": (L.SoftmaxCrossEntropyLoss(sparse_label=False), 3, lambda r, n: r.dirichlet([1] * 3, n)),
    "column": (L.SigmoidBCELoss(), 1, lambda r, n: r.randint(0, 2, (n, 1))),
    "KL": (L.KLDivLoss(from_logits=False), 3, lambda r, n: r.dirichlet([1, 1, 1], n)),
    "L2": (L.L2Loss(), 2, lambda r, n: r.normal(size=(n, 2))),
    "hinge": (L.HingeLoss(), 1, lambda r, n: r.randint(0, 2, n) * 2 - 1),
    "Poisson": (L.PoissonNLLLoss(), 1, lambda r, n: r.randint(0, 5, (n, 1))),
    "own": (own_loss, 2, lambda r, n: r.normal(size=(n, 2))),
    "own, a matrix": (own_matrix, 2, lambda r, n: r.normal(size=(n, 2))),
}
# one loss for each way of leaving out labels
FLOAT64 = {f"{name}, float64": PER_SAMPLE[name] for name in ("classes", "own, a matrix")}


def present_objective(fn: Any, select: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hand-written objective: the mean loss of what `select` returns as present."""

    def objective(net: Any, x: Any, y: Any) -> Any:
        output = net(x)
        chosen = select(output, y)
        if chosen is None:
            return (output * 0).sum()
        loss = fn(*chosen)
        return loss.sum() / len(chosen[0]) if loss.size > 1 else loss  # Gluon's Poisson loss is a mean

    return objective


def whole_rows(output: Any, label: Any) -> Any:
    kept = np.flatnonzero(np.isfinite(label.asnumpy().reshape(len(label), -1)).all(axis=1))
    return [a.take(mx.nd.array(kept)) for a in (output, label)] if kept.size else None


@pairwise("name", [*PER_SAMPLE, *FLOAT64])
def test_samples_without_a_label_are_left_out(name: str, devices: Any, hybrid: bool) -> None:
    fn, units, draw = {**PER_SAMPLE, **FLOAT64}[name]
    dtype = "float64" if name in FLOAT64 else "float32"
    ys = labels(draw, dtype)
    for i, y in enumerate(ys):
        y[~rows_present(i, len(y))] = NAN
    spec = TaskSpec(outputs="y", labels=[LabelSpec("y", missing="nan")], losses={"y": fn})
    batches = [list(pair) for pair in zip(inputs(dtype), ys)]
    objective = present_objective(fn, whole_rows)
    make = dense(units, dtype=dtype)
    assert_trains_as_by_hand(
        make, spec, batches, objective, devices, hybrid, options=PLAIN, by=lambda x: 1, optimizer="sgd"
    )


def cells(columns: int) -> Callable[..., Any]:
    """Select the values that are present, each with its score or its `columns` scores."""

    def select(output: Any, label: Any) -> Any:
        kept = np.flatnonzero(np.isfinite(label.asnumpy()).ravel())
        pair = output.reshape((-1, columns)), label.reshape((-1,) if columns > 1 else (-1, 1))
        return [a.take(mx.nd.array(kept)) for a in pair] if kept.size else None

    return select


class Unchanged(L.L2Loss):
    """A subclass that computes what its base does."""


class OwnMatrix(gluon.HybridBlock):
    """`own_matrix` as a part of the step graph."""

    def hybrid_forward(self, F: Any, output: Any, label: Any) -> Any:
        return F.log(1 + F.square(output - label))


def in_graph() -> Any:
    loss = OwnMatrix()
    loss.hybridize()
    return loss


CELLS: dict[str, tuple[Any, int, tuple[int, ...], int, Any]] = {
    "columns": (L.L2Loss(), 3, (0, -1), 1, lambda r, n: r.normal(size=(n, 3))),
    "a subclass": (Unchanged(), 3, (0, -1), 1, lambda r, n: r.normal(size=(n, 3))),
    "own": (own_matrix, 3, (0, -1), 1, lambda r, n: r.normal(size=(n, 3))),
    "own, maps": (in_graph(), 4, (0, 2, 2), 1, lambda r, n: r.normal(size=(n, 2, 2))),
    "answers": (L.SigmoidBCELoss(), 3, (0, -1), 1, lambda r, n: r.randint(0, 2, (n, 3))),
    "tokens": (L.SoftmaxCrossEntropyLoss(), 12, (0, -1, 4), 4, lambda r, n: r.randint(0, 4, (n, 3))),
}


@pytest.mark.parametrize("name", CELLS)
def test_single_values_are_left_out(name: str) -> None:
    fn, units, shape, columns, draw = CELLS[name]
    ys = labels(draw)
    for i, y in enumerate(ys):
        y[np.random.RandomState(i).rand(*y.shape) < (1.0 if i == 3 else 0.5)] = NAN
    spec = TaskSpec(outputs="y", labels=[LabelSpec("y", missing="nan")], losses={"y": fn})
    batches = [list(pair) for pair in zip(inputs(), ys)]
    # of a sample, a loss of one's own is the sum of its values, and a loss of Gluon's the mean
    factor = units if name.startswith("own") else 1
    objective = present_objective(lambda *pair: fn(*pair) * factor, cells(columns))
    assert_trains_as_by_hand(
        dense(units, shape), spec, batches, objective, TWO, True, options=PLAIN, by=lambda x: 1
    )


def test_pixels_are_left_out() -> None:
    """SegmentationCELoss is each sample's mean over its pixels, so samples without any do not count."""
    ys = labels(lambda r, n: r.randint(0, 3, (n, 2, 2)))
    for i, y in enumerate(ys):
        y[np.random.RandomState(i).rand(*y.shape) < 0.6] = NAN
    fn = SegmentationCELoss()

    def select(output: Any, label: Any) -> Any:
        known = np.nan_to_num(label.asnumpy(), nan=-1)
        kept = mx.nd.array(np.flatnonzero((known >= 0).any(axis=(1, 2))))
        return [output.take(kept), mx.nd.array(known).take(kept)]

    spec = TaskSpec(outputs="y", labels=[LabelSpec("y", missing="nan")], losses={"y": fn})
    batches = [list(pair) for pair in zip(inputs(), ys)]
    objective = present_objective(fn, select)
    assert_trains_as_by_hand(
        dense(12, (0, 3, 2, 2)), spec, batches, objective, TWO, True, options=PLAIN, by=lambda x: 1
    )


def distance(output: Any, first: Any, second: Any) -> Any:
    return mx.nd.abs(output.sum(axis=1) - first.sum(axis=1) - second)


def test_a_sample_counts_if_all_its_labels_are_present() -> None:
    """One label has a number for each sample that says where both its columns are."""
    random = np.random.RandomState(3)
    x, first, second = random.randn(6, 5), random.randn(6, 2), random.randn(6)
    known = np.array([1, 1, 0, 1, 1, 0])
    second[[1, 2]] = NAN
    batch = [array.astype("float32") for array in (x, first, second, known)]
    spec = TaskSpec(
        outputs="y", labels=[LabelSpec("a", missing="known"), LabelSpec("b", missing="nan"), "known"],
        losses={"y": LossSpec(distance, "y", ["a", "b"])},
    )  # fmt: skip
    net = dense(2)()
    net.initialize()
    estimator = MultiEstimator(net, spec)
    kept = [array[[0, 3, 4]] for array in batch]
    figures = [estimator.evaluate([each], []) for each in (batch, kept)]
    np.testing.assert_allclose(figures[0]["y"], figures[1]["y"], rtol=1e-6)
    assert (figures[0]["coverage_a"], figures[0]["coverage_b"]) == (4 / 6, 4 / 6)


def test_a_mask_that_is_none_leaves_all_samples_out() -> None:
    labels = [LabelSpec("a", missing="known"), "known"]
    spec = TaskSpec(outputs="y", labels=labels, losses={"y": LossSpec(gluon.loss.L2Loss(), "y", "a")})
    net = dense(2)()
    net.initialize()
    estimator = MultiEstimator(net, spec)
    x, a, known = (
        np.ones((6, 5), "float32"),
        np.ones((6, 2), "float32"),
        np.array([1, 1, 0, 1, 1, 0], "float32"),
    )
    once, twice = (
        estimator.evaluate(batches, []) for batches in ([(x, a, known)], [(x, a, known), (x, a, None)])
    )
    assert twice == pytest.approx({**once, "coverage_a": once["coverage_a"] / 2})
    assert MultiEstimator(net, spec).predict([(x, a, None)])["y"].shape == (6, 2)  # no mask is known yet


def test_sequences_count_as_a_whole() -> None:
    """One of two is present: the loss is its alone. A sequence that lacks a token is refused."""
    tokens = np.array([[1, 2, 0], [NAN, NAN, NAN]], "float32")
    spec = TaskSpec(
        outputs="y", labels=[LabelSpec("y", missing="nan"), "length"],
        losses={"y": LossSpec(SequenceCELoss(), "y", ["y", "length"])},
    )  # fmt: skip
    net = dense(12, (0, 3, 4))()
    net.initialize()
    batch = [np.ones((2, 5), "float32"), tokens, np.array([2, 2], "float32")]
    alone = [array[:1] for array in batch]
    figures = [MultiEstimator(net, spec).evaluate([each], [])["y"] for each in (batch, alone)]
    np.testing.assert_allclose(*figures, rtol=1e-6)
    tokens[1, 1:] = 1
    with pytest.raises(
        DataError, match='losses\\["y"\\]: 1 value of "y" is missing in samples that have others'
    ):
        MultiEstimator(net, spec).evaluate([batch], [])


def figure(spec: TaskSpec, batches: list[Any], units: int = 3, name: str = "y") -> float:
    """Return a figure of an evaluation of the net that returns its first `units` inputs."""
    net = gluon.nn.HybridLambda(lambda F, x: F.slice_axis(x, axis=1, begin=0, end=units))
    return MultiEstimator(net, spec).evaluate(batches, [])[name]


def with_gaps(*shape: int, seed: int = 5) -> np.ndarray:
    random = np.random.RandomState(seed)
    values = random.normal(size=shape).astype("float32")
    values[random.rand(*shape) < 0.4] = NAN
    return values


def test_a_value_counts_if_it_is_present_in_all_labels_of_a_loss() -> None:
    """Of a label with one value for each sample, that value is one of all columns."""
    x, a, b, c = inputs()[0], with_gaps(8, 3), with_gaps(8, 3, seed=6), with_gaps(8, seed=7)

    def loss(output: Any, a: Any, b: Any, c: Any) -> Any:
        return mx.nd.abs(output - a - b - c.reshape((-1, 1)))

    spec = TaskSpec(
        outputs="y", labels=[LabelSpec(name, missing="nan") for name in "abc"],
        losses={"y": LossSpec(loss, "y", ["a", "b", "c"])},
    )  # fmt: skip
    expected = np.nanmean(np.abs(x[:, :3] - a - b - c[:, None])) * 3
    np.testing.assert_allclose(figure(spec, [[x, a, b, c]]), expected, rtol=1e-5)


@pytest.mark.parametrize("missing", ["y", "other"])
def test_a_hybridized_loss_may_have_other_users(missing: str) -> None:
    """MXNet keeps a graph of it for the number of arguments of the first call."""
    x, loss = inputs()[0], L.L2Loss()
    loss.hybridize()
    values = {"y": np.ones((8, 3), "float32"), "other": np.ones((8, 3), "float32")}
    values[missing] = with_gaps(8, 3)
    spec = TaskSpec(
        outputs=["y", "other"], labels=[LabelSpec(n, missing="nan") if n == missing else n for n in values],
        losses={"y": loss, "other": loss},
    )  # fmt: skip
    net = gluon.nn.HybridLambda(lambda F, x: 2 * [F.slice_axis(x, axis=1, begin=0, end=3)])
    figures = MultiEstimator(net, spec).evaluate([[x, *values.values()]], [])
    for name, value in values.items():
        np.testing.assert_allclose(figures[name], np.nanmean((x[:, :3] - value) ** 2) / 2, rtol=1e-5)
    assert loss(mx.nd.ones((2, 3)), mx.nd.zeros((2, 3))).asnumpy().tolist() == [0.5, 0.5]


def test_a_loss_or_a_metric_that_takes_the_mask_gets_all_samples() -> None:
    x, y = inputs()[0], with_gaps(8, 3)
    known = np.isfinite(y).astype("float32")

    def error(output: Any, label: Any, mask: Any) -> Any:
        return (mx.nd.abs(output - label) * mask).sum(axis=1)

    loss = LossSpec(error, "y", ["y", "known"], normalize_by="known")
    metric = MetricSpec(
        lambda labels, output: np.average(np.abs(output - labels[0]), weights=labels[1]), "y", ["y", "known"]
    )
    spec = TaskSpec(
        outputs="y", labels=[LabelSpec("y", missing="known"), "known"], losses={"y": loss},
        metrics={"error": metric},
    )  # fmt: skip
    batch, expected = [x, np.nan_to_num(y, nan=7.0), known], np.nanmean(np.abs(x[:, :3] - y))
    for name in ("y", "error"):
        np.testing.assert_allclose(figure(spec, [batch], name=name), expected, rtol=1e-5)


def test_coverage_on_the_host() -> None:
    metric = Coverage()
    metric.update([mx.nd.array([1, 0, 1, 1]), mx.nd.array([0, 0])], [])
    assert metric.get() == ("coverage", 0.5)


def test_labels_of_different_widths_count_by_sample() -> None:
    x, a, b = inputs()[0], with_gaps(8, 1).repeat(2, axis=1), with_gaps(8, 1, seed=6).repeat(3, axis=1)

    def loss(output: Any, a: Any, b: Any) -> Any:
        return mx.nd.abs(output.sum(axis=1) - a.sum(axis=1) - b.sum(axis=1))

    spec = TaskSpec(
        outputs="y", labels=[LabelSpec(name, missing="nan") for name in "ab"],
        losses={"y": LossSpec(loss, "y", ["a", "b"])},
    )  # fmt: skip
    expected = np.nanmean(np.abs(x[:, :3].sum(axis=1) - a.sum(axis=1) - b.sum(axis=1)))
    np.testing.assert_allclose(figure(spec, [[x, a, b]]), expected, rtol=1e-5)
