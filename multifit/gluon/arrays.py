"""Arrays of every kind that a batch may hold, turned into NDArrays on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .compat import mx

__all__ = ["as_array", "joined", "place", "to_numpy"]


def as_array(leaf: Any) -> Any:
    """Return `leaf` if it is an NDArray or a NumPy array, else as NumPy array where it offers one, else itself."""
    if isinstance(leaf, (mx.nd.NDArray, np.ndarray)) or leaf is None:
        return leaf
    if hasattr(leaf, "__array__") or isinstance(leaf, (int, float, np.generic)):
        return np.asarray(leaf)
    return leaf


def place(array: Any, context: Any, dtype: str | None = None) -> Any:
    """Return the array on `context`; float64 becomes float32, as a net's parameters are.

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
    wanted = np.dtype(dtype) if dtype else np.dtype("float32") if array.dtype == np.float64 else None
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
