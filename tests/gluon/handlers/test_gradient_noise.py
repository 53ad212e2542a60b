"""GradientNoise."""

import itertools
from typing import Any

import numpy as np
import pytest

from multifit.handlers import GradientNoise
from tests.common.grids import TWO, two_settings
from tests.common.nets import sequential
from tests.common.specs import CE

import mxnet as mx  # isort: skip
from mxnet.gluon import nn

from .training import On, assert_close, by_hand, fit


def ones(loc: float, scale: float, shape: Any, dtype: Any, ctx: Any) -> Any:
    return mx.nd.ones(shape, dtype=dtype, ctx=ctx) * scale


@two_settings
def test_training_equals_a_hand_written_loop(devices: Any, hybrid: bool) -> None:
    """With noise of one standard deviation everywhere, which is the gradient of the parameters' sum."""
    deviations = (np.sqrt(0.3 / (1 + step) ** 0.55) for step in itertools.count())

    def objective(net: Any, x: Any, y: Any) -> Any:
        total = mx.nd.add_n(*[p.data().sum() for p in net.collect_params().values()])
        return CE(net(x), y) + next(deviations) * total

    assert_close(fit(GradientNoise(0.3, 0.55, ones), devices, hybrid), by_hand(objective))


def test_the_noise_is_normal_and_the_same_on_all_devices() -> None:
    before: list[Any] = []
    samples: list[np.ndarray] = []

    def gradients(estimator: Any) -> list[list[np.ndarray]]:
        return [[g.asnumpy() for g in devices] for devices in estimator.gradients()["trainer"].values()]

    def keep(estimator: Any) -> None:
        before[:] = gradients(estimator)

    def compare(estimator: Any) -> None:
        for now, then in zip(gradients(estimator), before):
            noise = [a - b for a, b in zip(now, then)]
            np.testing.assert_array_equal(*noise)
            samples.append(noise[0].ravel())

    handlers = [
        On(change_gradients=keep, priority=-1.0),
        GradientNoise(4.0, 0.0),
        On(change_gradients=compare),
    ]
    fit(handlers, devices=TWO, epochs=6)
    noise = np.concatenate(samples)
    assert len(noise) == 24 * 43 and len(set(noise)) > 1000
    assert noise.mean() == pytest.approx(0.0, abs=0.25)
    assert noise.std() == pytest.approx(2.0, rel=0.1)


def test_a_sparse_gradient_is_an_error() -> None:
    net = sequential(nn.Embedding(5, 3, sparse_grad=True))
    net.initialize()
    with pytest.raises(ValueError, match='gradient of "0.weight" is sparse; build its layer'):
        fit(GradientNoise(), net=net, data=[(mx.nd.array([0, 1]), mx.nd.array([2, 0]))])
