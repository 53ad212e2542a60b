"""Ranks that are threads of this process, for tests."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from multifit.distributed import World

LOST = object()


class Turn:
    """One rank's part of the lock under which ranks run: MXNet loses operators of threads that run at once.

    A rank gives its turn back while it meets the others, which its communicator does in another thread.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._guard = lock, threading.Lock()
        self._held = self._runs = False

    def __enter__(self) -> None:
        self._lock.acquire()
        self._held = self._runs = True

    def __exit__(self, *error: object) -> None:
        with self._guard:
            self._runs = False
            self._give_back()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Let others run meanwhile."""
        with self._guard:
            self._give_back()
        yield
        if self._runs:
            self._lock.acquire()
            with self._guard:
                self._held = True
                if not self._runs:  # it has ended without waiting for this meeting
                    self._give_back()

    def _give_back(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()


class ThreadCommunicator:
    """Connects threads, which meet at a barrier."""

    name, asynchronous = "threads", False

    def __init__(
        self, rank: int, size: int, barrier: threading.Barrier, table: list[Any], lock: threading.Lock
    ) -> None:
        self.rank, self.size = rank, size
        self._barrier, self._table = barrier, table
        self.closed, self.turn = False, Turn(lock)

    def all_reduce(self, arrays: Any) -> None:
        for array, rows in zip(arrays, zip(*self._exchange([array.copy() for array in arrays]))):
            array[...] = np.sum(rows, axis=0)

    def broadcast(self, arrays: Any) -> None:
        for array, first in zip(arrays, self._exchange([array.copy() for array in arrays])[0]):
            array[...] = first

    def all_gather(self, vector: Any) -> list[Any]:
        return self._exchange(vector.copy())

    def close(self) -> None:
        self.closed = True

    def lose(self) -> None:
        """End as a process that is killed does: the others' operations fail."""
        self._exchange(LOST)

    def _exchange(self, value: Any) -> list[Any]:
        self._table[self.rank] = value
        with self.turn.left():
            self._barrier.wait()
            values = list(self._table)
            self._barrier.wait()
        if any(value is LOST for value in values):
            raise ConnectionError("connection closed by peer")
        return values


class EngineCommunicator(ThreadCommunicator):
    """Takes the engine's own arrays, as Horovod does."""

    name, asynchronous = "engine", True

    def all_reduce(self, arrays: Any) -> None:
        self._replace(arrays, lambda rows: np.sum(rows, axis=0))

    def broadcast(self, arrays: Any) -> None:
        self._replace(arrays, lambda rows: rows[0])

    def _replace(self, arrays: Any, reduce: Callable[[Any], Any]) -> None:
        every = self._exchange([array.asnumpy() for array in arrays])
        for array, rows in zip(arrays, zip(*every)):
            array[:] = reduce(rows)


def thread_communicators(size: int, kind: type[ThreadCommunicator] = ThreadCommunicator) -> list[Any]:
    """Return the communicators of `size` ranks, each to be used in a thread of its own."""
    shared = threading.Barrier(size), [None] * size, threading.Lock()
    return [kind(rank, size, *shared) for rank in range(size)]


def run_ranks(
    size: int,
    function: Callable[[World], Any],
    timeout: float = 20.0,
    kind: type[ThreadCommunicator] = ThreadCommunicator,
) -> list[Any]:
    """Call the function with each rank's World, in threads; return what each returned or raised."""
    results: list[Any] = [None] * size

    def run(rank: int, world: World) -> None:
        try:
            with communicators[rank].turn:
                results[rank] = function(world)
        except BaseException as error:
            results[rank] = error

    communicators = thread_communicators(size, kind)
    worlds = [World(communicator, timeout) for communicator in communicators]
    run_threads(run, [(world.rank, world) for world in worlds])
    return results


def run_threads(function: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
    """Call a function in one thread for each rank, and wait for all."""
    threads = [threading.Thread(target=function, args=arguments, daemon=True) for arguments in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
