"""Handlers that compute gradients of their own before the backward pass."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from multifit import HandlerError, MultiEstimator, TrainerSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import ONE, every_setting
from tests.common.hand_loop import SGD, SILENT
from tests.common.nets import Heads, hybridized, sequential
from tests.common.specs import digit_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


class Mask(gluon.HybridBlock):
    """Dropout that every backward pass repeats."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x * F.BlockGrad(F.random.uniform_like(x) < 0.6) / 0.6


class Own(gluon.HybridBlock):
    """A user's layer that calls the operator."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.Dropout(x, p=0.4)


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


@every_setting
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


def test_the_operator_is_the_identity_in_the_second_pass() -> None:
    """Why it is refused; should MXNet be mended, it need not be."""
    x = nd.ones((100,))
    x.attach_grad()
    with autograd.record():
        out = nd.Dropout(x, p=0.5)
    gradients = []
    for _ in range(2):
        out.backward(retain_graph=True)
        gradients.append(x.grad.asnumpy())
    assert set(gradients[0]) == {0.0, 2.0} and set(gradients[1]) == {1.0}


def children(net: Any) -> Any:
    """Hybridize the body only, so that Gluon makes a graph of it."""
    net.body.hybridize(inline_limit=0)
    return net


@pytest.mark.parametrize("layer", [nn.Dropout(0.4), Own()], ids=["stock", "own"])
@pytest.mark.parametrize(
    "form", [lambda net: net, hybridized, children], ids=["plain", "hybridized", "children"]
)
def test_dropout_is_refused(form: Any, layer: Any) -> None:
    net = form(net_with(layer))
    net.initialize()
    with pytest.raises(
        HandlerError, match=r"epoch 1, batch 1: .*retain_graph=True.*uniform_like\(x\) < 1 - p"
    ):
        train(net, ONE, Slopes())


@pytest.mark.parametrize("hybrid", [False, True])
def test_dropout_that_drops_nothing_is_not_refused(hybrid: bool) -> None:
    net = net_with(nn.Dropout(0.0))
    net.initialize()
    train(hybridized(net, hybrid), ONE, Slopes())


def test_a_pass_of_the_handlers_own_is_not_refused() -> None:
    """Adversarial examples, for instance: another forward pass, and its own way back."""
    net = net_with(nn.Dropout(0.4))
    net.initialize()

    class Adversarial:
        def change_objective(self, estimator: Any, objectives: list) -> list:
            x = nd.ones((2, 10))
            x.attach_grad()
            with autograd.record():
                value = net(x)[0].sum()
            value.backward()
            assert x.grad.norm().asscalar() > 0
            return objectives

    train(net, ONE, Adversarial())


def test_another_thread_is_not_refused() -> None:
    """Each fit notes its own passes only, and none is noted once the fits are over."""
    begun, over = threading.Event(), threading.Event()

    class Waits:
        def change_objective(self, estimator: Any, objectives: list) -> list:
            begun.set()
            assert over.wait(60)
            return objectives

    def train_new(*handlers: Any) -> None:
        net = net_with(nn.Dropout(0.4))
        net.initialize()
        train(net, ONE, *handlers)

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(train_new, Waits())
        assert begun.wait(60)
        with pytest.raises(HandlerError, match="retain_graph=True"):
            train_new(Slopes())
        over.set()
        waiting.result(60)
