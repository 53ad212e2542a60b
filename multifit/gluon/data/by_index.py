"""Read a DataLoader over arrays by index: one gather per column and batch instead of a loop over samples."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...protocols import Array
from ..compat import mx
from .arrays import new_array, new_rows

DTYPES = {"float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"}  # MXNet's

Column = Array | np.ndarray


def by_index(data: Any) -> Iterator[Any] | None:
    """Return an iterator over a loader's batches that gathers them from the loader's arrays, or None.

    The batches are the same as those of the loader itself, bit for bit and in type, and its samplers draw the
    same random numbers. The batches share no memory with the data. Returns None unless the loader is Gluon's
    own DataLoader, without workers and with the default batchify function, over dense arrays: an
    ArrayDataset, a SimpleDataset or an array.
    """
    if not _is_default_loader(data):
        return None
    dataset = _unwrap(data._dataset)
    parts = dataset._data if type(dataset) is mx.gluon.data.ArrayDataset else [dataset]
    columns = [_unwrap(part) for part in parts]
    return _gather_batches(data, columns) if all(map(_rows_are_samples, columns)) else None


def _is_default_loader(data: Any) -> bool:
    """Whether Gluon's own code makes the loader's batches, in this process and in the default way."""
    return (
        type(data) is mx.gluon.data.DataLoader
        and data._num_workers == 0
        and not data._pin_memory
        and data._batchify_fn is mx.gluon.data.dataloader.default_batchify_fn
        and not mx.util.is_np_array()
        and not mx.util.is_np_shape()
    )


def _unwrap(data: Any) -> Any:
    while type(data) is mx.gluon.data.SimpleDataset:
        data = data._data
    return data


def _rows_are_samples(column: Any) -> bool:
    """Whether the rows of an array are its samples, and a batch of them is one array."""
    if type(column) is mx.nd.NDArray:
        return column.ndim > 1  # the items of a vector are vectors of length 1
    if type(column) not in (np.ndarray, np.memmap):
        return False
    return column.size > 0 and column.dtype.isnative and column.dtype.name in DTYPES


def _gather_batches(data: Any, columns: list[Column]) -> Iterator[Any]:
    size = len(columns[0])
    for samples in data._batch_sampler:
        rows = np.asarray(samples)
        are_numbers = rows.ndim == 1 and rows.dtype.kind == "i" and len(rows) > 0
        if are_numbers and -size <= rows.min() and rows.max() < size:
            batch = [_gather(column, rows) for column in columns]
            yield batch if len(batch) > 1 else batch[0]
        else:  # the data set itself understands the index, or raises
            yield data._batchify_fn([data._dataset[i] for i in samples])


def _gather(column: Any, rows: np.ndarray) -> Array:
    if type(column) is mx.nd.NDArray:
        index = new_array(np.where(rows < 0, rows + len(column), rows), column.context)
        return mx.nd.take(column, index)
    if column.flags.c_contiguous:
        return new_rows(column, rows)
    return new_array(column[rows])  # np.take would make the whole column contiguous first
