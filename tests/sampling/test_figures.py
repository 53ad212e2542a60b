"""Figures with a loader for each task: over what was taken, and how much that was."""

import math
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TrainerSpec
from multifit.sampling import Ratios, RoundRobin
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import two_settings
from tests.common.hand_loop import SILENT
from tests.common.handlers import handler
from tests.common.nets import hybridized, two_heads
from tests.common.specs import CE, L2, two_head_spec

from .runs import SGD, parts

import mxnet as mx  # isort: skip


@two_settings
def test_figures_are_over_the_samples_that_have_labels(devices: Any, hybrid: bool) -> None:
    data = parts()
    metrics = {
        "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
        "error": MetricSpec(mx.metric.MAE(), "size", "size"),
        "own": MetricSpec(lambda labels, outputs: abs(labels - outputs).mean(), "size", "size", mode="min"),
        "of loss": MetricSpec(mx.metric.Loss(), losses="size"),
    }
    spec = two_head_spec(losses={"digit": CE, "size": LossSpec(L2, weight=3)}, metrics=metrics)
    frozen = TrainerSpec(".*", "sgd", {"learning_rate": 0.0})
    net = hybridized(two_heads("hybrid"), hybrid)
    estimator = MultiEstimator(net, spec, frozen, devices, initializer=mx.init.Xavier())
    ratios = Ratios(digit=1, size=2)
    history = estimator.fit(data, data, epochs=2, event_handlers=SILENT, sampling=ratios)
    digit, size = ([np.concatenate(column) for column in zip(*data[name])] for name in ("digit", "size"))
    alone = MultiEstimator(net, spec, frozen, devices)
    outputs = {name: alone.predict(each[0])[name] for name, each in (("digit", digit), ("size", size))}
    expected = {
        "digit": CE(mx.nd.array(outputs["digit"]), mx.nd.array(digit[1])).mean().asscalar(),
        "size": ((outputs["size"] - size[1]) ** 2).mean() / 2,
        "accuracy": (outputs["digit"].argmax(axis=1) == digit[1]).mean(),
        "error": abs(outputs["size"] - size[1]).mean(),
        "own": abs(outputs["size"] - size[1]).mean(),
    }
    expected["loss"] = expected["digit"] + 3 * expected["size"]
    for name, value in expected.items():
        assert history[f"val_{name}"] == pytest.approx([value] * 2, rel=1e-5), name
    assert history["val_of loss"] == pytest.approx(history["val_size"], rel=1e-5)
    assert history["train_of loss"] == pytest.approx(history["train_size"], rel=1e-5)
    counts = {name: history[name] for name in history if "batches_" in name or "passes_" in name}
    assert counts == {
        "train_batches_digit": [2.0, 2.0],
        "train_batches_size": [5.0, 5.0],
        "train_passes_digit": [pytest.approx(2 / 3)] * 2,
        "train_passes_size": [1.25, 1.25],
    }


class Range(mx.metric.EvalMetric):
    """Two figures, whose names are known once something was measured."""

    def __init__(self) -> None:
        super().__init__("range")

    def reset(self) -> None:
        self.seen: list[float] = []

    def update(self, labels: Any, preds: Any) -> None:
        for label in labels:
            self.seen += label.asnumpy().ravel().tolist()

    def get(self) -> Any:
        return ["low", "high"], [min(self.seen), max(self.seen)]


@two_settings
def test_what_no_batch_had_yet_is_not_measured(devices: Any, hybrid: bool) -> None:
    """Neither in an epoch that ends before, nor where a handler reads figures after the first batches."""
    metrics = {
        "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
        "top": MetricSpec(mx.metric.TopKAccuracy(2), "digit", "digit"),
        "error": MetricSpec(mx.metric.MAE(), "size", "size"),
        "range": MetricSpec(Range(), "size", "size", mode="max"),
    }
    of_size = {"size", "error", "range.low", "range.high"}
    of_task = {"digit": {"digit", "accuracy", "top"}, "size": of_size}
    seen: dict[str, list[set[str]]] = {"train": [], "evaluate": []}

    def measured(figures: Any) -> set[str]:
        names = {name.split("_", 1)[1] for name, value in figures.items() if math.isfinite(value)}
        assert {name.split("_", 1)[1] for name in figures} >= {"digit", "accuracy", "top"} | of_size
        return names & ({"digit", "accuracy", "top"} | of_size)

    def read(estimator: Any, stage: str) -> None:
        seen[stage].append(measured(estimator.figures(stage)))

    watch = handler(
        "Watch",
        batch_end=lambda estimator: read(estimator, "train"),
        evaluate_batch_end=lambda estimator: read(estimator, "evaluate"),
    )
    net = hybridized(two_heads("hybrid"), hybrid)
    spec = two_head_spec(metrics=metrics)
    estimator = MultiEstimator(net, spec, SGD, devices, initializer=mx.init.Xavier())
    data = parts(16, 16)
    history = estimator.fit(data, data, batches=5, event_handlers=[*SILENT, watch], sampling=RoundRobin())
    both = of_task["digit"] | of_size
    assert seen["train"] == [of_task["digit"], both, both, both, of_task["digit"]]
    assert seen["evaluate"] == [of_task["digit"], of_task["digit"], both, both] * 2
    assert (
        measured({name: v[1] for name, v in history.items() if name.startswith("train")}) == of_task["digit"]
    )


def test_what_validation_data_lacks_is_not_measured() -> None:
    data = parts()
    estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier())
    history = estimator.fit(data, {"size": data["size"]}, epochs=1, event_handlers=SILENT)
    assert math.isnan(history["val_digit"][0]) and math.isnan(history["val_accuracy"][0])
    figures = estimator.evaluate(data)
    assert math.isfinite(figures["digit"]) and figures["size"] == pytest.approx(history["val_size"][0])
    whole = in_batches(two_head_arrays().values())
    assert estimator.evaluate(whole)["digit"] > 0 and estimator.evaluate(data) == figures


def test_loaders_that_can_be_read_once_are_read_whole() -> None:
    """Also the first batches, which are checked."""

    def figures(make: Any) -> Any:
        mx.random.seed(3)
        estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier())
        evaluated = estimator.evaluate({name: make(loader) for name, loader in parts().items()})
        val_data = {name: make(loader) for name, loader in parts().items()}
        history = estimator.fit(parts(), val_data, epochs=1, event_handlers=SILENT)
        return evaluated, history["val_loss"]

    assert figures(iter) == figures(list)
