"""Accuracy of outputs that have the shape of their labels: of one-hot labels, of classes, or refused."""

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from tests.common.grids import TWO, two_settings
from tests.common.hand_loop import SILENT

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

M = mx.metric
RNG = np.random.RandomState(3)
CLASSES = RNG.randint(0, 3, 21)
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
SCORES = RNG.normal(size=(21, 3)).astype("float32")
MAPS = np.eye(3, dtype="float32")[RNG.randint(0, 3, (21, 4))]
MAP_SCORES = RNG.normal(size=(21, 4, 3)).astype("float32")
ANSWERS = np.tile(np.float32([[1, 1, 0], [0, 0, 0], [1, 0, 1]]), (7, 1))
UNCLEAR = "the outputs have the shape of the labels, but they hold no classes (whole numbers), and the labels"


class Kept(M.Accuracy):
    """A subclass that is updated as its base is."""


def batches(*arrays: np.ndarray) -> list[Any]:
    return [[array[i : i + 8] for array in arrays] for i in (0, 8, 16)]


def identity(metric: Any, devices: Any = None, **fields: Any) -> MultiEstimator:
    """An estimator whose net returns its input."""
    spec = TaskSpec(outputs="y", labels=["label"], metrics={"m": MetricSpec(metric, "y", "label", **fields)})
    return MultiEstimator(gluon.nn.HybridLambda("identity"), spec, context=devices)


LABELS: dict[str, tuple[Any, np.ndarray, np.ndarray, int]] = {
    "one-hot": (M.Accuracy, SCORES, ONE_HOT, 1),
    "smoothed": (M.Accuracy, SCORES, 0.9 * ONE_HOT + np.float32(0.1 / 3), 1),
    "a subclass": (Kept, SCORES, ONE_HOT, 1),
    "maps": (M.Accuracy, MAP_SCORES.swapaxes(1, 2), MAPS.swapaxes(1, 2), 1),
    "classes last": (lambda: M.Accuracy(axis=-1), MAP_SCORES, MAPS, 2),
}


@pytest.mark.parametrize("name", LABELS)
def test_the_largest_scores_are_compared_with_one_hot_labels(name: str) -> None:
    make, scores, label, axis = LABELS[name]
    expected = (scores.argmax(axis=axis) == label.argmax(axis=axis)).mean()
    assert identity(make(), TWO).evaluate(batches(scores, label), [])["m"] == pytest.approx(expected)


@two_settings
def test_one_hot_labels_are_counted_on_the_device_in_training(devices: Any, hybrid: bool) -> None:
    net = gluon.nn.Dense(3, in_units=3)
    net.initialize(mx.init.Xavier(), ctx=devices)
    if hybrid:
        net.hybridize()
    spec = TaskSpec(
        outputs="y", labels=["y"], losses={"y": gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)},
        metrics={"m": MetricSpec(M.Accuracy(), "y", "y")},
    )  # fmt: skip
    estimator = MultiEstimator(net, spec, trainers=TrainerSpec(".*", "sgd", {"learning_rate": 0}))
    data = batches(SCORES, ONE_HOT)
    history = estimator.fit(data, data, epochs=2, event_handlers=SILENT)
    right = estimator.predict(data)["y"].argmax(axis=1) == CLASSES
    assert history["train_m"] == history["val_m"] == pytest.approx([right.mean()] * 2)
    assert [metric.on_device for metric in estimator._session.stages["train"].figures.metrics] == [True]


@pytest.mark.parametrize(
    ("metric", "fields"),
    [
        (M.CompositeEvalMetric([M.CompositeEvalMetric([M.Accuracy()])]), {}),
        (M.Accuracy(), {"transform": lambda scores, label: ([label], [scores])}),
        (Kept(), {"transform": lambda scores, label: (label, scores)}),
    ],
    ids=["in another metric", "transformed to lists", "a transformed subclass"],
)
def test_metrics_on_the_host(metric: Any, fields: Any) -> None:
    (value,) = identity(metric, **fields).evaluate(batches(SCORES, ONE_HOT), []).values()
    assert value == pytest.approx((SCORES.argmax(axis=1) == CLASSES).mean())
    data = iter(batches(SCORES, ANSWERS))
    with pytest.raises(SpecError, match='metrics."m".: ') as caught:
        identity(metric, **fields).evaluate(data, [])
    assert UNCLEAR in str(caught.value)
    assert len(list(data)) == 2  # the first batch was refused


def test_one_hot_labels_of_some_samples() -> None:
    label = ONE_HOT.copy()
    label[::2] = np.nan
    spec = TaskSpec(
        outputs="y", labels=[LabelSpec("label", missing="nan")],
        metrics={
            "m": MetricSpec(M.Accuracy(), "y", "label"),
            "both": MetricSpec(M.CompositeEvalMetric([Kept()]), "y", "label"),
        },
    )  # fmt: skip
    figures = MultiEstimator(gluon.nn.HybridLambda("identity"), spec).evaluate(batches(SCORES, label), [])
    expected = (SCORES.argmax(axis=1) == CLASSES)[1::2].mean()
    assert figures["m"] == figures["both"] == pytest.approx(expected)


@pytest.mark.parametrize(("shape", "dtype"), [((21,), "float32"), ((21, 1), "int32"), ((21, 4), "float32")])
def test_outputs_that_are_whole_numbers_are_classes(shape: tuple[int, ...], dtype: str) -> None:
    output, label = (np.random.RandomState(i).randint(0, 3, shape) for i in (0, 1))
    found = identity(M.Accuracy()).evaluate(batches(output.astype(dtype), label.astype("float32")), [])["m"]
    assert found == pytest.approx((output == label).mean())


LATER: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "labels that are one-hot at first": (SCORES, np.concatenate([ONE_HOT[:16], ANSWERS[16:]])),
    "outputs that are classes at first": (np.concatenate([ANSWERS[:16], SCORES[16:]]), ANSWERS),
}


@pytest.mark.parametrize("name", LATER)
def test_what_later_batches_show_to_be_unclear(name: str) -> None:
    outputs, labels = LATER[name]
    with pytest.raises(SpecError) as caught:
        identity(M.Accuracy(), TWO).evaluate(batches(outputs, labels), [])
    assert f'metrics["m"]: {UNCLEAR}' in str(caught.value)
