"""Convert the arrays of a batch, of whatever kind, to NDArrays on a device."""

from __future__ import annotations

from functools import cache
from typing import Any, Iterable, Union

import numpy as np

from ...protocols import Array, Context, Shape
from ..compat import mx

RawArray = Union[Array, np.ndarray]
"""An array as a loader yields it."""

# Dtypes that MXNet lacks, that most of its operators do not take, or that a net's parameters do not have.
CASTS = {
    "float64": "float32", "float128": "float32", "bool": "float32",
    "int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64",
}  # fmt: skip


def as_array(value: Any) -> Any:
    """Convert numbers and array-likes, such as torch tensors, to NumPy; return anything else as it is.

    An ``mx.np.ndarray`` becomes the NDArray that shares its memory.
    """
    if isinstance(value, mx.np.ndarray):
        return value.as_nd_ndarray()
    if isinstance(value, (mx.nd.NDArray, np.ndarray)) or value is None:
        return value
    if hasattr(value, "__array__") or isinstance(value, (int, float, np.generic)):
        return np.asarray(value)
    return value


def cast_dtype(array: RawArray, real: str = "float32") -> str | None:
    """Return the dtype to which an array is cast for a net of `real` parameters; None if its own is fine."""
    return _cast(array.dtype, real)


@cache  # called for every array of every batch
def _cast(dtype: Any, real: str) -> str | None:
    target = CASTS.get(np.dtype(dtype).name)
    if real == "float64" and (target == "float32" or np.dtype(dtype).kind == "f"):
        target = real
    return None if target == np.dtype(dtype).name else target


def samples(array: RawArray, rows: slice, axis: int) -> RawArray:
    """Return some samples of an array; sparse arrays can be sliced along axis 0 only."""
    return array[(slice(None),) * axis + (rows,)] if axis else array[rows]


def shapes_of(arrays: Iterable[RawArray | None]) -> tuple[Shape | None, ...]:
    """Return the shape of each array; None for None."""
    return tuple([None if array is None else array.shape for array in arrays])


def place(array: RawArray | None, context: Context, dtype: str | None = None) -> Array | None:
    """Return the array on `context`, cast to `dtype` if one is given.

    An array in shared memory, made by a worker of a DataLoader, is copied to the device. None stays None.
    """
    if array is None:
        return None
    target = np.dtype(dtype) if dtype else None
    if isinstance(array, np.ndarray):
        return mx.nd.array(array, ctx=context, dtype=target or array.dtype)
    if target is not None and array.dtype != target:
        array = array.astype(target)
    return array.as_in_context(context)


def to_numpy(array: RawArray) -> np.ndarray:
    """Return the array as a NumPy array; waits for the engine."""
    return array if isinstance(array, np.ndarray) else array.asnumpy()


def joined(pieces: list[np.ndarray], sizes: list[int]) -> np.ndarray | list[np.ndarray]:
    """Concatenate an output's pieces, one per device and batch, over the batch axis.

    `sizes` are the pieces' numbers of samples. The list is returned as it is if trailing shapes differ, or if
    the output has no batch axis.
    """
    batched = all(piece.ndim and len(piece) == size for piece, size in zip(pieces, sizes))
    if batched and len({piece.shape[1:] for piece in pieces}) == 1:
        return np.concatenate(pieces)
    return pieces
