"""Comparing the parameters of nets."""

from collections.abc import Callable
from typing import Any

import numpy as np

import mxnet as mx  # isort: skip

RTOL, ATOL = 2e-4, 2e-5


def snapshot(net: Any) -> dict[str, np.ndarray]:
    """Return a copy of all parameters, on each of their devices."""
    parameters = net._collect_params_with_prefix()
    return {
        f"{name}@{data.context}": data.asnumpy() for name, p in parameters.items() for data in p.list_data()
    }


def assert_unchanged(net: Any, before: dict[str, np.ndarray]) -> None:
    """Check that the parameters are bit for bit those of a snapshot."""
    after = snapshot(net)
    assert after.keys() == before.keys()
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def assert_same_parameters(net: Any, other: Any, rtol: float = RTOL, atol: float = ATOL) -> None:
    """Check that two nets have the same parameters, on every device of the first."""
    parameters, others = net._collect_params_with_prefix(), other._collect_params_with_prefix()
    assert parameters.keys() == others.keys()
    for name, parameter in parameters.items():
        expected = others[name].list_data()[0].asnumpy()
        for data in parameter.list_data():
            np.testing.assert_allclose(data.asnumpy(), expected, rtol=rtol, atol=atol, err_msg=name)


def copy_parameters(source: Any, target: Any) -> None:
    """Give `target` the parameters of a net of the same structure."""
    parameters = source._collect_params_with_prefix()
    for name, parameter in target._collect_params_with_prefix().items():
        parameter.set_data(parameters[name].data())


def twins(make: Callable[[], Any], *example: np.ndarray, initializer: Any = None) -> tuple[Any, Any]:
    """Make two initialised nets with the same parameters; `example` is what the nets are called with."""
    nets = make(), make()
    for net in nets:
        net.initialize(initializer or mx.init.Xavier())
        net(*[mx.nd.array(array[:2], dtype=array.dtype) for array in example])
    copy_parameters(*nets)
    return nets
