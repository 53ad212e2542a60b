"""Ranks that are threads of this process, for tests."""

import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from multifit import PeerError
from multifit.distributed import World


class Place:
    """Where threads meet. One of them runs at a time: MXNet loses operators of threads that run at once.

    `lost` says whether a rank has ended with an error, so that the others need not wait for it.
    """

    def __init__(self, size: int) -> None:
        self.size, self.lost = size, False
        self.condition = threading.Condition()
        self.tables: dict[int, dict[int, Any]] = {}  # by number of the meeting: what each rank brought

    def exchange(self, number: int, rank: int, value: Any) -> list[Any]:
        table = self.tables.setdefault(number, {})
        table[rank] = value
        self.condition.notify_all()
        if not self.condition.wait_for(lambda: len(table) == self.size or self.lost, timeout=20):
            raise PeerError("a thread did not answer in time")
        if len(table) < self.size:
            raise PeerError("a thread has ended")
        self.tables.pop(number - 1, None)  # all have left it
        return [table[rank] for rank in range(self.size)]


class ThreadWorld(World):
    """Connects threads."""

    name, asynchronous = "threads", False

    def __init__(self, rank: int, place: Place) -> None:
        self.rank, self.size, self._place = rank, place.size, place
        self._meetings = 0

    def gather(self, value: Any) -> list[Any]:
        self._meetings += 1
        return list(map(pickle.loads, self._place.exchange(self._meetings, self.rank, pickle.dumps(value))))

    def from_first(self, value: Any) -> Any:
        return self.gather(value)[0]

    def sum(self, vector: Any) -> Any:
        return np.sum(self.gather(np.array(vector, np.float64)), axis=0)

    def all_reduce(self, arrays: Any) -> None:
        self._replace(arrays, lambda rows: np.sum(rows, axis=0))

    def broadcast(self, arrays: Any) -> None:
        self._replace(arrays, lambda rows: rows[0])

    def all_reduce_tensors(self, tensors: Any) -> None:
        self.all_reduce([tensor.numpy() for tensor in tensors])

    def _replace(self, arrays: Any, reduce: Callable[[Any], Any]) -> None:
        arrays = list(arrays)
        every = self.gather([np.array(array) for array in arrays])
        for array, rows in zip(arrays, zip(*every)):
            array[...] = reduce(rows)


class EngineWorld(ThreadWorld):
    """Takes the engine's own arrays, as Horovod does."""

    name, asynchronous = "engine", True

    def _replace(self, arrays: Any, reduce: Callable[[Any], Any]) -> None:
        every = self.gather([array.asnumpy() for array in arrays])
        for array, rows in zip(arrays, zip(*every)):
            array[:] = reduce(rows)


def run_ranks(
    size: int, function: Callable[[World], Any], kind: type[ThreadWorld] = ThreadWorld
) -> list[Any]:
    """Call the function with each rank's World, in threads; return what each returned or raised."""
    results: list[Any] = [None] * size
    place = Place(size)

    def run(world: World) -> None:
        with place.condition:
            try:
                results[world.rank] = function(world)
            except BaseException as error:
                results[world.rank], place.lost = error, True
                place.condition.notify_all()

    threads = [threading.Thread(target=run, args=(kind(rank, place),), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results
