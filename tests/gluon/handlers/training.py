"""A small classifier on one device or two, and fits of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon
from mxnet.gluon import nn

DEVICES = {1: [mx.cpu(0)], 2: [mx.cpu(0), mx.cpu(1)]}
_RANDOM = np.random.RandomState(2)
# Four batches of 6 samples with 4 features, of 3 classes.
DATA = [
    (mx.nd.array(_RANDOM.randn(6, 4)), mx.nd.array(_RANDOM.randint(0, 3, 6).astype("float32")))
    for _ in range(4)
]


def make_net(devices: int = 1, hybrid: bool = True, norm: bool = False) -> Any:
    """Return a net with the same parameters each time, with BatchNorm if `norm`."""
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=4, activation="tanh"))
    if norm:
        net.add(nn.BatchNorm(in_channels=5))
    net.add(nn.Dense(3, in_units=5))
    net.initialize(mx.init.Xavier(), ctx=DEVICES[devices])
    if hybrid:
        net.hybridize()
    return net


def fit(
    handlers: Any = None, devices: int = 1, hybrid: bool = True, norm: bool = False, **options: Any
) -> MultiEstimator:
    """Return the estimator after two epochs; `net`, `spec`, `trainers` and `data` replace the usual ones."""
    net = options.pop("net", None) or make_net(devices, hybrid, norm)
    loss = LossSpec(gluon.loss.SoftmaxCELoss(), "y", "label")
    spec = options.pop("spec", None) or TaskSpec(["y"], ["label"], {"ce": loss})
    trainers = options.pop("trainers", TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))
    estimator = MultiEstimator(net, spec, trainers=trainers, context=DEVICES[devices])
    estimator.fit(options.pop("data", DATA), event_handlers=handlers, **{"epochs": 2, **options})
    return estimator


def values(owner: Any) -> list[np.ndarray]:
    """Return all parameters of a net or an estimator, on the first device, in order."""
    net = getattr(owner, "net", owner)
    return [p.list_data()[0].asnumpy() for p in net.collect_params().values()]


def assert_close(one: Any, other: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Check that the parameters of two nets or estimators are equal to a tolerance."""
    for a, b in zip(values(one), values(other)):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
