"""Values are read and set rightly where oneDNN keeps weights in a layout of its own."""

from __future__ import annotations

import numpy as np

from multifit.gluon.optim.parameters import set_values, values_of

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip


def test_weights_of_convolutions_can_be_set_after_an_evaluation() -> None:
    net = nn.HybridSequential()
    net.add(nn.Conv1D(32, 3), nn.Conv1D(32, 3))
    net.initialize()
    net.hybridize()
    for _ in range(4):
        net(mx.nd.ones((16, 16, 40))).wait_to_read()
    parameters = net._collect_params_with_prefix()
    ones = {name: np.ones_like(value) for name, value in values_of(parameters).items()}
    set_values(parameters, ones)
    np.testing.assert_equal(values_of(parameters), ones)


def test_weights_are_read_rightly_while_operators_use_them() -> None:
    net = nn.HybridSequential()
    net.add(*[nn.Conv2D(4, 3, padding=1, in_channels=4) for _ in range(6)])
    net.add(nn.Conv2DTranspose(4, 16, 8, 4, in_channels=4))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    parameters = net._collect_params_with_prefix()
    x, values = mx.nd.ones((4, 4, 16, 16)), values_of(parameters)
    for _ in range(200):  # without waiting, one of ten reads is wrong
        with mx.autograd.train_mode():
            net(x)
        np.testing.assert_equal(values_of(parameters), values)
