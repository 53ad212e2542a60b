"""Iterate over a loader: from its start, from the middle of an epoch, or again and again."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any, Callable, Iterable, Iterator, Sequence

from ...distributed import unwrapped
from ...protocols import Loader
from ..compat import mx
from .array_batching import by_index
from .batchify import batchify_of
from .data_iters import is_resettable, read_pass, replay_pass
from .worker_seeding import (
    has_threads,
    iterate_seeded,
    iterate_threads,
    iterates_as_gluon,
    pass_seed,
    seedable,
)


def iterate(data: Loader, number: int | None = None) -> Iterator[Any]:
    """Iterate over a loader from its start.

    A DataIter begins a new pass. A Gluon DataLoader over arrays is read by index, and worker processes of a
    DataLoader are seeded. `number` is the number of this pass in its run, such as the epoch; see
    :func:`pass_seed`.
    """
    data = unwrapped(data)
    if is_resettable(data):
        yield from read_pass(data)
    else:
        yield from _batches(data, seed_of_pass(data, number))


def _batches(data: Any, seed: int | None, first: int = 0) -> Iterable[Any]:
    """Return a loader's batches; `seed` and `first` are as for :func:`iterate_seeded`."""
    if seed is not None:
        return iterate_seeded(data, seed, first)
    return iterate_threads(data, first) if has_threads(data) else _in_this_process(data)


def _in_this_process(data: Any) -> Iterable[Any]:
    batches = by_index(data)
    if batches is None and type(data) is mx.gluon.data.DataLoader and data._num_workers == 0:
        data = copy.copy(data)
        data._batchify_fn = batchify_of(data)
        data._iter, data.auto_reload = None, False  # a pass of the copy would use up the original's iterator
    return data if batches is None else batches


def iterate_from(
    data: Loader, skip: int, before_rest: Callable[[], None], number: int | None = None
) -> Iterator[Any]:
    """Iterate over the rest of an epoch, without its first `skip` batches.

    The sampler of a Gluon DataLoader draws the skipped batches, but they are not loaded. `before_rest` is
    called after the skipped batches, before the next one is loaded. `number` is the number of the pass, as
    for :func:`iterate`.
    """
    loader: Any = unwrapped(data)
    if has_order(loader):
        seed = seed_of_pass(loader, number)  # before the sampler draws
        order = list(loader._batch_sampler)[skip:]
        before_rest()
        yield from in_order(loader, order, seed, skip)
        return
    batches = iterate(loader)
    for _ in range(skip):
        next(batches, None)
    before_rest()
    yield from batches


def has_order(data: Any) -> bool:
    """Whether a loader is a DataLoader whose batches are those that its batch sampler draws, in that order.

    This does not hold for a subclass that iterates in its own way: it may repeat batches, leave some out, or
    draw random numbers between them.
    """
    return (
        isinstance(data, mx.gluon.data.DataLoader)
        and getattr(data, "_batch_sampler", None) is not None
        and iterates_as_gluon(data)
    )


def seed_of_pass(data: mx.gluon.data.DataLoader, number: int | None) -> int | None:
    """Return the seed from which a loader's workers are seeded in a pass; None if they cannot be seeded."""
    return pass_seed(data, number) if seedable(data) else None


def in_order(
    data: mx.gluon.data.DataLoader, order: Sequence[Any], seed: int | None, first: int
) -> Iterator[Any]:
    """Yield a loader's batches of the samples in `order`; for `seed`, `first` see :func:`iterate_seeded`."""
    rest = copy.copy(data)  # an evaluation on the same loader meanwhile still reads all of it
    rest._batch_sampler, rest._iter, rest.auto_reload = order, None, False
    try:
        yield from _batches(rest, seed, first)
    finally:
        rest._worker_pool = None  # a loader ends its workers when it is deleted, and `data` needs them


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

    That matters for a DataIter or a sampler that shuffles the order of the previous epoch, or that carries
    samples over to the next epoch. Batches are loaded only from a DataIter that carries samples over; of a
    DataLoader, only the sampler runs. ``seed_epoch(epoch)`` seeds the generators as at the start of that
    epoch.
    """
    data = unwrapped(data)
    sampler = getattr(data, "_batch_sampler", None)
    for epoch in range(epochs):
        seed_epoch(epoch)
        if is_resettable(data):
            replay_pass(data)
        elif sampler is not None and not _is_stateless(sampler):
            deque(sampler, maxlen=0)


def _is_stateless(sampler: Any) -> bool:
    """Whether each epoch of a batch sampler is independent of the previous epochs, as is usual."""
    gluon = mx.gluon.data
    return (
        type(sampler) is gluon.BatchSampler
        and type(sampler._sampler) in (gluon.RandomSampler, gluon.SequentialSampler)
        and sampler._last_batch != "rollover"
    )
