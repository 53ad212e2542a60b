"""GradientNoise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import HandlerError, LossSpec, TaskSpec
from multifit.gluon.handlers import GradientNoise

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon
from mxnet.gluon import nn

from .training import DATA, assert_close, fit, make_net, values

CE = gluon.loss.SoftmaxCELoss()


def ones(loc: float, scale: float, shape: Any, dtype: Any, ctx: Any) -> Any:
    return mx.nd.ones(shape, dtype=dtype, ctx=ctx) * scale


@pytest.mark.parametrize("devices", [1, 2])
def test_training_equals_a_hand_written_loop(devices: int) -> None:
    """With noise of one standard deviation everywhere."""
    ours, net = fit(GradientNoise(0.3, 0.55, ones), devices=devices), make_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for step, (x, y) in enumerate(DATA * 2):
        with autograd.record():
            loss = CE(net(x), y).mean()
        loss.backward()
        for parameter in net.collect_params().values():
            parameter.grad()[:] += np.sqrt(0.3 / (1 + step) ** 0.55)
        trainer.step(1)
    assert_close(ours, net)


def test_the_noise_is_normal_and_the_same_on_all_devices() -> None:
    seen = []

    class Before:
        priority = -1.0

        def change_gradients(self, estimator: Any) -> None:
            self.gradients = [[g.asnumpy() for g in own] for own in estimator.gradients()["trainer"].values()]

    before = Before()

    class After:
        def change_gradients(self, estimator: Any) -> None:
            now = estimator.gradients()["trainer"].values()
            for old, own in zip(before.gradients, now):
                noise = [gradient.asnumpy() - then for gradient, then in zip(own, old)]
                np.testing.assert_array_equal(noise[0], noise[1])
                seen.append(noise[0].ravel())

    fit([before, GradientNoise(4.0, 0.0), After()], devices=2, epochs=6)
    noise = np.concatenate(seen)
    assert len(noise) == 24 * 43 and len(set(noise)) > 1000
    assert noise.mean() == pytest.approx(0.0, abs=0.25)
    assert noise.std() == pytest.approx(2.0, rel=0.1)


def test_noise_is_drawn_from_mxnets_generator() -> None:
    def run(seed: int) -> list[Any]:
        class Seed:
            def train_begin(self, estimator: Any) -> None:
                mx.random.seed(seed)

        return values(fit([Seed(), GradientNoise()]))

    for one, same, other in zip(run(1), run(1), run(2)):
        np.testing.assert_array_equal(one, same)
        assert (one != other).any()


def test_a_sparse_gradient_is_an_error() -> None:
    net = nn.HybridSequential()
    net.add(nn.Embedding(5, 3, sparse_grad=True))
    net.initialize()
    spec = TaskSpec(["y"], ["label"], {"ce": LossSpec(CE, "y", "label")})
    data = [(mx.nd.array([0, 1]), mx.nd.array([2, 0]))]
    with pytest.raises(HandlerError, match='gradient of "0.weight" is sparse .row_sparse.; build its layer'):
        fit(GradientNoise(), net=net, spec=spec, data=data)


@pytest.mark.parametrize("arguments", [{"eta": -1}, {"gamma": float("inf")}, {"eta": float("nan")}])
def test_invalid_arguments_are_errors(arguments: Any) -> None:
    with pytest.raises(ValueError, match=f"GradientNoise: {next(iter(arguments))} is .*; valid is a finite"):
        GradientNoise(**arguments)
