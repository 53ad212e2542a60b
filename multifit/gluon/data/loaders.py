"""Going through a loader: from its start, from within an epoch, by its first batch."""

from __future__ import annotations

import copy
from collections import deque
from itertools import chain
from typing import Any, Callable, Iterable, Iterator

from ...checks import loader_problems
from ...errors import DataError, Problem, raise_problems
from ..compat import mx
from .array_batching import by_index
from .worker_seeding import base_of, numbered, seedable

__all__ = ["iterate", "iterate_from", "length", "no_batch", "peek_first", "replay"]


def iterate(data: Any, turn: int | None = None) -> Iterator[Any]:
    """Iterate over a loader from its start; a DataIter is reset, and shuffled perhaps, when it is read.

    Parameters
    ----------
    data : loader
        Any. Of a Gluon DataLoader, what lies in arrays is taken by index, and workers are seeded apart.
    turn : int, optional
        What tells this pass from others that a run makes.
    """
    if callable(getattr(data, "reset", None)):
        data.reset()
    if seedable(data):
        yield from numbered(data, base_of(data, turn), data._batch_sampler)
    else:
        yield from _in_process(data)


def _in_process(data: Any) -> Iterable[Any]:
    batches = by_index(data)
    return data if batches is None else batches


def iterate_from(data: Any, skip: int, then: Callable[[], None], turn: int | None = None) -> Iterator[Any]:
    """Iterate over a loader from behind its first `skip` batches on.

    Parameters
    ----------
    data : loader
        Of a Gluon DataLoader the batches that are skipped are not loaded, only drawn.
    skip : int
        How many batches there were.
    then : callable
        Called when the position is reached, before the next batch is loaded.
    turn : int, optional
        As it was for :func:`iterate`.
    """
    if isinstance(data, mx.gluon.data.DataLoader) and getattr(data, "_batch_sampler", None) is not None:
        yield from _rest(data, skip, then, turn)
        return
    batches = iterate(data)
    for _ in range(skip):
        next(batches, None)
    then()
    yield from batches


def _rest(data: Any, skip: int, then: Callable[[], None], turn: int | None) -> Iterator[Any]:
    base = base_of(data, turn) if seedable(data) else None  # as at the begin: nothing is drawn yet
    order = list(data._batch_sampler)[skip:]
    rest = copy.copy(data)  # who evaluates on the loader meanwhile wants all of it
    rest._batch_sampler, rest._iter, rest.auto_reload = order, None, False
    then()
    try:
        yield from _in_process(rest) if base is None else numbered(rest, base, order, skip)
    finally:
        rest._worker_pool = None  # which a loader ends when it goes, and the whole one still needs


def replay(data: Any, epochs: int, seed_epoch: Callable[[int], None]) -> None:
    """Bring a loader that goes on from what it had in the epoch before to where it was after so many.

    That is a DataIter, or a DataLoader's sampler, that shuffles what it shuffled before, or that leaves
    samples over for the next epoch.

    Parameters
    ----------
    data : loader
        Batches are loaded only of a DataIter that leaves samples over.
    epochs : int
        How many epochs were trained.
    seed_epoch : callable
        Seeds the generators as at the begin of the epoch that it is given.
    """
    sampler = getattr(data, "_batch_sampler", None)
    for epoch in range(epochs):
        seed_epoch(epoch)
        if callable(getattr(data, "reset", None)):
            data.reset()
            if getattr(data, "last_batch_handle", "") == "roll_over":
                deque(data, maxlen=0)
        elif sampler is not None and not _forgets(sampler):
            deque(sampler, maxlen=0)


def _forgets(sampler: Any) -> bool:
    """Whether it is a batch sampler of Gluon's that begins each epoch anew: the usual case."""
    own = mx.gluon.data
    return (
        type(sampler) is own.BatchSampler
        and type(sampler._sampler) in (own.RandomSampler, own.SequentialSampler)
        and sampler._last_batch != "rollover"
    )


def length(data: Any) -> int | None:
    """Return the number of batches, where the loader knows it."""
    try:
        return len(data)
    except TypeError:  # no __len__, or one that asks a sampler which has none
        return None


def no_batch(what: str, epoch: int = 0, read: bool = False) -> list[Problem]:
    """Say that a loader yielded nothing; `read`: in an earlier epoch it did yield batches."""
    message = f'{what} is empty: it yields no batch; give it at least one (mind last_batch="discard")'
    if read:
        message = (
            f"{what} yields no batch in epoch {epoch + 1}, though it did before: it can be read only once; "
            "give a DataLoader, a list, or a DataIter with reset()"
        )
    return [Problem("data", message)]


def peek_first(data: Any, what: str, turn: int | None = None) -> tuple[Any, Iterator[Any]]:
    """Return a loader's first batch and an iterator over all of it, the first included.

    `turn` is that of :func:`iterate`.

    Raises
    ------
    DataError
        The loader is empty, or is none.
    """
    raise_problems(loader_problems(what, data, once=True))
    iterator = iterate(data, turn)
    for first in iterator:
        return first, chain([first], iterator)
    raise DataError(no_batch(what))
