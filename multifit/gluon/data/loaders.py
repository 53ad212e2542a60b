"""Iterate over a loader: from its start, from the middle of an epoch, or again and again."""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...array_batches import ArrayBatches
from ...distributed import unwrapped
from ...protocols import Loader
from ..compat import mx
from .by_index import by_index
from .workers import batchify_of, has_own_workers, iterate_seeded, iterates_as_gluon, pass_seed, seedable


def iterate(data: Loader, number: int | None = None) -> Iterator[Any]:
    """Iterate over a loader from its start.

    A DataIter begins a new pass. A Gluon DataLoader over arrays is read by index, and worker processes of a
    DataLoader are seeded. `number` is the number of this pass in its run, such as the epoch; see
    :func:`pass_seed`.
    """
    data = unwrapped(data)
    if callable(getattr(data, "reset", None)):
        yield from _read_pass(data)
    else:
        yield from _batches(data, seed_of_pass(data, number))


def _batches(data: Any, seed: int | None, first: int = 0) -> Iterator[Any]:
    """Yield a loader's batches; `seed` and `first` are as for :func:`iterate_seeded`."""
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


def iterate_from(
    data: Loader, skip: int, before_rest: Callable[[], None], number: int | None = None
) -> Iterator[Any]:
    """Iterate over the rest of an epoch, without its first `skip` batches.

    The skipped batches of a loader that :func:`has_order` are drawn, but not loaded. `before_rest` is called
    after the skipped batches, before the next one is loaded. `number` is the number of the pass, as for
    :func:`iterate`.
    """
    loader: Any = unwrapped(data)
    if has_order(loader):
        seed = seed_of_pass(loader, number)  # before the sampler draws
        order = order_of(loader)[skip:]
        before_rest()
        yield from in_order(loader, order, seed, skip)
        return
    batches = iterate(loader)
    for _ in range(skip):
        next(batches, None)
    before_rest()
    yield from batches


def has_order(data: Any) -> bool:
    """Whether the order of a loader's batches can be drawn without loading them; see :func:`order_of`.

    This holds for `multifit.batches`, and for a DataLoader whose batches are those that its batch sampler
    draws, in that order: not for a subclass that iterates in its own way, as it may repeat batches, leave
    some out, or draw random numbers between them.
    """
    return isinstance(data, ArrayBatches) or (
        isinstance(data, mx.gluon.data.DataLoader)
        and getattr(data, "_batch_sampler", None) is not None
        and iterates_as_gluon(data)
    )


def order_of(data: Any) -> list[Any]:
    """Draw the order of a loader that :func:`has_order`: the samples of each batch."""
    return data.order() if isinstance(data, ArrayBatches) else list(data._batch_sampler)


def seed_of_pass(data: Any, number: int | None) -> int | None:
    """Return the seed from which a loader's workers are seeded in a pass; None if they cannot be seeded."""
    return pass_seed(data, number) if seedable(data) else None


def in_order(data: Any, order: Sequence[Any], seed: int | None, first: int) -> Iterator[Any]:
    """Yield a loader's batches of the samples in `order`; for `seed`, `first` see :func:`iterate_seeded`."""
    if isinstance(data, ArrayBatches):
        yield from data.in_order(order)
        return
    with _copied(data, _batch_sampler=order) as rest:
        yield from _batches(rest, seed, first)


def repeat(data: Loader) -> Iterator[Any]:
    """Iterate over a loader again and again, until a pass yields no batch."""
    empty = False
    while not empty:
        empty = True
        for batch in iterate(data):
            empty = False
            yield batch


def replay_epochs(data: Loader, epochs: int, seed_epoch: Callable[[int], None]) -> None:
    """Bring a loader to the state that it has after a number of epochs.

    That matters for a sampler that shuffles the order of the previous epoch, or that carries samples over to
    the next epoch, and for PyTorch's loaders with a generator of their own or with persistent workers, which
    alone load batches. ``seed_epoch(epoch)`` seeds the generators as at the start of that epoch.
    """
    loader: Any = unwrapped(data)
    for epoch in range(epochs) if not _is_stateless(loader) else ():
        seed_epoch(epoch)
        deque(_drawn(loader), maxlen=0)


def _drawn(loader: Any) -> Any:
    """Begin a pass, and return the order that it draws."""
    if hasattr(loader, "_batch_sampler"):
        return loader._batch_sampler
    if not loader.persistent_workers:
        loader = copy.copy(loader)
        loader.num_workers = loader.timeout = 0  # starts no processes
    order = getattr(iter(loader), "_sampler_iter", ())  # iter() draws the seed of the workers
    return order if hasattr(loader.sampler, "__len__") else ()  # that of an IterableDataset never ends


def _is_stateless(loader: Any) -> bool:
    """Whether each epoch of a loader is independent of the previous epochs, as is usual."""
    if hasattr(loader, "persistent_workers"):  # PyTorch's
        drawing = loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)
        own = any(getattr(each, "generator", None) is not None for each in drawing)
        return not own and not loader.persistent_workers
    gluon, sampler = mx.gluon.data, getattr(loader, "_batch_sampler", None)
    return sampler is None or (
        type(sampler) is gluon.BatchSampler
        and type(sampler._sampler) in (gluon.RandomSampler, gluon.SequentialSampler)
        and sampler._last_batch != "rollover"
    )


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
