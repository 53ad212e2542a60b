"""Metrics of torchmetrics: their figures are those of the whole pass."""

from collections.abc import Callable
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
from tests.common.specs import CE
from tests.common.weighted_losses import Shaped

RANDOM = np.random.RandomState(1)
N = 30
X, THREE = RANDOM.randn(N, 3).astype("float32"), np.arange(N) % 3
TWO, REAL = RANDOM.randint(0, 2, N), RANDOM.randn(N, 2).astype("float32")
TOKENS = RANDOM.randint(0, 3, (N, 4))
MADE: dict[str, tuple[Callable[[], Any], tuple[int, ...], np.ndarray]] = {
    "sums": (lambda: classification.MulticlassF1Score(3), (3,), THREE),
    "kept arrays": (lambda: classification.MulticlassAUROC(3), (3,), THREE),
    "labels of another shape": (lambda: classification.MulticlassAccuracy(3), (3,), THREE[:, None]),
    "one score": (lambda: classification.BinaryAUROC(), (1,), TWO[:, None]),
    "tokens": (lambda: classification.MulticlassAccuracy(3), (3, 4), TOKENS),
    "real values": (lambda: regression.MeanSquaredError(), (2,), REAL),
}


def estimator(
    metric: Any, shape: tuple[int, ...] = (3,), world: World = ALONE, **options: Any
) -> MultiEstimator:
    net = Shaped(shape)
    net.initialize(ByShape(0))
    net.hybridize()
    loss = LossSpec(lambda o: o.reshape((0, -1)).sum(axis=1), "o")
    spec = TaskSpec(outputs="o", labels=["y"], losses={"l": loss}, metrics={"m": metric})
    return MultiEstimator(net, spec, world=world, **options)


def in_batches(labels: np.ndarray) -> list[Any]:
    return [[X[i : i + 7], labels[i : i + 7].astype("float32")] for i in range(0, N, 7)]


@pytest.mark.parametrize("name", MADE)
def test_a_figure_is_that_of_the_whole_pass(name: str) -> None:
    make, shape, labels = MADE[name]
    ours = estimator(MetricSpec(make(), "o", "y"), shape)
    figure = ours.evaluate(in_batches(labels))["m"]
    outputs = torch.from_numpy(ours.predict(X)["o"])
    target = torch.from_numpy(labels if labels.dtype == "float32" or len(shape) > 1 else labels.ravel())
    metric = make()
    metric.update(outputs.reshape(target.shape) if shape == (1,) else outputs, target)
    np.testing.assert_allclose(figure, float(metric.compute()), rtol=1e-6)


def test_training_on_torch() -> None:
    """Both stages have a copy of their own, and the metric that was declared stays as it was."""
    metric = classification.MulticlassAccuracy(3, average="micro")
    net = Shaped((3,))
    net.initialize(ByShape(0))
    net.hybridize()
    spec = TaskSpec(
        outputs="o",
        labels=["y"],
        losses={"y": LossSpec(CE, "o", "y")},
        metrics={"m": metric, "own": MetricSpec("accuracy")},
    )
    ours = MultiEstimator(net, spec, engine="torch", context="cpu")
    history = ours.fit(in_batches(THREE), in_batches(THREE), epochs=2)
    for stage in ("train", "val"):
        np.testing.assert_allclose(history[f"{stage}_m"], history[f"{stage}_own"], rtol=1e-6)
    assert metric.update_count == 0 and ours.direction("val_m") == "max"


def test_several_figures() -> None:
    recall = classification.MulticlassRecall(3, average=None)
    ours = estimator(torchmetrics.ClasswiseWrapper(recall, labels=["a", "b", "c"]))
    figures = ours.evaluate(in_batches(THREE))
    named = estimator(MetricSpec(recall, "o", "y", names=["a", "b", "c"])).evaluate(in_batches(THREE))
    assert [figures[f"m.multiclassrecall_{name}"] for name in "abc"] == [named[f"m.{name}"] for name in "abc"]
    assert ours.direction("val_m.multiclassrecall_a") == "max"
    assert estimator(regression.MeanSquaredError(), (2,)).direction("train_m") == "min"


REFUSED = [
    (
        classification.MulticlassRecall(3, average=None),
        "TorchMetric returns 3 figures; give names=",
    ),
    (classification.MulticlassConfusionMatrix(3), "a figure is a number"),
    (
        torchmetrics.MetricCollection([classification.MulticlassRecall(3)]),
        "is a MetricCollection; declare each of its metrics by itself",
    ),
    (
        MetricSpec(classification.MulticlassRecall(3), "o", "y", sample_weight="y"),
        "sample_weight is passed to functions, and MulticlassRecall is none",
    ),
]


@pytest.mark.parametrize(("metric", "match"), REFUSED)
def test_what_is_refused(metric: Any, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        estimator(metric).fit(in_batches(THREE), epochs=1)


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
