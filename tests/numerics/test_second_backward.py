"""Handlers that compute gradients of their own before the backward pass."""

from typing import Any

import numpy as np

from multifit import MultiEstimator, TrainerSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import two_settings
from tests.common.hand_loop import SGD, SILENT
from tests.common.nets import Heads, hybridized, sequential
from tests.common.specs import digit_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip


class Mask(gluon.HybridBlock):
    """Dropout that every backward pass repeats."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x * F.BlockGrad(F.random.uniform_like(x) < 0.6) / 0.6


class Slopes:
    """Measures the gradient of each loss, on the way back that the step takes once more."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def change_objective(self, estimator: Any, objectives: list, loss: dict, **_: Any) -> list:
        context = objectives[0].context
        weight = estimator.parameters["body.0.weight"].data(context)
        for values in loss.values():
            gradient = autograd.grad(values[0], weight, retain_graph=True)[0]
            self.norms.append(float(gradient.norm().asscalar()))
        return objectives


def net_with(layer: Any) -> Any:
    return Heads(body=sequential(nn.Dense(16), layer, nn.Dense(8)), digit=5, parity=1)


def train(net: Any, devices: Any, *handlers: Any) -> None:
    mx.random.seed(5)
    estimator = MultiEstimator(net, digit_spec(), TrainerSpec(".*", "sgd", SGD), devices)
    estimator.fit(digit_batches([8] * 4), epochs=1, event_handlers=[*SILENT, *handlers])


@two_settings
def test_a_mask_of_ones_own_is_repeated(devices: list, hybrid: bool) -> None:
    """The training is that without the handler, and so is the gradient that the handler saw first."""
    watched, alone = twins(lambda: net_with(Mask()), np.zeros((2, 10), "float32"))
    slopes = Slopes()
    # a handler that changes the objective draws the masks in the order of another graph
    unchanged = type("Unchanged", (), {"change_objective": lambda self, estimator, objectives: objectives})()
    train(hybridized(watched, hybrid), devices, slopes)
    train(hybridized(alone, hybrid), devices, unchanged)
    assert_same_parameters(watched, alone)
    assert len(slopes.norms) == 8 and all(slopes.norms)
