"""Seed the worker processes of a DataLoader, so that a batch's randomness follows from its number.

Gluon forks its workers with identical states of NumPy's and MXNet's generators, and never seeds them: workers
repeat each other's augmentation, and which worker makes which batch is a matter of chance. Here, each batch
is sent to its worker together with its own seed.
"""

from __future__ import annotations

import pydoc
from typing import Any, Callable, Iterator
from weakref import WeakKeyDictionary, WeakSet

from ...seeding import mixed, seed_everything, state_hash
from ..compat import mx
from .array_batching import columns_of
from .batchify import DEFAULTS, batchify_of
from .worker_batches import batches_from_workers, wait, watch
from .worker_signals import outlive_signals

_data, _nn, _vision = mx.gluon.data, mx.gluon.nn, mx.gluon.data.vision.transforms
DETERMINISTIC = {_vision.Cast, _vision.CenterCrop, _vision.Normalize, _vision.Resize, _vision.ToTensor}
CONTAINERS = {_vision.Compose, _nn.Sequential, _nn.HybridSequential}

_importing_pools: WeakSet[Any] = WeakSet()  # pools whose workers can import this file
_passes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by loader: the last number counted here


def has_own_workers(data: Any) -> bool:
    """Whether worker processes, with random generators of their own, make the loader's batches."""
    return isinstance(data, mx.gluon.data.DataLoader) and data._num_workers > 0 and not data._thread_pool


def seedable(data: Any) -> bool:
    """Whether :func:`iterate_seeded` works for a loader.

    It works for Gluon's DataLoader with worker processes. It does not work for one that draws the order of an
    epoch ahead (``auto_reload``), for a subclass that iterates in its own way, or if the workers cannot
    import multifit.
    """
    return has_own_workers(data) and _begins_now(data) and _can_import(data._worker_pool, data._timeout)


def has_threads(data: Any) -> bool:
    """Whether :func:`iterate_threads` works for a loader."""
    is_gluon = isinstance(data, mx.gluon.data.DataLoader)
    return is_gluon and data._num_workers > 0 and data._thread_pool and _begins_now(data)


def iterates_as_gluon(data: mx.gluon.data.DataLoader) -> bool:
    """Whether a DataLoader yields a batch for each item of its batch sampler; subclasses may not do that."""
    gluon = mx.gluon.data.DataLoader
    return all(getattr(type(data), name) is getattr(gluon, name) for name in ("__iter__", "_prefetch_iter"))


def _begins_now(data: mx.gluon.data.DataLoader) -> bool:
    """Whether a DataLoader iterates as Gluon's does, and draws the order of an epoch when that begins."""
    return iterates_as_gluon(data) and data._iter is None and not data.auto_reload


def pass_seed(data: mx.gluon.data.DataLoader, number: int | None) -> int:
    """Return the number from which the seeds of a pass over the data are derived; draws no random numbers.

    It depends on NumPy's random state, so that ``np.random.seed`` or the run's seed make a run repeatable,
    including its workers. It also depends on the pass's `number` in its run, because a loader that does not
    shuffle leaves the random state as it is; by default, the calls for this loader are counted.
    """
    if number is None:
        number = _passes[data] = _passes.get(data, -1) + 1
    return state_hash(number)


def iterate_seeded(data: mx.gluon.data.DataLoader, seed: int, first: int) -> Iterator[Any]:
    """Iterate over a :func:`seedable` loader with its own workers; each batch is made with its own seed.

    `seed` comes from :func:`pass_seed`. If the loader holds the rest of an epoch, `first` is the number of
    its first batch in that epoch.
    """
    # Seeding takes a millisecond, nearly all of it in MXNet.
    random = data._batchify_fn not in DEFAULTS or may_use_randomness(data._dataset)
    batchify = batchify_of(data)
    tasks = (
        ((mixed(seed, n) if random else None, samples), batchify, samples)
        for n, samples in enumerate(data._batch_sampler, first)
    )
    return batches_from_workers(data, _make_batch, tasks, first)


def iterate_threads(data: mx.gluon.data.DataLoader, first: int) -> Iterator[Any]:
    """Iterate over a loader with worker threads; `first` is as for :func:`iterate_seeded`."""
    batchify = batchify_of(data)
    tasks = ((samples, batchify, data._dataset, samples) for samples in data._batch_sampler)
    return batches_from_workers(data, mx.gluon.data.dataloader._thread_worker_fn, tasks, first)


def _make_batch(seeded: tuple[int | None, Any], batchify: Callable[..., Any], dataset: Any = None) -> Any:
    """Seed the generators and make a batch; runs in a worker in place of Gluon's function."""
    outlive_signals()
    seed, samples = seeded
    if seed is not None:
        seed_everything(seed)
    return mx.gluon.data.dataloader._worker_fn(samples, batchify, dataset)


def _can_import(pool: Any, timeout: float) -> bool:
    """Whether a pool's workers can import this file; if not, they would fail silently on their first task."""
    if pool not in _importing_pools:
        name = f"{__name__}.{_make_batch.__name__}.__name__"  # a string, because the result is pickled
        watch(pool)
        try:
            result = pool.apply_async(pydoc.locate, (name,))
        except ValueError:  # the pool has ended; Gluon's own iteration, which is then used, raises for that
            return False
        wait(pool, result, "the loader's first task", timeout)
        if not (result.successful() and result.get()):
            return False
        _importing_pools.add(pool)
    return True


def may_use_randomness(dataset: Any) -> bool:
    """Whether a data set may draw random numbers for a sample.

    False only for arrays, and for arrays under Gluon's deterministic transforms.
    """
    while type(dataset) is _data.dataset._LazyTransformDataset:
        function = dataset._fn
        if type(function) is _data.dataset._TransformFirstClosure:
            function = function._fn
        if not _is_deterministic(function):
            return True
        dataset = dataset._data
    return columns_of(dataset) is None


def _is_deterministic(function: Any) -> bool:
    if type(function) in CONTAINERS:
        return all(map(_is_deterministic, function._children.values()))
    return type(function) in DETERMINISTIC
