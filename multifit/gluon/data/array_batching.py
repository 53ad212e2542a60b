"""Data that lies in arrays is batched by index: one gather per column and batch, no loop over samples."""

from __future__ import annotations

import ctypes
from typing import Any, Iterator

import numpy as np

from ..compat import mx

__all__ = ["by_index", "columns_of"]

DTYPES = {"float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"}  # what MXNet can hold


def by_index(data: Any) -> Iterator[Any] | None:
    """Return an iterator over a loader's batches that takes them from the loader's arrays whole.

    The batches are those of the loader itself, bit for bit and of the same types, and its samplers draw what
    they would draw. They share no memory with the data.

    Parameters
    ----------
    data : loader
        Any.

    Returns
    -------
    iterator or None
        None where it is not Gluon's own DataLoader, working in this process and with its default batchify,
        over an ArrayDataset, SimpleDataset or array of dense arrays.
    """
    columns = columns_of(data._dataset) if _plain(data) else None
    return None if columns is None else _batches(data, columns)


def columns_of(dataset: Any) -> list[Any] | None:
    """Return the arrays whose rows are a data set's samples; None where it is not made of arrays alone."""
    dataset = _unwrapped(dataset)
    parts = dataset._data if type(dataset) is mx.gluon.data.ArrayDataset else [dataset]
    columns = [_unwrapped(part) for part in parts]
    if not all(map(_whole, columns)) or len({len(column) for column in columns}) != 1:
        return None
    return columns


def _plain(data: Any) -> bool:
    """Whether it is a loader that Gluon's own code makes batches for, here, in the default way."""
    return (
        type(data) is mx.gluon.data.DataLoader
        and data._num_workers == 0
        and not data._pin_memory
        and data._batchify_fn is mx.gluon.data.dataloader.default_batchify_fn
        and data._iter is None  # else its first order is drawn already
        and not data.auto_reload
        and not mx.util.is_np_array()
        and not mx.util.is_np_shape()
    )


def _unwrapped(data: Any) -> Any:
    while type(data) is mx.gluon.data.SimpleDataset:
        data = data._data
    return data


def _whole(column: Any) -> bool:
    """Whether the samples of a column are its rows, and a batch of them is one array."""
    if type(column) is mx.nd.NDArray:
        return column.ndim > 1  # the items of a vector are vectors of one
    if type(column) not in (np.ndarray, np.memmap):
        return False
    return column.size > 0 and column.dtype.isnative and column.dtype.name in DTYPES


def _batches(data: Any, columns: list[Any]) -> Iterator[Any]:
    size = len(columns[0])
    for samples in data._batch_sampler:
        rows = np.asarray(samples)
        if (
            rows.ndim == 1
            and rows.dtype.kind == "i"
            and len(rows)
            and -size <= rows.min()
            and rows.max() < size
        ):
            batch = [_taken(column, rows) for column in columns]
            yield batch if len(batch) > 1 else batch[0]
        else:  # an index that only the data set itself understands, or complains of
            yield data._batchify_fn([data._dataset[i] for i in samples])


def _taken(column: Any, rows: Any) -> Any:
    if type(column) is mx.nd.NDArray:
        index = _written(len(rows), np.where(rows < 0, rows + len(column), rows))
        return mx.nd.take(column, index.as_in_context(column.context))
    if column.flags.c_contiguous:
        return _written(len(rows), column, rows)
    return _written(len(rows), column[rows])  # np.take would make all of it contiguous first


def _written(count: int, column: Any, rows: Any = None) -> Any:
    """Return a NumPy array, or rows of it, as an NDArray in the current context.

    Written straight into the new array's memory: ``mx.nd.array`` asks the engine's threads first whether
    somebody uses it, which takes several times as long as to copy a small batch.
    """
    if mx.context.current_context().device_type != "cpu":
        return mx.nd.array(column if rows is None else column[rows], dtype=column.dtype)
    array = mx.nd.empty((count, *column.shape[1:]), dtype=column.dtype)
    target = _memory(array, column.dtype)
    if rows is None:
        target[...] = column
    else:
        np.take(column, rows, axis=0, out=target, mode="wrap")  # mode="raise" would buffer
    return array


def _memory(array: Any, dtype: Any) -> Any:
    """Return the memory of a new NDArray, which nothing uses yet, as a NumPy array."""
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    raw = (ctypes.c_byte * (array.size * dtype.itemsize)).from_address(address.value)
    return np.frombuffer(raw, dtype).reshape(array.shape)
