"""Arrays with values of their own, and devices that are given as text."""

from typing import Any

import numpy as np
import pytest

from multifit.gluon.data.arrays import new_array, new_rows
from multifit.gluon.data.devices import parse_devices

import mxnet as mx  # isort: skip

GRID = np.arange(24).reshape(2, 3, 4)
DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"]
VALUES: list[Any] = [
    *(np.arange(6).reshape(2, 3).astype(dtype) for dtype in DTYPES),
    GRID.astype("float32")[:, ::2].transpose(2, 0, 1),  # a view
    GRID.astype(">f4"),  # another order of bytes
    np.broadcast_to(np.float32(3), (2, 2)),  # read only
    (1.0, 2.5), np.zeros((0, 3), "float32"),
]  # fmt: skip


@pytest.mark.parametrize("context", [None, mx.cpu(0), mx.cpu(1)])
def test_new_arrays_have_the_values_and_the_dtype(context: Any) -> None:
    for given in VALUES:
        array, values = new_array(given, context), np.asarray(given)
        assert (np.dtype(array.dtype).name, array.context) == (values.dtype.name, context or mx.cpu(0))
        np.testing.assert_array_equal(array.asnumpy(), values)
        assert np.dtype(new_array(values, context, "float64").dtype) == np.float64


def test_the_memory_is_its_own() -> None:
    source = GRID.astype("float32")
    array, rows = new_array(source), new_rows(source, np.array([1, -1]))
    source[:] = 0
    np.testing.assert_array_equal(array.asnumpy(), GRID)
    np.testing.assert_array_equal(rows.asnumpy(), GRID[[1, 1]])


DEVICES = {
    "2": [mx.cpu(0), mx.cpu(1)], "cpu:2": [mx.cpu(0), mx.cpu(1)], "cpu": [mx.cpu(0)], " CPU:1 ": [mx.cpu(0)],
    "gpu": [mx.gpu(0)], "gpu:0,1": [mx.gpu(0), mx.gpu(1)], "gpu:3": [mx.gpu(3)],
}  # fmt: skip


def test_device_names() -> None:
    assert {text: parse_devices(text) for text in DEVICES} == DEVICES
    for text in ("", " ", "tpu", "cpu:0", "0", "-1", "cpu:0,1", "gpu:0,", "gpu:0,0", "2.5"):
        with pytest.raises(ValueError, match="write a number of CPUs") as caught:
            parse_devices(text)
        assert repr(text) in str(caught.value)
