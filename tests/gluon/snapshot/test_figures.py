"""The metrics of a stage continue where they were saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.nets import normed_heads
from tests.common.specs import CE, L2

from .runs import begin, figures, make_batches, make_estimator, train

import mxnet as mx  # isort: skip


def carry_over(folder: Path, one: Any, other: Any, stage: str = "train", divisible: bool = True) -> list[str]:
    """Write the figures of one estimator, and load them in another; return the metrics that start anew."""
    snapshot = one._engine.snapshot
    snapshot.write_tree(folder, "stage", figures(one, stage).state())
    begin(other)
    lost: list[str] = figures(other, stage).load(snapshot.read_tree(folder, "stage"), divisible)
    return lost


def evaluate(estimator: Any, batches: list[Any]) -> None:
    for batch in batches:
        estimator._engine.evaluate_batch(batch)


def test_labels_that_were_counted_before_a_resume_are_named(tmp_path: Path) -> None:
    one, two, batches = make_estimator(), make_estimator(), make_batches([8] * 4)
    batches[2][1][:] = -1
    train(one, batches[:3])
    carry_over(tmp_path, one, two)
    with pytest.raises(DataError, match="held 8 values"):
        train(two, batches[3:])
        figures(two).read()


def test_sums_do_not_depend_on_the_batch_that_a_resumed_run_begins_with(tmp_path: Path) -> None:
    """With as many samples as classes, a new graph does not know which of them is the length of an axis."""
    batches, net = make_batches([7] * 9 + [3] + [7] * 9), normed_heads()
    net.initialize()
    # of real numbers, whose sums are not exact
    metrics = {kind: MetricSpec(mx.metric.create(kind), "size", "size") for kind in ("mae", "mse", "rmse")}
    losses = {"digit": CE, "size": L2}
    whole, first, second = (make_estimator(net=net, losses=losses, metrics=metrics) for _ in range(3))
    evaluate(whole, batches)
    evaluate(first, batches[:9])
    carry_over(tmp_path, first, second, "evaluate")
    evaluate(second, batches[9:])
    assert figures(second, "evaluate").read() == figures(whole, "evaluate").read()


def scored(metric: Any, transform: Any = None) -> MultiEstimator:
    """Return an estimator that measures the scores of its batches."""
    metrics = {"m": MetricSpec(metric, "out", "l", transform=transform)}
    spec = TaskSpec(
        inputs=["o"], outputs=["out"], labels=["l"], metrics=metrics, forward=lambda net, slots: slots["o"]
    )
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    return MultiEstimator(net, spec)


def scores(*seeds: int) -> list[Any]:
    random = [np.random.RandomState(seed) for seed in seeds]
    return [(each.rand(8, 2).astype("float32"), each.randint(0, 2, 8).astype("float32")) for each in random]


class Counting(mx.metric.EvalMetric):
    """A metric that is updated batch by batch: how often."""

    def __init__(self) -> None:
        super().__init__("counting")

    def update(self, labels: Any, preds: Any) -> None:
        self.sum_metric, self.num_inst = self.sum_metric + 1, 1


class WithState(Counting):
    """One that can be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self.sum_metric}

    def load_state_dict(self, state: Any) -> None:
        self.sum_metric, self.num_inst = state["sum"], 1


METRICS = [
    mx.metric.Accuracy, lambda: mx.metric.TopKAccuracy(2), mx.metric.F1, mx.metric.MCC, mx.metric.PCC,
    lambda: mx.metric.Perplexity(None), lambda: mx.metric.PearsonCorrelation(),
    lambda: mx.metric.CompositeEvalMetric([mx.metric.CompositeEvalMetric(["acc"]), mx.metric.F1()]),
    lambda: mx.metric.CustomMetric(lambda label, pred: float(np.median(pred[:, 1]))), WithState,
]  # fmt: skip


@pytest.mark.parametrize("make", METRICS)
def test_every_metric_continues_exactly(tmp_path: Path, make: Any) -> None:
    one_column = isinstance(make(), mx.metric.PearsonCorrelation)
    transform = (lambda out, label: (label, out[:, 1])) if one_column else None
    whole, first, second = (scored(make(), transform) for _ in range(3))
    evaluate(whole, scores(0, 1, 2, 3))
    evaluate(first, scores(0, 1))
    assert carry_over(tmp_path, first, second, "evaluate") == []
    evaluate(second, scores(2, 3))
    values = figures(second, "evaluate").read()
    assert values == figures(whole, "evaluate").read() and np.isfinite(list(values.values())).all()


@pytest.mark.parametrize(("make", "divisible"), [(Counting, True), (WithState, False)])
def test_a_metric_that_cannot_go_on_is_named_and_starts_from_zero(
    tmp_path: Path, make: Any, divisible: bool
) -> None:
    one, two = scored(make()), scored(make())
    evaluate(one, scores(0))
    assert carry_over(tmp_path, one, two, "evaluate", divisible) == ["m"]
    assert np.isnan(figures(two, "evaluate").read()["m"])


@pytest.mark.parametrize("lengths", [(3, 1, 2), (1, 3, 1)])
def test_sums_go_on_after_sentences_of_another_length(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    """A batch of single tokens counts its labels in another way."""
    metrics = {"accuracy": MetricSpec(mx.metric.Accuracy(axis=2), "out", "y")}
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(CE, "out", "y")}, metrics=metrics)
    estimators = []
    for _ in range(2):
        mx.random.seed(1)
        net = mx.gluon.nn.Dense(3, flatten=False, in_units=5)
        net.initialize()
        estimators.append(MultiEstimator(net, spec, TrainerSpec(".*", "sgd")))
    whole, resumed = estimators
    random = np.random.RandomState(0)
    batches = [
        (random.randn(4, n, 5).astype("float32"), random.randint(0, 3, (4, n)).astype("float32"))
        for n in lengths
    ]
    train(whole, batches)
    train(resumed, batches[:1])
    carry_over(tmp_path, resumed, resumed)
    train(resumed, batches[1:], 1)
    assert figures(resumed).read() == figures(whole).read()
