"""Small estimators on one or several devices, and loops through their batches."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from multifit import LossSpec, MetricSpec, MultiEstimator, TrainerSpec
from tests.common.nets import normed_heads
from tests.common.specs import CE, L2, two_head_spec

import mxnet as mx  # isort: skip


def distance(labels: Any, outputs: Any) -> Any:
    return abs(labels - outputs).mean()


def two_trainers() -> dict[str, TrainerSpec]:
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.01)
    return {
        "body": TrainerSpec("body.*", "adam", {"learning_rate": 0.01}, schedule),
        "heads": TrainerSpec("(digit|size|losses).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
    }


def make_estimator(devices: int = 1, trainers: Any = None, net: Any = None, **changes: Any) -> MultiEstimator:
    """Return an estimator of two heads on a body with dropout and BatchNorm; `changes` are the spec's."""
    declared: dict[str, Any] = {
        "losses": {"digit": CE, "size": LossSpec(L2, weight=0.5)},
        "metrics": {
            "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
            "error": MetricSpec(distance, "size", "size"),
        },
    }
    net, trainers = net or normed_heads(), two_trainers() if trainers is None else trainers
    spec = two_head_spec(**{**declared, **changes})
    return MultiEstimator(net, spec, trainers, [mx.cpu(i) for i in range(devices)])


def make_batches(sizes: Iterable[int] = (8, 8, 8, 5, 8, 8)) -> list[tuple[np.ndarray, ...]]:
    images = [np.random.randn(size, 6).astype("float32") for size in sizes]
    return [(image, image[:, :3].argmax(axis=1).astype("float32"), image[:, 3:4] * 2) for image in images]


def train(estimator: Any, batches: list[Any], first: int = 0) -> None:
    """Train; each step has a seed of its own, counted from `first`."""
    for step, batch in enumerate(batches, first):
        estimator.state.seed, estimator.state.step = 100, step
        estimator.reseed()
        estimator.fit_batch(batch)
