"""Metrics of MXNet on torch, beyond those of `tests.common.whole_pass`: names, options, the user's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, Every, LossSpec, MetricSpec, MultiEstimator, TaskSpec
from multifit.gluon.compat import mx
from multifit.metrics import BinaryAccuracy

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


class OutputsFirst(Largest):
    """The same, which takes the outputs first."""

    def update(self, outputs: Any, labels: Any) -> None:  # type: ignore[override]
        super().update(labels, outputs)


class Own(metric.MAE):
    """A metric of MXNet's with another name."""


def figures(given: Any, labels: np.ndarray, outputs: np.ndarray, **spec: Any) -> dict[str, float]:
    """Return the figures of a pass in three batches, of a net that returns its input."""
    metrics = {"m": MetricSpec(given, "y", "y", **spec)}
    declared = TaskSpec(inputs=["x"], outputs=["y"], labels=["y"], metrics=metrics, losses={})
    net = mx.gluon.nn.HybridLambda(lambda F, x: F.identity(x))
    data = [(outputs[rows], labels[rows]) for rows in (slice(0, 1), slice(1, 2), slice(2, N))]
    return dict(MultiEstimator(net, declared, engine="torch").evaluate(data, event_handlers=[]))


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


def traced(output: Any, label: Any) -> Any:
    return label, output.slice_axis(axis=1, begin=0, end=2)


def by_numbers(output: Any, label: Any) -> Any:
    return [label], [mx.nd.array(output.asnumpy()[:, :2])]


def mean_error(labels: Any, outputs: Any) -> float:
    return float(np.abs(labels - outputs).mean())


@pytest.mark.parametrize("transform", [traced, by_numbers])
@pytest.mark.parametrize("given", [metric.MAE(), mean_error, Largest()], ids=["MAE", "function", "own"])
def test_transforms_are_traced_or_run_with_mxnet(given: Any, transform: Any) -> None:
    found = figures(given, TRUTH, np.concatenate([NUMBERS, NUMBERS], axis=1), transform=transform)
    expected = ERROR.max() if isinstance(given, Largest) else ERROR.mean()
    assert next(iter(found.values())) == pytest.approx(expected, rel=1e-5)


def test_a_name_that_mxnet_lacks() -> None:
    of_gluoncv = figures(SegmentationMetric(3), PIXELS, MAPS)
    assert figures("mean_iou", PIXELS, MAPS)["m"] == pytest.approx(of_gluoncv["m.mIoU"], rel=1e-5)


class Saved(Largest):
    """One that can be saved."""

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def test_a_metric_of_the_users_own_is_used_twice_and_resumed(tmp_path: Path) -> None:
    data = [(NUMBERS[:1], TRUTH[:1])] * 3

    def fit(resume: Path | None = None) -> dict[str, list[float]]:
        own, net = Saved(), mx.gluon.nn.Dense(NUMBERS.shape[1])
        metrics = {"m": MetricSpec(own, "y", "y"), "k": MetricSpec(own, "y", "y")}
        loss = {"l": LossSpec(mx.gluon.loss.L2Loss(), "y", "y")}
        spec = TaskSpec(inputs=["x"], outputs=["y"], labels=["y"], metrics=metrics, losses=loss)
        saving = CheckpointHandler(tmp_path / "saved", Every(2, "batch"), seed=1)
        estimator = MultiEstimator(net, spec, engine="torch")
        return dict(estimator.fit(data, epochs=1, event_handlers=[saving], resume=resume))

    through = fit()
    assert through["train_m.updates"] == through["train_k.updates"] == [3]
    half = min((tmp_path / "saved").iterdir())
    assert fit(half)["train_m.updates"] == [3]
