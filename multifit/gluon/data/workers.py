"""Read batches from the worker processes of a DataLoader: each with a seed of its own, and none in vain.

Gluon forks its workers with identical states of NumPy's and MXNet's generators, and never seeds them: workers
repeat each other's augmentation, and which worker makes which batch is a matter of chance. Here, each batch
is sent to its worker together with its own seed.

A pool silently replaces a worker that dies, but neither repeats its task nor frees the locks that it held:
Gluon's own iteration then waits for its whole timeout, and the pool cannot be ended. Here, workers are not
replaced: if one dies, the pass ends with an error.
"""

import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing import parent_process
from multiprocessing.pool import TERMINATE, AsyncResult
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from ...utils.errors import DataError, user_code
from ...utils.seeding import mixed, seed_everything
from ...utils.text import shown
from ..compat import mx

LOOK = 0.5  # seconds between two looks at the workers

_gluon = mx.gluon.data.dataloader


def has_own_workers(data: Any) -> bool:
    """Whether worker processes, with random generators of their own, make the loader's batches."""
    return isinstance(data, mx.gluon.data.DataLoader) and data._num_workers > 0 and not data._thread_pool


def seedable(data: Any) -> bool:
    """Whether :func:`iterate_seeded` works for a loader.

    It works for Gluon's DataLoader with worker processes, but not for one that draws the order of an epoch
    ahead (``auto_reload``), or for a subclass that iterates in its own way.
    """
    is_usual = has_own_workers(data) and iterates_as_gluon(data)
    return is_usual and data._iter is None and not data.auto_reload


def iterates_as_gluon(data: mx.gluon.data.DataLoader) -> bool:
    """Whether a DataLoader yields a batch for each item of its batch sampler; subclasses may not do that."""
    gluon = mx.gluon.data.DataLoader
    return all(getattr(type(data), name) is getattr(gluon, name) for name in ("__iter__", "_prefetch_iter"))


def iterate_seeded(data: mx.gluon.data.DataLoader, seed: int, first: int) -> Iterator[Any]:
    """Iterate over a :func:`seedable` loader with its own workers; each batch is made with its own seed.

    `seed` comes from :func:`multifit.engines.loaders.pass_seed`. If the loader holds the rest of an epoch,
    `first` is the number of its first batch in that epoch. As in Gluon, a few batches are made ahead. Raises
    DataError if a worker dies or hangs, which ends the pool. Exceptions of the data set or the batchify
    function are raised as they are.
    """
    pool, batchify = data._worker_pool, batchify_of(data)
    _watch(pool)
    tasks = enumerate(data._batch_sampler, first)
    waiting: deque[tuple[AsyncResult[Any], str]] = deque()

    def submit(count: int) -> None:
        for n, samples in islice(tasks, count):
            result = pool.apply_async(_make_batch, (mixed(seed, n), samples, batchify))
            waiting.append((result, f"the loader's batch {n + 1}, of samples {shown(samples)}"))

    submit(data._prefetch)
    while True:
        submit(1)
        if not waiting:
            return
        batch = _receive(pool, *waiting.popleft(), data._timeout)
        if data._pin_memory:
            batch = _gluon._as_in_context(batch, mx.context.cpu_pinned(data._pin_device_id))
        yield batch


def _make_batch(seed: int, samples: Any, batchify: Callable[..., Any]) -> bytes:
    """Seed the generators and make a batch; runs in a worker in place of Gluon's function."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_if_alone)
    seed_everything(seed)
    batch: bytes = _gluon._worker_fn(samples, batchify)
    return batch


# --------------------------------------------------------------------------------------- watching the workers


class _Watched:
    """Stands for a worker in its pool, and never ends, so that the pool does not fork a replacement.

    The pool would fork in a thread of its own. MXNet's threads end before a fork and begin again after it,
    and work that another thread submits meanwhile can be lost: this process, or a worker, then hangs.
    """

    exitcode = None

    def __init__(self, process: Any) -> None:
        self.process = process

    def __getattr__(self, name: str) -> Any:
        if name == "sentinel":  # the pool's thread would wake for it again and again
            raise AttributeError(name)
        return getattr(self.process, name)


def _watch(pool: Any) -> None:
    """Keep a pool from replacing its workers, and from waiting for their locks when it ends."""
    if not isinstance(pool._pool[0], _Watched):
        pool._pool[:] = map(_Watched, pool._pool)
        pool._terminate.cancel()
        arguments = pool._worker_handler, pool._change_notifier, pool._pool
        pool._terminate = Finalize(pool, _end, arguments, exitpriority=15)


def _end(handler: Any, notifier: Any, workers: list[Any]) -> None:
    """End the workers of a pool, whatever they do, and its threads."""
    handler._state = TERMINATE
    notifier.put(None)
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(1)


def _receive(pool: Any, result: AsyncResult[Any], where: str, timeout: float) -> Any:
    """Wait for a batch; if a worker dies, or after the timeout, end the pool and raise DataError."""
    end = time.monotonic() + timeout
    while not result.ready():
        result.wait(LOOK)
        _raise_if_dead(pool, where)
        if time.monotonic() > end and not result.ready():
            pool.terminate()
            raise DataError(f"{where} was not made in {timeout} s; give the DataLoader a longer timeout=")
    with user_code(lambda: f"a worker of the DataLoader, which made {where}"):
        batch = result.get()
    try:
        return pickle.loads(batch)
    except (OSError, EOFError):  # the batch's memory is gone with the worker that made it
        time.sleep(LOOK)
        _raise_if_dead(pool, where)
        raise


def _raise_if_dead(pool: Any, where: str) -> None:
    codes = [worker.process.exitcode for worker in pool._pool if worker.process.exitcode is not None]
    if codes:
        pool.terminate()
        killed = f"was killed by signal {-codes[0]}" if codes[0] < 0 else f"ended with exit code {codes[0]}"
        hint = "; the system may have run out of memory: try fewer workers" if codes[0] == -9 else ""
        raise DataError(f"{where} was not made: a worker of the DataLoader {killed}{hint}")


def _end_if_alone(number: int, frame: Any) -> None:
    """Ignore a signal to all processes of a run as long as its own process lives, and needs the batch."""
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:
        os._exit(1)


# ------------------------------------------------------------------------------------------- samples in dicts


def batchify_of(data: Any) -> Callable[[Sequence[Any]], Any]:
    """Return a DataLoader's batchify function; the default ones take dicts too."""
    function = data._batchify_fn
    is_default = function in (_gluon.default_batchify_fn, _gluon.default_mp_batchify_fn)
    return _ByKey(function) if is_default else function


@dataclass(frozen=True)
class _ByKey:
    """Makes a dict of batches from samples that are dicts, a list from tuples; else calls `batchify`."""

    batchify: Callable[[Sequence[Any]], Any]

    def __call__(self, samples: Sequence[Any]) -> Any:
        first = samples[0]
        if isinstance(first, Mapping):
            return {key: self([sample[key] for sample in samples]) for key in first}
        if isinstance(first, tuple):
            return [self(column) for column in zip(*samples)]
        if isinstance(first, str):
            return np.array(samples)  # which is refused by its slot's name; Gluon would raise KeyError
        return self.batchify(samples)
