"""Parameters can be set after a net has evaluated, when oneDNN keeps them in a layout of its own."""

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
