"""Metrics of torchmetrics, with both engines: their figures are those of the whole pass."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torchmetrics import classification, regression

from multifit import CheckpointHandler, Every, LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec
from multifit.distributed import ALONE, World
from tests.common.joint_training import ByShape
from tests.common.ranks import run_ranks
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.weighted_losses import Shaped

RANDOM = np.random.RandomState(1)
N = 30
X, THREE = RANDOM.randn(N, 3).astype("float32"), np.arange(N) % 3
TWO, REAL = RANDOM.randint(0, 2, N), RANDOM.randn(N, 2).astype("float32")
Recall = partial(classification.MulticlassRecall, 3, average=None)
MADE: dict[str, tuple[Callable[[], Any], tuple[int, ...], np.ndarray]] = {
    "sums": (partial(classification.MulticlassF1Score, 3), (3,), THREE),
    "kept arrays": (partial(classification.MulticlassAUROC, 3), (3,), THREE),
    "labels of another shape": (partial(classification.MulticlassAccuracy, 3), (3,), THREE[:, None]),
    "one score": (classification.BinaryAUROC, (1,), TWO[:, None]),
    "tokens": (partial(classification.MulticlassAccuracy, 3), (3, 4), RANDOM.randint(0, 3, (N, 4))),
    "real values": (regression.MeanSquaredError, (2,), REAL),
}


def estimator(metric: Any, shape: Any = (3,), world: World = ALONE, **options: Any) -> MultiEstimator:
    net = Shaped(shape)
    net.initialize(ByShape(0))
    net.hybridize()
    loss = LossSpec(lambda o: o.reshape((0, -1)).sum(axis=1), "o")
    spec = TaskSpec(outputs="o", labels=["y"], losses={"l": loss}, metrics={"m": metric})
    return MultiEstimator(net, spec, world=world, **options)


def in_batches(labels: np.ndarray) -> list[Any]:
    return [[X[i : i + 7], labels[i : i + 7].astype("float32")] for i in range(0, N, 7)]


@pytest.mark.parametrize("engine", ["mxnet", "torch"])
@pytest.mark.parametrize("name", MADE)
def test_a_figure_is_that_of_the_whole_pass(name: str, engine: str) -> None:
    """Each stage has a copy of its own, and the metric that was declared stays as it was."""
    make, shape, labels = MADE[name]
    declared, metric = make(), make()
    ours = estimator(MetricSpec(declared, "o", "y"), shape, engine=engine)
    history = ours.fit(in_batches(labels), in_batches(labels), epochs=1)
    figure = ours.evaluate(in_batches(labels))["m"]
    outputs = torch.from_numpy(ours.predict(X)["o"])
    target = torch.from_numpy(labels if labels.dtype == "float32" or len(shape) > 1 else labels.ravel())
    metric.update(outputs.reshape(target.shape) if shape == (1,) else outputs, target)
    np.testing.assert_allclose([history["val_m"][-1], figure], float(metric.compute()), rtol=1e-6)
    assert declared.update_count == 0
    assert ours.direction("val_m") == ("min" if name == "real values" else "max")


def test_several_figures() -> None:
    classwise = estimator(torchmetrics.ClasswiseWrapper(Recall(), labels=["a", "b", "c"]))
    figures = classwise.evaluate(in_batches(THREE))
    named = estimator(MetricSpec(Recall(), "o", "y", names=["a", "b", "c"])).evaluate(in_batches(THREE))
    assert [figures[f"m.multiclassrecall_{name}"] for name in "abc"] == [named[f"m.{name}"] for name in "abc"]
    assert classwise.direction("val_m.multiclassrecall_a") == "max"


REFUSED: dict[str, Any] = {
    "MulticlassRecall returns 3 figures; give names=": Recall(),
    "a figure is a number": classification.MulticlassConfusionMatrix(3),
    "is a MetricCollection; declare each of its metrics by itself": torchmetrics.MetricCollection([Recall()]),
    "sample_weight is passed to functions, and MulticlassRecall is none": MetricSpec(
        Recall(), "o", "y", sample_weight="y"
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    with pytest.raises(SpecError, match=message):
        estimator(REFUSED[message]).fit(in_batches(THREE), epochs=1)


@pytest.mark.parametrize("name", ["sums", "kept arrays"])
def test_a_run_resumes_in_the_middle_of_an_epoch(name: str, tmp_path: Path) -> None:
    make, shape, labels = MADE[name]

    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        ours = estimator(MetricSpec(make(), "o", "y"), shape)
        saving = CheckpointHandler(folder, Every(2, "batch"), seed=7)
        ours.fit(in_batches(labels), epochs=2, event_handlers=[saving, *handlers], **options)
        return ours

    assert_resumes_bit_for_bit(run, tmp_path, 4, 7)


def test_ranks_measure_what_one_process_does() -> None:
    make, shape, labels = MADE["kept arrays"]

    def evaluate(world: World) -> float:
        return estimator(MetricSpec(make(), "o", "y"), shape, world).evaluate(in_batches(labels))["m"]

    assert run_ranks(2, evaluate) == [evaluate(ALONE)] * 2
