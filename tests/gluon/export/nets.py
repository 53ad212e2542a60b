"""Nets that are exported."""

from typing import Any

import numpy as np

from multifit import MultiEstimator, TaskSpec
from multifit.spec.terms import leaves

from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

X = np.random.RandomState(0).randn(5, 3).astype("float32")  # a batch


class Hybrid(nn.HybridBlock):
    """A net of a function and the layers that it uses."""

    def __init__(self, function: Any, **layers: Any) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def hybrid_forward(self, F: Any, *inputs: Any) -> Any:
        return self.function(self, F, *inputs)


class Plain(gluon.Block):
    """A Block of a function of one layer."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Dense(3)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.layer, *inputs)


def spec(inputs: Any = ("x",), outputs: Any = ("out",), **options: Any) -> TaskSpec:
    """Return a spec without losses and metrics."""
    named = [name for _, name in leaves(outputs) if name is not ...]
    return TaskSpec(inputs=inputs, outputs=outputs, unused=list(dict.fromkeys([*inputs, *named])), **options)


def estimator_of(net: Any, *args: Any, **options: Any) -> MultiEstimator:
    return MultiEstimator(net, spec(*args, **options))
