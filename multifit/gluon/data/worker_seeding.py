"""A DataLoader's worker processes, seeded apart: what a batch draws depends on its number, not on its worker.

Gluon forks its workers with one and the same state of NumPy's and MXNet's generators, and never seeds them:
workers repeat each other's augmentation, and who draws what is a matter of chance. Here each batch carries
the seed with which it is made.
"""

from __future__ import annotations

import pydoc
from typing import Any, Iterable, Iterator
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from ..compat import mx
from .seeding import mixed, seed_everything
from .transform_randomness import may_draw

__all__ = ["base_of", "has_own_workers", "numbered", "seedable"]

_reached: WeakSet[Any] = WeakSet()  # pools whose workers can import this file
_passes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by loader, where nobody counts them


def has_own_workers(data: Any) -> bool:
    """Whether processes of the loader's own, with random generators of their own, make its batches."""
    return isinstance(data, mx.gluon.data.DataLoader) and data._num_workers > 0 and not data._thread_pool


def seedable(data: Any) -> bool:
    """Whether :func:`numbered` can go through a loader: Gluon's own way through it, by worker processes.

    A loader that draws an epoch's order ahead (``auto_reload``), a subclass that goes its own way, and
    workers that cannot import multifit are left as they are.
    """
    own = mx.gluon.data.DataLoader
    return (
        has_own_workers(data)
        and all(getattr(type(data), name) is getattr(own, name) for name in ("__iter__", "_prefetch_iter"))
        and data._iter is None
        and not data.auto_reload
        and _reaches(data._worker_pool, data._timeout)
    )


def base_of(data: Any, turn: int | None) -> int:
    """Return the number that the seeds of a pass over the data are made from; nothing is drawn.

    It follows from NumPy's state, so ``np.random.seed`` makes a run repeatable, workers included, and so does
    the run's seed; and from the turn, because a loader that does not shuffle leaves that state as it is.

    Parameters
    ----------
    data : DataLoader
        Whose pass it is.
    turn : int or None
        What tells this pass from others that a run makes; None: how many there were.
    """
    if turn is None:
        turn = _passes[data] = _passes.get(data, -1) + 1
    state = np.random.get_state(legacy=False)["state"]
    return mixed(turn, int(state["pos"]), *state["key"].tolist())


def numbered(data: Any, base: int, order: Iterable[Any], first: int = 0) -> Iterator[Any]:
    """Go through a loader with its own workers, which Gluon keeps between epochs, and with seeds of ours.

    Parameters
    ----------
    data : DataLoader
        One that is `seedable`.
    base : int
        See :func:`base_of`.
    order : iterable
        What its batch sampler yields, or the rest of it.
    first : int
        The number of the first batch in its epoch.
    """
    gluon = mx.gluon.data.dataloader
    # To seed costs a millisecond, nearly all of it MXNet's.
    draws = data._batchify_fn is not gluon.default_mp_batchify_fn or may_draw(data._dataset)
    seeded = ((mixed(base, n) if draws else None, samples) for n, samples in enumerate(order, first))
    return gluon._MultiWorkerIter(
        data._worker_pool,
        data._batchify_fn,
        seeded,
        pin_memory=data._pin_memory,
        pin_device_id=data._pin_device_id,
        worker_fn=_make_batch,
        prefetch=data._prefetch,
        data_loader=data,
        timeout=data._timeout,
    )


def _make_batch(seeded: tuple[int | None, Any], batchify: Any, dataset: Any = None) -> Any:
    """Run in a worker, in place of Gluon's function: seed, then make the batch as Gluon does."""
    seed, samples = seeded
    if seed is not None:
        seed_everything(seed)
    return mx.gluon.data.dataloader._worker_fn(samples, batchify, dataset)


def _reaches(pool: Any, timeout: float) -> bool:
    """Whether a pool's workers can import this file: one that cannot would die of its first task, unheard."""
    if pool not in _reached:
        name = f"{__name__}.{_make_batch.__name__}.__name__"  # a string, for what comes back is pickled
        try:
            found = pool.apply_async(pydoc.locate, (name,)).get(timeout)
        except Exception:  # whatever it is, Gluon's own way through the loader tells of it
            return False
        if found is None:
            return False
        _reached.add(pool)
    return True
