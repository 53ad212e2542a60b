"""Read MXNet's loaders: Gluon's DataLoader, over arrays also by index, and iterators that are reset."""

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...engines.loaders import Loaders, pass_seed
from ...utils.protocols import Array
from ..compat import mx
from .arrays import new_array, new_rows
from .workers import batchify_of, has_own_workers, iterate_seeded, iterates_as_gluon, seedable


class GluonLoaders(Loaders):
    """Reads Gluon's DataLoaders, and every loader with a `reset`, as MXNet's iterators have it."""

    def reads(self, data: Any) -> bool:
        return isinstance(data, mx.gluon.data.DataLoader) or callable(getattr(data, "reset", None))

    def iterate(self, data: Any, seed: int | None) -> Iterator[Any]:
        return _read_pass(data) if callable(getattr(data, "reset", None)) else _batches(data, seed)

    def seed_of_pass(self, data: Any, number: int | None) -> int | None:
        return pass_seed(data, number) if seedable(data) else None

    def has_order(self, data: Any) -> bool:
        """Whether batches are those that the batch sampler draws, in that order.

        Not so for a subclass that iterates in its own way, as it may repeat batches, leave some out, or draw
        random numbers between them.
        """
        has_sampler = getattr(data, "_batch_sampler", None) is not None
        return isinstance(data, mx.gluon.data.DataLoader) and has_sampler and iterates_as_gluon(data)

    def order(self, data: Any) -> list[Any]:
        return list(data._batch_sampler)

    def samples(self, data: Any) -> int:
        return len(data._dataset)

    def in_order(self, data: Any, order: Iterable[Any], seed: int | None, first: int) -> Iterator[Any]:
        with _copied(data, _batch_sampler=order) as rest:
            yield from _batches(rest, seed, first)

    def is_stateless(self, data: Any) -> bool:
        gluon, sampler = mx.gluon.data, getattr(data, "_batch_sampler", None)
        return sampler is None or (
            type(sampler) is gluon.BatchSampler
            and type(sampler._sampler) in (gluon.RandomSampler, gluon.SequentialSampler)
            and sampler._last_batch != "rollover"
        )

    def draw(self, data: Any) -> None:
        deque(data._batch_sampler, maxlen=0)

    @contextmanager
    def preserved(self, data: Any) -> Iterator[None]:
        sampler = copy.deepcopy(getattr(data, "_batch_sampler", None))
        yield
        if sampler is not None:  # which may keep samples for the next pass
            data._batch_sampler = sampler

    def workers(self, data: Any) -> int:
        return int(data._num_workers) if has_own_workers(data) else 0

    def repeats_workers(self, data: Any) -> bool:
        return not has_own_workers(data) or seedable(data)


LOADERS = GluonLoaders()


def _batches(data: Any, seed: int | None, first: int = 0) -> Iterator[Any]:
    """Return a DataLoader's batches; `seed` and `first` are as for :func:`iterate_seeded`."""
    if seed is not None:
        return iterate_seeded(data, seed, first)
    if (batches := by_index(data)) is not None:
        return batches
    if type(data) is mx.gluon.data.DataLoader and not has_own_workers(data):
        return _in_this_process(data)
    return iter(data)


def _in_this_process(data: Any) -> Iterator[Any]:
    with _copied(data, _batchify_fn=batchify_of(data)) as copied:
        yield from copied


@contextmanager
def _copied(data: Any, **changes: Any) -> Iterator[Any]:
    """Return a DataLoader with other attributes; a pass over `data` meanwhile still reads all of it."""
    copied = copy.copy(data)
    vars(copied).update(changes, _iter=None, auto_reload=False)
    try:
        yield copied
    finally:
        copied._worker_pool = None  # a loader ends its workers when it is deleted, and `data` needs them


# -------------------------------------------------------------------------------------------------- by index

DTYPES = {"float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"}  # MXNet's


def by_index(data: Any) -> Iterator[Any] | None:
    """Return an iterator over a loader's batches that gathers them from the loader's arrays, or None.

    One gather per column and batch replaces a loop over samples. The batches are the same as those of the
    loader itself, bit for bit and in type, and its samplers draw the same random numbers. The batches share
    no memory with the data. Returns None unless the loader is Gluon's own DataLoader, without workers and
    with the default batchify function, over dense arrays: an ArrayDataset, a SimpleDataset or an array.
    """
    if not (
        type(data) is mx.gluon.data.DataLoader
        and data._num_workers == 0
        and not data._pin_memory
        and data._batchify_fn is mx.gluon.data.dataloader.default_batchify_fn
        and not mx.util.is_np_array()
        and not mx.util.is_np_shape()
    ):
        return None
    dataset = _unwrap(data._dataset)
    parts = dataset._data if type(dataset) is mx.gluon.data.ArrayDataset else [dataset]
    columns = [_unwrap(part) for part in parts]
    return _gather_batches(data, columns) if all(map(_rows_are_samples, columns)) else None


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


def _gather_batches(data: Any, columns: list[Any]) -> Iterator[Any]:
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


# ------------------------------------------------------------------------------------------ MXNet's iterators


def _read_pass(data: Any) -> Iterator[Any]:
    """Yield an iterator's batches from its start, with the names of their arrays."""
    provided = [getattr(data, name, None) for name in ("provide_data", "provide_label")]
    for batch in _from_start(data):
        for part in batch if isinstance(batch, list) else [batch]:
            if isinstance(part, mx.io.DataBatch) and part.provide_data is None:
                part.provide_data, part.provide_label = provided
        yield batch


def _from_start(data: Any) -> Iterator[Any]:
    """Reset an iterator, and yield its batches with as much padding as they have."""
    sources = data.iters if isinstance(data, mx.io.PrefetchingIter) else [data]
    if not any(isinstance(source, mx.io.MXDataIter) for source in sources):
        data.reset()
        rolls_over = any(getattr(source, "last_batch_handle", "") == "roll_over" for source in sources)
        for batch in data:
            if rolls_over:
                batch.pad = 0  # NDArrayIter counts the first rows of the new pass as padding
            yield batch
        return
    if getattr(data, "first_batch", None) is None:
        data.reset()
        data.reset()  # the first only says that the rows that filled the last batch may be read again
    padded = None
    for batch in data:
        if padded is not None:  # ImageRecordIter keeps the padding of an earlier pass
            padded.pad = 0
            yield padded
        padded = None
        if batch.pad:  # the next batch takes the same memory
            arrays = [[array.copy() for array in part] for part in (batch.data, batch.label)]
            padded = mx.io.DataBatch(*arrays, batch.pad, batch.index)
        else:
            yield batch
    if padded is not None:
        yield padded
