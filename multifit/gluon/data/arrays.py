"""Arrays of every kind that a batch may hold, turned into NDArrays on a device."""

from __future__ import annotations

from functools import cache
from typing import Any, Iterable

import numpy as np

from ..compat import mx

__all__ = ["as_array", "cast_of", "form_of", "joined", "place", "to_numpy"]

# What a net's parameters are not, what MXNet has not, or what most of its operators cannot take.
CASTS = {
    "float64": "float32", "float128": "float32", "bool": "float32",
    "int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64",
}  # fmt: skip


def as_array(leaf: Any) -> Any:
    """Return an NDArray or a NumPy array as it is; anything else as NumPy array where it can be one."""
    if isinstance(leaf, (mx.nd.NDArray, np.ndarray)) or leaf is None:
        return leaf
    if hasattr(leaf, "__array__") or isinstance(leaf, (int, float, np.generic)):
        return np.asarray(leaf)
    return leaf


def cast_of(array: Any) -> str | None:
    """Return the dtype that an array of this one's dtype is cast to; None where it stays as it is."""
    return _cast(array.dtype)


@cache  # there are few dtypes, and every array of every batch is asked
def _cast(dtype: Any) -> str | None:
    return CASTS.get(np.dtype(dtype).name)


def form_of(arrays: Iterable[Any]) -> tuple[Any, ...]:
    """Return the arrays' shapes; None for None."""
    return tuple([None if array is None else array.shape for array in arrays])


def place(array: Any, context: Any, dtype: str | None = None) -> Any:
    """Return the array on `context`; a dtype that nets cannot take is cast (`CASTS`), float64 to float32.

    Parameters
    ----------
    array : NDArray, numpy.ndarray or None
        None stays None.
    context : Context
        The device; an array in shared memory (a DataLoader's worker made it) is copied to it.
    dtype : str, optional
        What the array is cast to.
    """
    if array is None:
        return None
    name = dtype or cast_of(array)
    wanted = np.dtype(name) if name else None
    if isinstance(array, np.ndarray):
        return mx.nd.array(array, ctx=context, dtype=wanted or array.dtype)
    if wanted is not None and array.dtype != wanted:
        array = array.astype(wanted)
    return array.as_in_context(context)


def to_numpy(array: Any) -> np.ndarray:
    """Return the array as NumPy array; this waits for the engine."""
    return array if isinstance(array, np.ndarray) else array.asnumpy()


def joined(pieces: list[np.ndarray], sizes: list[int]) -> Any:
    """Concatenate an output's pieces over the batch axis.

    Parameters
    ----------
    pieces : list of numpy.ndarray
        One per device and batch.
    sizes : list of int
        How many samples each was made of.

    Returns
    -------
    numpy.ndarray or list of numpy.ndarray
        The list itself where trailing shapes differ, or where the output has no batch axis.
    """
    batched = all(piece.ndim and len(piece) == size for piece, size in zip(pieces, sizes))
    if batched and len({piece.shape[1:] for piece in pieces}) == 1:
        return np.concatenate(pieces)
    return pieces
