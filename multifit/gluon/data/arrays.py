"""NDArrays from arrays of any library, on a device; views of their memory, and calls that write into it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...engines import splitter
from ...utils.protocols import Array, Context, Shape
from ..compat import mx

RawArray = Array | np.ndarray
"""An array as a loader yields it."""

Signature = tuple[tuple[Shape, Any] | None, ...]
"""The shape and the dtype of each array of a batch, None for None."""

# Dtypes to cast: MXNet lacks them, most of its operators do not take them, or a net's parameters differ.
CASTS = {
    "float64": "float32", "float128": "float32", "bool": "float32",
    "int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64",
}  # fmt: skip


def as_array(value: Any) -> Any:
    """Return an array-like value as an NDArray or a NumPy array, and any other value as it is.

    Numbers and array-likes, such as torch tensors, become NumPy arrays; SciPy's sparse arrays and those of
    ``mx.np`` become NDArrays.
    """
    if isinstance(value, mx.np.ndarray):
        return value.as_nd_ndarray()
    if isinstance(value, (mx.nd.NDArray, np.ndarray)) or value is None:
        return value
    if hasattr(value, "tocsr"):
        csr = value.tocsr()
        dtype = csr.dtype if csr.dtype == "float64" else cast_dtype(csr.dtype, "float32") or csr.dtype
        return mx.nd.sparse.csr_matrix((csr.data, csr.indices, csr.indptr), shape=csr.shape, dtype=dtype)
    if hasattr(value, "__array__") or isinstance(value, (int, float, np.generic)):
        return np.asarray(value)
    return value


@cache  # called for every array of every batch
def cast_dtype(dtype: Any, real: str) -> str | None:
    """Return the dtype to which arrays are cast for a net with `real` parameters; None if they are fine."""
    target = CASTS.get(np.dtype(dtype).name)
    if real == "float64" and (target == "float32" or np.dtype(dtype).kind == "f"):
        target = real
    return None if target == np.dtype(dtype).name else target


def has_other_dtype(array: Array | None, real: str) -> bool:
    """Whether an array holds numbers of another dtype than `real`, that of the net's parameters."""
    return array is not None and np.dtype(array.dtype).kind in "iuf" and np.dtype(array.dtype) != real


def fewest_casts(run: Callable[[Sequence[str]], object], names: Sequence[str]) -> Sequence[str]:
    """Return the fewest arrays, of those in `names`, without whose cast ``run(cast)`` raises no error.

    Returns an empty list if casting all of them does not help.
    """

    def runs(cast: Sequence[str]) -> bool:
        try:
            run(cast)
        except Exception:
            return False
        return True

    if not runs(names):
        return []
    for name in names if len(names) > 1 else ():
        fewer = [other for other in names if other != name]
        names = fewer if runs(fewer) else names
    return names


def cast_line(name: str, before: Any, dtype: str) -> str:
    """Return what is logged of a slot that is cast."""
    return splitter.cast_line(name, np.dtype(before).name, dtype)


def mxnet_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype in which MXNet computes with numbers of `dtype`: the same one or a larger one."""
    source = np.dtype(dtype)
    return source if source == np.float64 else np.dtype(CASTS.get(source.name, source))


@cache  # called for every batch
def sought_in(dtype: Any, cast: str | None) -> np.dtype[Any]:
    """Return the dtype in which a label is compared with its missing value, before it is cast to `cast`.

    Integers hold no NaN, and -999.9 in float16 is not the same number as in float32. So the label is compared
    in its own dtype or, if it is cast to floats of fewer digits, in those.
    """
    source, target = np.dtype(dtype), np.dtype(cast or dtype)
    is_shorter = target.kind == source.kind == "f" and target.itemsize < source.itemsize
    return target if is_shorter else mxnet_dtype(source)


def samples(array: RawArray, rows: slice, axis: int) -> RawArray:
    """Return some samples of an array; row-sparse ones, which cannot be sliced, become dense."""
    if isinstance(array, mx.nd.sparse.RowSparseNDArray):
        array = array.tostype("default")
    return array[(slice(None),) * axis + (rows,)] if axis else array[rows]  # CSR arrays take no tuple


def common_dtype(arrays: Sequence[Any]) -> np.dtype[Any]:
    """Return the dtype that holds the numbers of all arrays, according to NumPy."""
    return np.result_type(*[array.dtype for array in arrays])


def concatenated(arrays: Sequence[Any], axis: int) -> RawArray:
    """Join arrays of NumPy or MXNet along an axis, in their common dtype; on the first NDArray's device."""
    first = next((array for array in arrays if isinstance(array, mx.nd.NDArray)), None)
    if first is None:
        return np.concatenate(arrays, axis)
    dtype = mxnet_dtype(common_dtype(arrays))
    return mx.nd.concat(*(moved(array, first.context, dtype) for array in arrays), dim=axis)


def signature_of(arrays: Iterable[RawArray | None]) -> Signature:
    """Return the signature of arrays."""
    return tuple([None if array is None else (array.shape, array.dtype) for array in arrays])


def size_in_bytes(array: RawArray) -> int:
    """Return how many bytes the elements of an array take; of a sparse one, as if it were dense."""
    return math.prod(array.shape) * np.dtype(array.dtype).itemsize


def moved(array: RawArray, context: Context, dtype: Any = None) -> Array:
    """Return an array on `context`, cast to `dtype` if one is given.

    An array in shared memory, made by a worker of a DataLoader, is copied to the device.
    """
    if isinstance(array, np.ndarray):
        return new_array(array, context, dtype)
    return (array if dtype is None or array.dtype == dtype else array.astype(dtype)).as_in_context(context)


def to_numpy(array: RawArray) -> np.ndarray:
    """Return the array as a NumPy array; waits for the device."""
    return array if isinstance(array, np.ndarray) else array.asnumpy()


def new_array(values: Any, context: Context | None = None, dtype: Any = None) -> Array:
    """Return an array-like as an NDArray; by default on the current device, and with the values' dtype.

    The values are written straight into the new array's memory. ``mx.nd.array`` first waits
    until the array is not in use, which takes .15 ms, and longer while the device computes.
    """
    values = np.asarray(values)
    target = np.dtype(dtype or values.dtype)
    context = context or mx.context.current_context()
    if context.device_type != "cpu" or target.kind == "V" or not (values.ndim and values.size):
        return mx.nd.array(values, ctx=context, dtype=target)
    array = mx.nd.empty(values.shape, context, target)
    host_view(array, idle=True)[...] = values
    return array


def new_rows(column: np.ndarray, rows: np.ndarray) -> Array:
    """Return some rows of a contiguous array as an NDArray in the current context."""
    if mx.context.current_context().device_type != "cpu":
        return new_array(column[rows])
    array = mx.nd.empty((len(rows), *column.shape[1:]), dtype=column.dtype)
    # mode="raise" would copy through a buffer
    np.take(column, rows, axis=0, out=host_view(array, idle=True), mode="wrap")
    return array


def host_view(array: Array, idle: bool = False) -> np.ndarray:
    """Return a NumPy array that shares the memory of a dense array on the CPU.

    Waits until nothing reads or writes the array; with ``idle=True`` it does not wait, for an array that no
    operator uses, such as a new one. An array that oneDNN stores in an order of its own is converted to the
    usual order in place, also for libraries that take the array itself. The view is valid until the device
    writes to the array again.
    """
    handle = array.handle
    data = ctypes.c_void_p()
    if not idle:
        mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(handle))
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(handle, ctypes.byref(data)))
    dtype, shape = np.dtype(array.dtype), array.shape
    size = math.prod(shape) * dtype.itemsize
    memory: Any = (ctypes.c_ubyte * size).from_address(data.value or 0)
    return np.ndarray(shape, dtype, memory)


class InPlaceCall:
    """Calls one of MXNet's operators on `inputs`, and lets it write into `outputs`, on their device.

    The functions of ``mx.nd`` look at every array in each call, which takes longer than to start the
    operator.
    """

    def __init__(self, operator: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._arrays = [*inputs, *outputs]  # kept alive, because their handles are used
        self._operator = ctypes.c_void_p()
        name = mx.base.c_str(operator)
        mx.base.check_call(mx.base._LIB.NNGetOpHandle(name, ctypes.byref(self._operator)))
        handles = ctypes.POINTER(mx.base.NDArrayHandle)
        self._inputs, self._n_inputs = mx.base.c_handle_array(inputs), ctypes.c_int(len(inputs))
        self._outputs = ctypes.cast(mx.base.c_handle_array(outputs), handles)
        self._n_outputs = ctypes.c_int(len(outputs))
        self._options: dict[str, Any] = {}
        self._names = self._values = (ctypes.c_char_p * 0)()

    def take(self, source: Any) -> None:
        """Replace the first input by another array."""
        self._arrays[0], self._inputs[0] = source, source.handle

    def __call__(self, **options: Any) -> None:
        """Call the operator; its options are numbers, or lists of numbers."""
        if options.keys() != self._options.keys():
            self._options = dict.fromkeys(options)
            self._names = mx.base.c_str_array(options)
            self._values = (ctypes.c_char_p * len(options))()
        for at, (name, value) in enumerate(options.items()):
            if value != self._options[name]:  # formatting a list takes long
                self._options[name], self._values[at] = value, str(value).encode()
        mx.base.check_call(
            mx.base._LIB.MXImperativeInvokeEx(
                self._operator,
                self._n_inputs,
                self._inputs,
                ctypes.byref(self._n_outputs),
                ctypes.byref(self._outputs),
                ctypes.c_int(len(options)),
                self._names,
                self._values,
                ctypes.byref(ctypes.POINTER(ctypes.c_int)()),
            )
        )
