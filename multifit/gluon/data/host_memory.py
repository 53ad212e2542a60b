"""NumPy views of the memory of arrays on the CPU, for other libraries to read and write."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from ...protocols import Array
from ..compat import mx


def host_view(array: Array, idle: bool = False) -> np.ndarray:
    """Return a NumPy array that shares the memory of a dense array on the CPU.

    Waits until nothing reads or writes the array; with ``idle=True`` it does not wait, for an array that no
    operator uses, such as a new one. An array that oneDNN keeps in a layout of its own is converted to the
    usual layout in place, also for libraries that take the array itself. The view is valid until the engine
    writes to the array again.
    """
    handle = array.handle
    data = ctypes.c_void_p()
    if not idle:
        mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(handle))
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(handle, ctypes.byref(data)))
    dtype, shape = np.dtype(array.dtype), array.shape
    size = prod(shape) * dtype.itemsize
    memory: Any = (ctypes.c_ubyte * size).from_address(data.value or 0)
    return np.ndarray(shape, dtype, memory)
