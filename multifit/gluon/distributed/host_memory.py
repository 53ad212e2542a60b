"""The memory of arrays on the CPU, for libraries that read and write it."""

from __future__ import annotations

import ctypes

import numpy as np

from ...protocols import Array
from ..compat import mx


def host_view(array: Array) -> np.ndarray:
    """Return a NumPy array that shares the memory of a dense array on the CPU.

    Waits until nothing reads or writes the array. What oneDNN keeps in a layout of its own is brought into
    the usual one, also for libraries that take the array itself. The view is good until the engine writes
    the array again.
    """
    handle = array.handle  # type: ignore[attr-defined]
    data = ctypes.POINTER(ctypes.c_ubyte)()
    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(handle))
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(handle, ctypes.byref(data)))
    dtype = np.dtype(array.dtype)
    return np.ctypeslib.as_array(data, (array.size * dtype.itemsize,)).view(dtype).reshape(array.shape)
