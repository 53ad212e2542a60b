"""The metrics of a stage continue where they were saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.gluon.check.first_batch import run_batch
from multifit.gluon.metrics.host import Joining, Measured
from multifit.gluon.metrics.stage_figures import StageFigures
from multifit.gluon.metrics.stage_metric import StageMetric
from multifit.gluon.session import Session
from multifit.gluon.snapshot.figures import load_figures, save_figures
from multifit.gluon.snapshot.tree import read_tree, write_tree
from multifit.spec.names import Ref
from tests.common.nets import normed_heads
from tests.common.specs import CE, L2
from tests.engines import new_engine

from .runs import make_batches, make_engine, train

import mxnet as mx  # isort: skip


def reread(folder: Path, stage: StageFigures) -> Any:
    write_tree(folder, "stage", save_figures(stage))
    return read_tree(folder, "stage")


def test_labels_that_were_counted_before_a_resume_are_named(tmp_path: Path) -> None:
    one, two, batches = make_engine(), make_engine(), make_batches([8] * 4)
    batches[2][1][:] = -1
    train(one, batches[:3])
    state = reread(tmp_path, one.stages["train"].figures)
    train(two, batches[:1])
    two.stages["train"].reset()
    load_figures(two.stages["train"].figures, state)
    train(two, batches[3:])
    for _ in range(2):
        with pytest.raises(DataError, match="held 8 values"):
            two.stages["train"].figures.read()


def test_sums_do_not_depend_on_the_batch_that_a_resumed_run_begins_with(tmp_path: Path) -> None:
    batches, net = make_batches([7] * 9 + [3] + [7] * 9), normed_heads()
    net.initialize()
    # of real numbers, whose sums are not exact
    metrics = {kind: MetricSpec(mx.metric.create(kind), "size", "size") for kind in ("mae", "mse", "rmse")}
    losses = {"digit": CE, "size": L2}
    whole, first, second = (make_engine(net=net, losses=losses, metrics=metrics) for _ in range(3))
    evaluate(whole, batches)
    evaluate(first, batches[:9])
    load_figures(second.stages["evaluate"].figures, reread(tmp_path, first.stages["evaluate"].figures))
    evaluate(second, batches[9:])
    one, other = (engine.stages["evaluate"] for engine in (whole, second))
    assert one.figures.sums.vectors.keys() == other.figures.sums.vectors.keys()
    assert one.figures.read() == other.figures.read()


def evaluate(engine: Session, batches: list[Any]) -> None:
    for batch in batches:
        split = engine.splitter("evaluate").split(batch)
        engine.stages["evaluate"].measure(run_batch(engine.stages["evaluate"], split, engine.state))


def metric_stage(metric: Any, transform: Any = None) -> StageFigures:
    declared = MetricSpec(metric, "o", "l", transform=transform)
    spec = TaskSpec(outputs=["o"], labels=["l"], metrics={"m": declared})
    return StageFigures(spec, [StageMetric(spec.metric_terms[0], metric)])


def feed(stage: Any, seed: int) -> None:
    random = np.random.RandomState(seed)
    label, output = mx.nd.array(random.randint(0, 2, 8)), mx.nd.array(random.rand(8, 2))
    stage.sums.count(8, {})
    measured = Measured([{Ref("outputs", "o"): output, Ref("labels", "l"): label}], [{}], Joining([8], 0))
    stage.metrics[0].update(measured, stage.sums)


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
    whole, first, second = (metric_stage(make(), transform=transform) for _ in range(3))
    for seed in range(4):
        feed(whole, seed)
    for seed in (0, 1):
        feed(first, seed)
    load_figures(second, reread(tmp_path, first))
    for seed in (2, 3):
        feed(second, seed)
    assert second.read() == whole.read()
    assert all(np.isfinite(value) for value in second.read().values())


@pytest.mark.parametrize(("make", "divisible"), [(Counting, True), (WithState, False)])
def test_a_metric_that_cannot_go_on_is_named_and_starts_from_zero(
    tmp_path: Path, make: Any, divisible: bool
) -> None:
    one, two = (metric_stage(make()) for _ in range(2))
    for stage in (one, two):
        stage.metrics[0].metric.reset()
    feed(one, 0)
    assert load_figures(two, reread(tmp_path, one), divisible) == ["m"]
    assert not two.metrics[0].measured
    assert np.isnan(two.metrics[0].figures()["m"])


def token_engine() -> Any:
    metrics = {"accuracy": MetricSpec(mx.metric.Accuracy(axis=2), "out", "y")}
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(CE, "out", "y")}, metrics=metrics)
    mx.random.seed(1)
    return new_engine(mx.gluon.nn.Dense(3, flatten=False, in_units=5), spec, TrainerSpec(".*", "sgd"))


@pytest.mark.parametrize("lengths", [(3, 1, 2), (1, 3, 1)])
def test_sums_go_on_after_sentences_of_another_length(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    """A batch of single tokens counts its labels in another way."""
    whole, resumed, random = token_engine(), token_engine(), np.random.RandomState(0)
    batches = [
        (random.randn(4, n, 5).astype("float32"), random.randint(0, 3, (4, n)).astype("float32"))
        for n in lengths
    ]
    train(whole, batches)
    train(resumed, batches[:1])
    saved = reread(tmp_path, resumed.stages["train"].figures)
    resumed.restart()
    load_figures(figures := resumed.stages["train"].figures, saved)
    train(resumed, batches[1:], 1)
    assert figures.read() == whole.stages["train"].figures.read()
