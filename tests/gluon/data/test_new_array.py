"""new_array makes an NDArray of anything like an array, with values of its own."""

from typing import Any

import numpy as np
import pytest

from multifit.gluon.data.arrays import new_array, new_rows
from tests.gluon.data.test_by_index import DTYPES, column

import mxnet as mx  # isort: skip

GRID = np.arange(24).reshape(2, 3, 4)
VALUES: dict[str, Any] = {
    **{dtype: column(dtype, 3) for dtype in DTYPES},
    "a view": GRID.astype("float32")[:, ::2].transpose(2, 0, 1),
    "another order of bytes": GRID.astype(">f4"),
    "read only": np.broadcast_to(np.float32(3), (2, 2)),
    "numbers": (1.0, 2.5),
    "nothing": np.zeros((0, 3), "float32"),
}


@pytest.mark.parametrize("context", [None, mx.cpu(0), mx.cpu(1)], ids=str)
@pytest.mark.parametrize("name", VALUES)
def test_values_and_dtype_are_kept(name: str, context: Any) -> None:
    values = np.asarray(VALUES[name])
    array = new_array(VALUES[name], context)
    assert (np.dtype(array.dtype).name, array.context) == (values.dtype.name, context or mx.cpu(0))
    np.testing.assert_array_equal(array.asnumpy(), values)
    assert np.dtype(new_array(values, context, "float64").dtype) == np.float64


def test_the_memory_is_its_own() -> None:
    source = GRID.astype("float32")
    array, rows = new_array(source), new_rows(source, np.array([1, -1]))
    source[:] = 0
    np.testing.assert_array_equal(array.asnumpy(), GRID)
    np.testing.assert_array_equal(rows.asnumpy(), GRID[[1, 1]])
