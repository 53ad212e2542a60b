"""Metrics of MXNet on tensors: the figures of a pass in several batches are MXNet's of the whole pass."""

from typing import Any

import numpy as np
import pytest
import torch

from multifit import MetricSpec, SpecError, TaskSpec
from multifit.engines.scale import Scale
from multifit.gluon.compat import mx
from multifit.metrics import BinaryAccuracy
from multifit.torch.batch import Batch
from multifit.torch.figures import StageFigures
from multifit.torch.stage_metric import declared_metrics
from multifit.torch.step import StepResult
from tests.torch.from_gluon.bridges import bridged

metric = mx.metric
R = np.random.RandomState(0)
N = 12
SCORES, CLASSES = R.rand(N, 3).astype("float32"), R.randint(0, 3, N)
SHARES = (SCORES / SCORES.sum(axis=1, keepdims=True)).astype("float32")
TWO = R.rand(N, 2).astype("float32")
NUMBERS, TRUTH = R.randn(N, 2).astype("float32"), R.randn(N, 2).astype("float32")
LOGITS, BITS = R.randn(N).astype("float32"), R.randint(0, 2, N)


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


def of_mxnet(made: metric.EvalMetric, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
    made.reset()
    made.update([mx.nd.array(labels)], [mx.nd.array(outputs)])
    names, values = made.get()
    return dict(zip(names, values)) if isinstance(names, list) else {names: values}


def figures(given: Any, labels: np.ndarray, outputs: np.ndarray, **spec: Any) -> dict[str, float]:
    """Return the figures of three batches with what the bridge makes of a metric."""
    made = stage_of(given, **spec)
    for rows in (slice(0, 5), slice(5, 6), slice(6, N)):
        made.add(result_of(made, labels[rows], outputs[rows]))
    return made.read()


def stage_of(given: Any, **spec: Any) -> StageFigures:
    declared = TaskSpec(outputs=["y"], labels=["y"], metrics={"m": MetricSpec(given, "y", "y", **spec)})
    setup, _ = bridged(mx.gluon.nn.Dense(2), declared)
    made = StageFigures(setup.spec, declared_metrics(setup.spec)["evaluate"], stage="evaluate")
    made.spec_of_test = setup.spec  # type: ignore[attr-defined]
    return made


def result_of(made: Any, labels: np.ndarray, outputs: np.ndarray) -> Any:
    slots = {"y": torch.from_numpy(labels)}
    batch = Batch(raw=None, samples=len(labels), slots=slots)
    batch.total = len(labels)
    return StepResult(made.spec_of_test, batch, {"y": torch.from_numpy(outputs)}, scale=Scale({}, {}, {}))


STOCK: dict[str, tuple[Any, np.ndarray, np.ndarray]] = {
    "accuracy": (metric.Accuracy(), CLASSES, SCORES),
    "axis": (metric.Accuracy(axis=-1), CLASSES.reshape(N, 1), SCORES.reshape(N, 1, 3)),
    "top 2": (metric.TopKAccuracy(top_k=2), CLASSES, SCORES),
    "f1": (metric.F1(), BITS, TWO),
    "mcc": (metric.MCC(), BITS, TWO),
    "mae": (metric.MAE(), TRUTH, NUMBERS),
    "mse": (metric.MSE(), TRUTH, NUMBERS),
    "rmse": (metric.RMSE(), TRUTH, NUMBERS),
    "ce": (metric.CrossEntropy(), CLASSES, SHARES),
    "nll": (metric.NegativeLogLikelihood(), CLASSES, SHARES),
    "perplexity": (metric.Perplexity(ignore_label=1), CLASSES, SHARES),
    "pearson": (metric.PearsonCorrelation(), TRUTH[:, :1], NUMBERS[:, :1]),
    "pcc": (metric.PCC(), CLASSES, SCORES),
    "loss": (metric.Loss(), TRUTH, NUMBERS),
    "binary": (BinaryAccuracy(threshold=0.1), BITS, LOGITS),
    "a subclass": (Own(), TRUTH, NUMBERS),
    "its own output": (metric.MAE(output_names=["y"]), TRUTH, NUMBERS),
}


@pytest.mark.parametrize("name", STOCK)
def test_figures_are_mxnets_of_the_whole_pass(name: str):
    made, labels, outputs = STOCK[name]
    (expected,) = of_mxnet(made, labels, outputs).values()
    (found,) = figures(made, labels, outputs).values()
    assert found == pytest.approx(expected, rel=1e-5)


def test_several_metrics_in_one_have_their_names():
    both = metric.CompositeEvalMetric([metric.MAE(), metric.CompositeEvalMetric([Own("own")])])
    found = figures(both, TRUTH, NUMBERS)
    assert list(figures(metric.CompositeEvalMetric([metric.MAE()]), TRUTH, NUMBERS)) == ["m"]
    assert list(found) == ["m.mae", "m.own"] and found["m.mae"] == pytest.approx(found["m.own"], rel=1e-6)
    two = metric.CompositeEvalMetric([metric.MAE(), metric.MSE()])
    assert list(figures(two, TRUTH, NUMBERS, names=["a", "b"])) == ["m.a", "m.b"]
    from gluoncv.utils.metrics.segmentation import SegmentationMetric

    labels, outputs = CLASSES.reshape(3, 2, 2) - 1, SCORES.reshape(3, 2, 2, 3).transpose(0, 3, 1, 2).copy()
    segmentation = SegmentationMetric(3)
    segmentation.update([mx.nd.array(labels)], [mx.nd.array(outputs)])
    made = stage_of(segmentation)
    made.add(result_of(made, labels, outputs))
    assert list(made.read().values()) == pytest.approx(segmentation.get(), rel=1e-5)
    assert list(made.read()) == ["m.pixAcc", "m.mIoU"]


@pytest.mark.parametrize("kind", [Largest, OutputsFirst])
def test_metrics_of_the_users_own_get_arrays_of_mxnet_batch_by_batch(kind: Any):
    found = figures(kind(), TRUTH, NUMBERS)
    assert found == {"m.error": pytest.approx(np.abs(TRUTH - NUMBERS).max()), "m.updates": 3}
    changed = figures(kind(), TRUTH, NUMBERS, transform=twice if kind is Largest else lambda *both: both)
    assert changed["m.error"] == pytest.approx(np.abs(TRUTH - NUMBERS).max() * (1 + (kind is Largest)))
    mine = kind()
    made = stage_of(mine)
    made.add(result_of(made, TRUTH, NUMBERS))
    again = stage_of(mine)
    again.load(made.state())
    assert again.read()["m.updates"] == 1
    (first,) = made.metrics
    assert first.fork().metric.metric is not first.metric.metric and first.direction is None
    with pytest.raises(AttributeError):
        _ = first.metric.nothing
    plain = stage_of(Plain("plain"))
    assert not hasattr(plain.metrics[0].metric, "state_dict")


def twice(output: Any, label: Any) -> Any:
    assert isinstance(output, mx.nd.NDArray)
    return [label * 2], [mx.nd.array(output.asnumpy() * 2)]


class Plain(metric.EvalMetric):
    """A metric without states."""

    def update(self, labels: Any, preds: Any) -> None:
        """Measure nothing."""


def test_transforms_are_traced_or_run_with_mxnet():
    def traced(output: Any, label: Any) -> Any:
        return label, output.slice_axis(axis=1, begin=0, end=2)

    def by_numbers(output: Any, label: Any) -> Any:
        return [label], [mx.nd.array(output.asnumpy()[:, :2])]

    expected = np.abs(TRUTH - NUMBERS).mean()
    outputs = np.concatenate([NUMBERS, NUMBERS], axis=1)
    for transform, is_traced in ((traced, True), (by_numbers, False)):
        made = stage_of(metric.MAE(), transform=transform)
        made.add(result_of(made, TRUTH, outputs))
        assert made.read()["m"] == pytest.approx(expected, rel=1e-5)
        assert made.metrics[0].term.spec.transform._is_traced == is_traced
    function = stage_of(lambda labels, outputs: np.abs(labels - outputs).mean(), transform=by_numbers)
    function.add(result_of(function, TRUTH, outputs))
    assert function.read()["m"] == pytest.approx(expected, rel=1e-5)


def test_names_and_functions():
    assert figures("rmse", TRUTH, NUMBERS)["m"] == pytest.approx(
        np.sqrt(((TRUTH - NUMBERS) ** 2).mean()), rel=1e-5
    )
    assert figures("sklearn.mean_absolute_error", TRUTH, NUMBERS)["m"] == pytest.approx(
        np.abs(TRUTH - NUMBERS).mean(), rel=1e-5
    )
    with pytest.raises(SpecError, match='there is no metric .rmsee. .did you mean "rmse"'):
        stage_of("rmsee")
