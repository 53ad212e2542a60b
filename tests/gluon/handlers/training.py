"""Fits of a small classifier, and the hand-written loop that they are compared with."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.grids import ONE
from tests.common.hand_loop import train_by_hand
from tests.common.nets import mlp
from tests.common.specs import CE

import mxnet as mx  # isort: skip
from mxnet import gluon

On = SimpleNamespace  # a handler: On(batch_end=function, priority=1.0)

_RANDOM = np.random.RandomState(2)
# Four batches of 6 samples with 4 features, of 3 classes.
DATA = [
    (mx.nd.array(_RANDOM.randn(6, 4)), mx.nd.array(_RANDOM.randint(0, 3, 6).astype("float32")))
    for _ in range(4)
]
HEIGHT, WIDTH = 8, 12
IMAGES = [(mx.nd.array(_RANDOM.randn(6, 2, HEIGHT, WIDTH)), y) for _, y in DATA]
# of the first four samples of each batch, the labels are there
SOME = [(x, mx.nd.where(mx.nd.array([0, 0, 1, 0, 1, 0]), -mx.nd.ones_like(y), y)) for x, y in DATA]


def fit(
    handlers: Any = None, devices: Any = ONE, hybrid: bool = True, norm: bool = False, **options: Any
) -> MultiEstimator:
    """Return the estimator after two epochs; `net`, `losses`, `spec`, `trainers`, `data` replace mine."""
    net = options.pop("net", None) or mlp(3, devices, hybrid, norm)
    losses = options.pop("losses", {"ce": LossSpec(CE, "y", "label")})
    spec = options.pop("spec", None) or TaskSpec(outputs=["y"], labels=["label"], losses=losses)
    trainers = options.pop("trainers", TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))
    estimator = MultiEstimator(net, spec, trainers, devices, accumulate=options.pop("accumulate", 1))
    estimator.fit(options.pop("data", DATA), event_handlers=handlers, **{"epochs": 2, **options})
    return estimator


def by_hand(objective: Callable[..., Any], data: Any = DATA, inputs: int = 4) -> Any:
    """Return the net after the same training by hand: ``objective(net, x, y)`` is the loss of each sample."""
    net = mlp(3, inputs=inputs)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    train_by_hand(net, trainer, data * 2, objective)
    return net


def values(owner: Any) -> list[np.ndarray]:
    """Return all parameters of a net or an estimator, on the first device, in order."""
    net = getattr(owner, "net", owner)
    return [p.list_data()[0].asnumpy() for p in net.collect_params().values()]


def assert_close(one: Any, other: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Check that nets, estimators or lists of arrays are equal to a tolerance."""
    pairs = [each if isinstance(each, list) else values(each) for each in (one, other)]
    assert len(pairs[0]) == len(pairs[1])
    for a, b in zip(*pairs):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def assert_equal(one: Any, other: Any) -> None:
    """Check that nets, estimators or lists of arrays are equal bit for bit."""
    assert_close(one, other, rtol=0, atol=0)
