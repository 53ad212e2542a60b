"""The memory of arrays on the CPU, for libraries that read and write it."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from ...protocols import Array
from ..compat import mx


def host_view(array: Array, idle: bool = False) -> np.ndarray:
    """Return a NumPy array that shares the memory of a dense array on the CPU.

    Waits until nothing reads or writes the array, unless the engine is `idle` or does not know it yet. What
    oneDNN keeps in a layout of its own is brought into the usual one, also for libraries that take the array
    itself. The view is good until the engine writes the array again.
    """
    handle = array.handle  # type: ignore[attr-defined]
    data = ctypes.c_void_p()
    if not idle:
        mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(handle))
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(handle, ctypes.byref(data)))
    dtype, shape = np.dtype(array.dtype), array.shape
    size = prod(shape) * dtype.itemsize
    memory: Any = (ctypes.c_ubyte * size).from_address(data.value or 0)
    return np.ndarray(shape, dtype, memory)
