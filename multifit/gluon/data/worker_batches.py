"""Read batches from the workers of a DataLoader, and raise an error if a worker dies, hangs or raises.

A pool silently replaces a worker that dies, but neither repeats its task nor frees the locks that it held:
Gluon's own iteration then waits for its whole timeout, and the pool cannot be ended. Here, workers are not
replaced: if one dies, the pass ends with an error.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from contextlib import suppress
from multiprocessing.pool import AsyncResult, ThreadPool
from typing import Any, Callable, Iterable, Iterator, Sequence

from ...errors import DataError, last_line, shown, user_code
from ..compat import mx

LOOK = 0.5  # seconds between two looks at the workers
PATIENCE = 2.0  # seconds, enough to end a pool whose workers are all alive


class _Watched:
    """Stands for a worker in its pool, and never ends, so that the pool does not fork a replacement.

    The pool would fork in a thread of its own. MXNet's engine stops before a fork and starts again after it,
    and work that another thread submits meanwhile can be lost: this process, or a worker, then hangs.
    """

    exitcode = None

    def __init__(self, process: Any) -> None:
        self.process = process

    def __getattr__(self, name: str) -> Any:
        if name == "sentinel":  # the pool's thread would wake for it again and again
            raise AttributeError(name)
        # A worker process ignores SIGTERM, see worker_signals.py; threads have neither method
        return getattr(self.process, "kill" if name == "terminate" else name)


def batches_from_workers(
    data: mx.gluon.data.DataLoader,
    task: Callable[..., Any],
    arguments: Iterable[tuple[Any, ...]],
    first: int,
) -> Iterator[Any]:
    """Yield the results of workers that call `task` with each tuple of `arguments`, in order.

    As in Gluon, a few batches are made ahead. The last item of a tuple is the batch's samples, for messages;
    it is not passed to the task. `first` is the number of the first batch. Raises DataError if a worker dies
    or hangs, which ends the pool. Exceptions of the data set or the batchify function are raised as they are.
    """
    pool, pin = data._worker_pool, mx.gluon.data.dataloader._as_in_context
    watch(pool)
    _drop(pool)
    waiting: deque[tuple[AsyncResult[Any], Any]] = deque()
    tasks = iter(arguments)

    def submit(count: int) -> None:
        for _, (*passed, samples) in zip(range(count), tasks):
            waiting.append((_submit(pool, task, passed), samples))

    submit(data._prefetch)
    number = first
    try:
        while True:
            submit(1)
            if not waiting:
                return
            result, samples = waiting[0]
            where = f"the loader's batch {number + 1}, of samples {shown(samples)}"
            batch = _receive(pool, result, where, data._timeout)
            waiting.popleft()
            yield pin(batch, mx.context.cpu_pinned(data._pin_device_id)) if data._pin_memory else batch
            number += 1
    finally:
        if _exit_codes(pool):  # the loader would hang when it is deleted
            end_pool(pool)
        else:
            _drop(pool, [result for result, _ in waiting])


def watch(pool: Any) -> None:
    """Keep a pool from replacing its workers; call this before a task is submitted."""
    pool._pool[:] = [worker if isinstance(worker, _Watched) else _Watched(worker) for worker in pool._pool]


def wait(pool: Any, result: AsyncResult[Any], where: str, timeout: float) -> None:
    """Wait for a result; if a worker dies, or after the timeout, end the pool and raise DataError."""
    end = time.monotonic() + timeout
    while not result.ready():
        result.wait(LOOK)
        if result.ready():
            return
        _raise_if_dead(pool, where)
        if time.monotonic() > end:
            end_pool(pool)
            raise DataError(
                f"{where}: no worker has made it in {timeout} s; the data set hangs, or is slow; if it is "
                "slow, give the DataLoader a longer timeout="
            )


def end_pool(pool: Any) -> None:
    """End a pool, even if a worker holds a lock that the pool needs for that."""
    ending = threading.Thread(target=pool.terminate, daemon=True)
    ending.start()
    ending.join(PATIENCE)
    if ending.is_alive() and not isinstance(pool, ThreadPool):
        for worker in pool._pool:
            worker.kill()
        for lock in (pool._inqueue._rlock, pool._outqueue._wlock):
            lock.acquire(timeout=PATIENCE / 4)
            lock.release()
        ending.join(PATIENCE)


def _submit(pool: Any, task: Callable[..., Any], arguments: Iterable[Any]) -> AsyncResult[Any]:
    try:
        return pool.apply_async(task, tuple(arguments))
    except ValueError as error:  # the pool is not running
        raise DataError("the loader's workers have ended; make a new DataLoader") from error


def _receive(pool: Any, result: AsyncResult[Any], where: str, timeout: float) -> Any:
    wait(pool, result, where, timeout)
    with user_code(lambda: f"a worker of the DataLoader, which made {where}"):
        batch = result.get()
    return batch if isinstance(pool, ThreadPool) else _unpickle(pool, batch, where)


def _unpickle(pool: Any, batch: bytes, where: str) -> Any:
    """Unpickle a batch; a worker holds its arrays in shared memory until they are read."""
    try:
        return pickle.loads(batch)
    except (OSError, EOFError) as error:
        for _ in range(10):  # a worker that died just now may have no exit code yet
            _raise_if_dead(pool, where)
            time.sleep(LOOK / 5)
        raise DataError(f"{where}: its shared memory cannot be read: {last_line(error)}") from error


def _drop(pool: Any, results: Sequence[AsyncResult[Any]] = ()) -> None:
    """Drop the batches that a pass left unread: workers hold their memory and descriptors until then.

    This does not wait: batches that are not made yet stay in the pool's list `left` for the next call.
    """
    if not isinstance(pool, ThreadPool):
        pool.left = [result for result in (*getattr(pool, "left", ()), *results) if not _is_dropped(result)]


def _is_dropped(result: AsyncResult[Any]) -> bool:
    if not result.ready():
        return False
    with suppress(Exception):  # the worker raised one, or has ended
        pickle.loads(result.get())
    return True


def _exit_codes(pool: Any) -> list[int]:
    watch(pool)  # a replacement that was forked just before the pool was watched
    return [worker.process.exitcode for worker in pool._pool if worker.process.exitcode is not None]


def _raise_if_dead(pool: Any, where: str) -> None:
    codes = _exit_codes(pool)
    if codes:
        end_pool(pool)
        killed = f"was killed by signal {-codes[0]}" if codes[0] < 0 else f"ended with exit code {codes[0]}"
        hint = "; the system may have run out of memory: try fewer workers" if codes[0] == -9 else ""
        raise DataError(f"{where} was not made: a worker of the DataLoader {killed}{hint}")
    if not pool._result_handler.is_alive():
        end_pool(pool)
        raise DataError(
            f"{where}: a worker raised an exception, or returned something, that cannot be unpickled"
        )
