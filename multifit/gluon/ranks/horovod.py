"""Horovod: sums over the ranks with NCCL, MPI or gloo, queued for the device."""

import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...distributed import World, with_peers
from ...utils.protocols import Array
from ..compat import mx
from ..data.arrays import host_view, new_array, size_in_bytes

GROUP = 16 * 2**20  # bytes that are summed at once


class HorovodWorld(World):
    """The processes that ``horovodrun`` started.

    Parameters
    ----------
    timeout : float
        Seconds after which gloo gives up on a rank that is stopped or cannot be reached. Horovod waits
        without end for a rank that runs, but does not take part, and logs a warning each minute.
    """

    name, asynchronous = "horovod", True

    def __init__(self, timeout: float) -> None:
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(math.ceil(timeout)))
        if find_spec("torch") is not None:
            import_module("torch")  # aborts the process when it is imported after Horovod
        self._horovod = import_module("horovod.mxnet")
        self._horovod.init()
        self.rank, self.size = self._horovod.rank(), self._horovod.size()
        self._last: dict[str, Array] = {}  # by name: the array of the last operation with that name

    def sum(self, vector: Any) -> np.ndarray:
        """Return the sum over all ranks, float64, of the same shape."""
        values = np.asarray(vector, np.float64)
        if not values.size:
            return values
        with with_peers():
            total = new_array(values.ravel(), mx.cpu())
            total = self._horovod.allreduce(total, average=False, name=f"multifit.values.{values.size}")
            return np.asarray(total.asnumpy()).reshape(values.shape)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        with with_peers():
            values: list[Any] = self._horovod.allgather_object(value, name="multifit.gather")
        return values

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value.

        Horovod's ``broadcast_object`` does not wait on rank 0, where the next one would then use a name that
        is still in use: the other ranks would wait without end.
        """
        return self.gather(value if self.first else None)[0]

    def all_reduce(self, arrays: Iterable[Array]) -> None:
        """Queue sums over the ranks, in a few groups of arrays, the last arrays first.

        The gradients of the last layers are computed first, and their sums need not wait for the others.
        """
        for number, group in enumerate(backward_groups(list(arrays), GROUP)):
            form = zlib.crc32(repr([(array.shape, array.dtype) for array in group]).encode())
            name = self._free(f"multifit.sum.{number}.{form}", group[0])
            self._horovod.grouped_allreduce_(group, average=False, name=name, priority=-number)

    def broadcast(self, arrays: Sequence[Array]) -> None:
        """Queue copies of rank 0's arrays to the arrays of the other ranks."""
        for number, array in enumerate(arrays):
            if array.context.device_type == "cpu":
                host_view(array)  # Horovod cannot read the layouts of oneDNN
            name = self._free(f"multifit.broadcast.{number}", array)
            self._horovod.broadcast_(array, root_rank=0, name=name)

    def close(self) -> None:
        """Shut Horovod down."""
        self._horovod.shutdown()

    def _free(self, name: str, array: Array) -> str:
        """Return a name for an operation on an array, once no operation on another array uses it.

        Horovod matches the operations of all ranks by name, and caches names, so that the same ones should be
        used again. Operations on the same array run one after the other anyway.
        """
        last = self._last.get(name, array)
        if last is not array:
            last.wait_to_read()
        self._last[name] = array
        return name


def backward_groups(arrays: Sequence[Array], most: int) -> Iterator[list[Array]]:
    """Yield the arrays from last to first, in groups of one dtype and of about `most` bytes."""
    group: list[Array] = []
    size = 0
    for array in reversed(arrays):
        if group and (size >= most or array.dtype != group[0].dtype):
            yield group
            group, size = [], 0
        group.append(array)
        size += size_in_bytes(array)
    if group:
        yield group
