"""Figures with a loader for each task: over what was taken, and how much that was."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TrainerSpec
from multifit.sampling import Ratios
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
        # the mean over batches of their means
        "error": np.mean([abs(e).mean() for e in np.split(outputs["size"] - size[1], [8, 16, 24])]),
    }
    expected["loss"] = expected["digit"] + 3 * expected["size"]
    for name, value in expected.items():
        assert history[f"val_{name}"] == pytest.approx([value] * 2, rel=1e-5), name
    for name in ("digit", "accuracy"):  # of 2 of 3 batches in turns, of which all are taken in two epochs
        assert all(math.isfinite(value) for value in history[f"train_{name}"])
    assert history["val_of loss"] == pytest.approx(history["val_size"], rel=1e-5)
    assert history["train_of loss"] == pytest.approx(history["train_size"], rel=1e-5)
    counts = {name: history[name] for name in history if "batches_" in name or "passes_" in name}
    assert counts == {
        "train_batches_digit": [2.0, 2.0],
        "train_batches_size": [5.0, 5.0],
        "train_passes_digit": [pytest.approx(2 / 3)] * 2,
        "train_passes_size": [1.25, 1.25],
    }


def test_training_figures_are_means_over_what_was_taken() -> None:
    data = parts(digits=12, sizes=16)
    estimator = MultiEstimator(
        two_heads("hybridized"),
        two_head_spec(),
        TrainerSpec(".*", "sgd", {"learning_rate": 0.0}),
        initializer=mx.init.Xavier(),
    )
    history = estimator.fit(data, data, epochs=1, event_handlers=SILENT)
    for name in ("loss", "digit", "size", "accuracy"):
        assert history[f"train_{name}"] == pytest.approx(history[f"val_{name}"], rel=1e-5)


def test_what_validation_data_lacks_is_not_measured() -> None:
    data = parts()
    estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier())
    history = estimator.fit(data, {"size": data["size"]}, epochs=1, event_handlers=SILENT)
    assert math.isnan(history["val_digit"][0]) and math.isnan(history["val_accuracy"][0])
    figures = estimator.evaluate(data)
    assert math.isfinite(figures["digit"]) and figures["size"] == pytest.approx(history["val_size"][0])
    whole = in_batches(two_head_arrays().values())
    assert estimator.evaluate(whole)["digit"] > 0 and estimator.evaluate(data) == figures


def test_evaluations_are_read_one_after_the_other() -> None:
    data, seen = parts(), []
    watch = handler("Watch", evaluate_batch_begin=lambda estimator, batch: seen.append(batch.name))
    estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier())
    estimator.evaluate(data, event_handlers=watch)
    assert seen == ["digit"] * 3 + ["size"] * 4
