"""Horovod: sums that are queued in MXNet's engine, by NCCL, MPI or gloo."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from ...protocols import Array
from ..compat import mx
from .host_memory import host_view

GROUP = 16 * 2**20  # bytes that are summed at once


class HorovodCommunicator:
    """Connects the processes that ``horovodrun`` started; see `Communicator`.

    Parameters
    ----------
    timeout : float
        Not used: Horovod notices no rank that hangs.
    """

    name, asynchronous = "horovod", True

    def __init__(self, timeout: float) -> None:
        mx.nd.waitall()  # imports mxnet
        if find_spec("torch") is not None:
            import_module("torch")  # torch aborts the process when it is imported after Horovod
        self._horovod = import_module("horovod.mxnet")
        self._horovod.init()
        atexit.unregister(self._horovod.shutdown)  # would wait for ranks that hang; `close` does it
        self.rank, self.size = self._horovod.rank(), self._horovod.size()

    def all_reduce(self, arrays: Sequence[Array]) -> None:
        """Queue sums over the ranks, a few groups of arrays, the last ones first.

        The gradients of the last layers are there first, and their sum need not wait for the others.
        """
        groups = list(_groups(arrays))
        for number, group in enumerate(groups):
            self._horovod.grouped_allreduce_(
                group, average=False, name=f"multifit.sum.{number}.{len(groups)}", priority=-number
            )

    def broadcast(self, arrays: Sequence[Array]) -> None:
        """Queue copies of rank 0's arrays into those of the others."""
        for number, array in enumerate(arrays):
            if array.context.device_type == "cpu":
                host_view(array)  # Horovod cannot read the layouts of oneDNN
            self._horovod.broadcast_(array, root_rank=0, name=f"multifit.broadcast.{number}")

    def all_gather(self, vector: np.ndarray) -> list[np.ndarray]:
        """Return the vectors of all ranks."""
        own = mx.nd.array(vector, ctx=mx.cpu(), dtype=vector.dtype)
        rows = self._horovod.allgather(own, name=f"multifit.gather.{vector.size}").asnumpy()
        return list(rows.reshape(self.size, vector.size))

    def close(self) -> None:
        """Shut Horovod down."""
        self._horovod.shutdown()


def _groups(arrays: Sequence[Array]) -> Iterator[list[Array]]:
    """Yield the arrays from the last to the first, in groups of one dtype and some size."""
    group: list[Array] = []
    size = 0
    for array in reversed(arrays):
        if group and (size >= GROUP or array.dtype != group[0].dtype):
            yield group
            group, size = [], 0
        group.append(array)
        size += array.size * np.dtype(array.dtype).itemsize
    if group:
        yield group
