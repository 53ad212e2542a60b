"""The values of Gluon's parameters are read and set rightly."""

import numpy as np
import pytest

from multifit.torch.from_gluon.parameters import set_values, values_of

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
    x = mx.nd.ones((4, 4, 16, 16))
    values = {name: value.copy() for name, value in values_of(parameters).items()}
    for _ in range(60):  # without waiting, one of ten reads is wrong
        with mx.autograd.train_mode():
            net(x)
        np.testing.assert_equal(values_of(parameters), values)


def test_fused_operators_that_have_run_see_new_values() -> None:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, in_channels=4), nn.BatchNorm(in_channels=4))
    net.initialize()
    net.hybridize()
    x = mx.nd.random.uniform(shape=(2, 4, 8, 8))
    net.optimize_for(x, backend="MKLDNN", static_alloc=True, static_shape=True)
    # which fuses both, and keeps the weights that it computes from them
    before = net(x).asnumpy()
    parameters = net._collect_params_with_prefix()
    set_values(parameters, {name: 2 * value for name, value in values_of(parameters).items()})
    mean, variance = (parameters[f"1.running_{each}"].data() for each in ("mean", "var"))
    assert (mean.asnumpy() == 0).all() and (variance.asnumpy() == 2).all()
    after = before * np.sqrt(1 + 1e-5) / np.sqrt(2 + 1e-5) * 2 * 2
    np.testing.assert_allclose(net(x).asnumpy(), after, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_values_of_all_dtypes_and_shapes_can_be_set(dtype: str) -> None:
    parameters = {
        name: mx.gluon.Parameter(name, shape=shape, dtype=dtype, init="zeros", allow_deferred_init=True)
        for name, shape in {"one": (1,), "matrix": (2, 3), "later": (0, 2)}.items()
    }
    for name, parameter in parameters.items():
        parameter.initialize(ctx=[mx.cpu(0), mx.cpu(1)] if name == "matrix" else mx.cpu())
    shapes = {"one": (1,), "matrix": (2, 3), "later": (3, 2)}  # the last is not initialised yet
    values = {name: np.full(shape, 2, dtype) for name, shape in shapes.items()}
    set_values(parameters, values)
    parameters["later"]._finish_deferred_init()
    for name, parameter in parameters.items():
        for array in parameter.list_data():
            np.testing.assert_array_equal(array.asnumpy(), values[name])
            assert array.dtype == np.dtype(dtype)


def test_values_can_be_set_while_something_is_recorded() -> None:
    layer = nn.Dense(3, in_units=2)
    layer.initialize()
    parameters, weight = layer._collect_params_with_prefix(), layer.weight.data()
    values = {name: value.copy() for name, value in values_of(parameters).items()}
    with mx.autograd.record():
        total = mx.nd.sum(weight * weight)
        set_values(parameters, values)
    total.backward()
    np.testing.assert_allclose(weight.grad.asnumpy(), 2 * values["weight"], rtol=1e-6)
