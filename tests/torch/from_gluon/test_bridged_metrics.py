"""Metrics of MXNet on tensors, beyond those of `tests.common.whole_pass`: names, options, the user's own."""

from typing import Any

import numpy as np
import pytest
import torch

from multifit import MetricSpec, TaskSpec
from multifit.engines.scale import Scale
from multifit.gluon.compat import mx
from multifit.metrics import BinaryAccuracy
from multifit.torch.batch import Batch
from multifit.torch.figures import StageFigures
from multifit.torch.stage_metric import declared_metrics
from multifit.torch.step import StepResult
from tests.torch.from_gluon.bridges import bridged

from gluoncv.utils.metrics.segmentation import SegmentationMetric  # isort: skip

metric = mx.metric
R = np.random.RandomState(0)
N = 12
SCORES, CLASSES = R.rand(N, 3).astype("float32"), R.randint(0, 3, N)
NUMBERS, TRUTH = R.randn(N, 2).astype("float32"), R.randn(N, 2).astype("float32")
LOGITS, BITS = R.randn(N).astype("float32"), R.randint(0, 2, N)
MAPS, PIXELS = SCORES.reshape(3, 2, 2, 3).transpose(0, 3, 1, 2).copy(), CLASSES.reshape(3, 2, 2) - 1
ERROR = np.abs(TRUTH - NUMBERS)


class Largest(metric.EvalMetric):
    """The largest error so far, and the number of updates; updated batch by batch."""

    def __init__(self) -> None:
        super().__init__("largest")

    def reset(self) -> None:
        self.found, self.updates = 0.0, 0

    def update(self, labels: Any, preds: Any) -> None:
        assert all(isinstance(each, mx.nd.NDArray) for each in (*labels, *preds))
        self.found = max(self.found, float((labels[0] - preds[0]).abs().max().asscalar()))
        self.updates += 1

    def get(self) -> Any:
        return ["error", "updates"], [self.found, self.updates]

    def state_dict(self) -> Any:
        return {"found": self.found, "updates": self.updates}

    def load_state_dict(self, state: Any) -> None:
        self.found, self.updates = state["found"], state["updates"]


class OutputsFirst(Largest):
    """The same, which takes the outputs first."""

    def update(self, outputs: Any, labels: Any) -> None:  # type: ignore[override]
        super().update(labels, outputs)


class Own(metric.MAE):
    """A metric of MXNet's with another name."""


class Plain(metric.EvalMetric):
    """A metric without states."""

    def update(self, labels: Any, preds: Any) -> None:
        """Measure nothing."""


class Stage:
    """What the bridge makes of a metric, and its figures."""

    def __init__(self, given: Any, **spec: Any) -> None:
        metrics = {"m": MetricSpec(given, "y", "y", **spec)}
        setup, _ = bridged(mx.gluon.nn.Dense(2), TaskSpec(outputs=["y"], labels=["y"], metrics=metrics))
        self.spec = setup.spec
        self.figures = StageFigures(self.spec, declared_metrics(self.spec)["evaluate"], stage="evaluate")
        self.metrics = self.figures.metrics

    def add(self, labels: np.ndarray, outputs: np.ndarray) -> None:
        batch = Batch(raw=None, samples=len(labels), slots={"y": torch.from_numpy(labels)})
        batch.total = len(labels)
        result = StepResult(self.spec, batch, {"y": torch.from_numpy(outputs)}, scale=Scale({}, {}, {}))
        self.figures.add(result)


def figures(given: Any, labels: np.ndarray, outputs: np.ndarray, **spec: Any) -> dict[str, float]:
    """Return the figures of a pass in three batches."""
    stage, count = Stage(given, **spec), len(labels)
    for rows in (slice(0, 1), slice(1, count // 2), slice(count // 2, count)):
        stage.add(labels[rows], outputs[rows])
    return stage.figures.read()


COLUMN = CLASSES.reshape(N, 1), SCORES.reshape(N, 1, 3)
ALIKE: dict[str, tuple[Any, Any, Any]] = {
    "accuracy of an axis": (metric.Accuracy(axis=-1), *COLUMN),
    "binary accuracy of a threshold": (BinaryAccuracy(threshold=0.1), BITS, LOGITS),
    "a subclass": (Own(), TRUTH, NUMBERS),
    "its own output": (metric.MAE(output_names=["y"]), TRUTH, NUMBERS),
    "a segmentation's": (SegmentationMetric(3), PIXELS, MAPS),
}


@pytest.mark.parametrize("name", ALIKE)
def test_figures_are_mxnets_of_the_whole_pass(name: str) -> None:
    made, labels, outputs = ALIKE[name]
    found = figures(made, labels, outputs)
    made.reset()
    made.update([mx.nd.array(labels)], [mx.nd.array(outputs)])
    expected = [each for each in made.get() if not isinstance(each, str)]
    assert list(found.values()) == pytest.approx(expected, rel=1e-5)


COMPOSITE = metric.CompositeEvalMetric
NAMED: dict[str, tuple[Any, dict[str, Any], dict[str, float]]] = {
    "in each other": (
        COMPOSITE([metric.MAE(), COMPOSITE([Own("own")])]), {}, {"m.mae": ERROR.mean(), "m.own": ERROR.mean()}
    ),
    "one": (COMPOSITE([metric.MAE()]), {}, {"m": ERROR.mean()}),
    "names": (
        COMPOSITE([metric.MAE(), metric.MSE()]), {"names": ["a", "b"]},
        {"m.a": ERROR.mean(), "m.b": (ERROR**2).mean()},
    ),
    "a name": ("rmse", {}, {"m": (ERROR**2).mean() ** 0.5}),
    "of scikit-learn": ("sklearn.mean_absolute_error", {}, {"m": ERROR.mean()}),
    "of the user": (Largest(), {}, {"m.error": ERROR.max(), "m.updates": 3}),
    "outputs first": (
        OutputsFirst(), {"transform": lambda *both: both}, {"m.error": ERROR.max(), "m.updates": 3}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_figures_have_their_names(name: str) -> None:
    given, options, expected = NAMED[name]
    found = figures(given, TRUTH, NUMBERS, **options)
    assert list(found) == list(expected) and found == pytest.approx(expected, rel=1e-5)


def test_names_that_mxnet_lacks_are_those_of_tensors() -> None:
    assert Stage("mean_iou").spec.metrics["m"].metric == "mean_iou"


def test_a_metric_of_the_users_own_is_copied_and_has_its_states() -> None:
    mine = Largest()
    stage, again = Stage(mine), Stage(mine)
    stage.add(TRUTH, NUMBERS)
    again.figures.load(stage.figures.state())
    assert again.figures.read()["m.updates"] == 1
    (first,) = stage.metrics
    assert first.fork().metric.metric is not first.metric.metric and first.direction is None
    with pytest.raises(AttributeError):
        _ = first.metric.nothing
    assert not hasattr(Stage(Plain("plain")).metrics[0].metric, "state_dict")


def traced(output: Any, label: Any) -> Any:
    return label, output.slice_axis(axis=1, begin=0, end=2)


def by_numbers(output: Any, label: Any) -> Any:
    return [label], [mx.nd.array(output.asnumpy()[:, :2])]


def mean_error(labels: Any, outputs: Any) -> float:
    return float(np.abs(labels - outputs).mean())


@pytest.mark.parametrize("transform", [traced, by_numbers])
@pytest.mark.parametrize("given", [metric.MAE(), mean_error, Largest()], ids=["MAE", "function", "own"])
def test_transforms_are_traced_or_run_with_mxnet(given: Any, transform: Any) -> None:
    outputs = np.concatenate([NUMBERS, NUMBERS], axis=1)
    stage = Stage(given, transform=transform)
    stage.add(TRUTH, outputs)
    expected = ERROR.max() if isinstance(given, Largest) else ERROR.mean()
    assert next(iter(stage.figures.read().values())) == pytest.approx(expected, rel=1e-5)
    if not isinstance(given, Largest):
        assert stage.metrics[0].term.spec.transform._is_traced == (transform is traced)
