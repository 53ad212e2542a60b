"""Read MXNet's loaders: Gluon's DataLoader, and iterators that are reset."""

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...engines.loaders import Loaders, pass_seed
from ..compat import mx
from .by_index import by_index
from .workers import batchify_of, has_own_workers, iterate_seeded, iterates_as_gluon, seedable


class GluonLoaders(Loaders):
    """Reads Gluon's DataLoaders, and every loader with a `reset`, as MXNet's iterators have it."""

    def own(self, data: Any) -> bool:
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
    """Yield a DataLoader's batches; `seed` and `first` are as for :func:`iterate_seeded`."""
    if seed is not None:
        yield from iterate_seeded(data, seed, first)
    elif (batches := by_index(data)) is not None:
        yield from batches
    elif type(data) is mx.gluon.data.DataLoader and not has_own_workers(data):
        with _copied(data, _batchify_fn=batchify_of(data)) as copied:
            yield from copied
    else:
        yield from data


@contextmanager
def _copied(data: Any, **changes: Any) -> Iterator[Any]:
    """Return a DataLoader with other attributes; a pass over `data` meanwhile still reads all of it."""
    copied = copy.copy(data)
    vars(copied).update(changes, _iter=None, auto_reload=False)
    try:
        yield copied
    finally:
        copied._worker_pool = None  # a loader ends its workers when it is deleted, and `data` needs them


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
