"""Estimators of a net with two heads, on either engine, and what they have learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from multifit import MultiEstimator, TrainerSpec
from multifit.gluon.compat import mx
from multifit.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import normed_heads, two_heads
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_close

ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02})
BATCHES = in_batches(two_head_arrays(40).values())
PAIRS = [("torch", "torch"), ("mxnet", "torch"), ("torch", "mxnet")]


def net_of(kind: str = "hybridized") -> Any:
    seed_everything(3)
    net = normed_heads() if kind == "dropout" else two_heads("hybrid" if kind == "float64" else kind)
    if kind == "float64":
        net.cast("float64")
    if kind != "plain":
        net.hybridize()
        net.initialize(mx.init.Xavier())
        net(mx.nd.zeros((2, 6), dtype="float64" if kind == "float64" else "float32"))
    return net


def estimator_of(kind: str = "hybridized", engine: str = "torch", **options: Any) -> MultiEstimator:
    options = {"spec": two_head_spec(), "trainers": ADAM, "context": None, **options}
    return MultiEstimator(net_of(kind), engine=engine, **options)


def values(estimator: MultiEstimator) -> dict[str, np.ndarray]:
    return {name: parameter.data().asnumpy() for name, parameter in estimator.parameters.items()}


def assert_equal(one: dict[str, Any], other: dict[str, Any], tolerance: float = 0.0) -> None:
    assert_close(one, other, tolerance=tolerance)
