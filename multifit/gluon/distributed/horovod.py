"""Horovod: sums over the ranks with NCCL, MPI or gloo, queued in MXNet's engine."""

from __future__ import annotations

import atexit
import math
import os
import socket
import urllib.request
import zlib
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from urllib.error import HTTPError

import numpy as np

from ...distributed.star import Star
from ...protocols import Array
from ..compat import mx
from ..data.arrays import host_view, new_array
from .collectives import backward_groups

GROUP = 16 * 2**20  # bytes that are summed at once


class HorovodCommunicator:
    """Connects the processes that ``horovodrun`` started; see `Communicator`.

    The timeout of meetings detects a rank that hangs. Horovod itself would wait for it, and so would MXNet
    and Horovod when this process ends.

    Parameters
    ----------
    timeout : float
        Seconds after which gloo gives up on a rank that is stopped or cannot be reached.
    """

    name, asynchronous = "horovod", True

    def __init__(self, timeout: float) -> None:
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(math.ceil(timeout)))
        atexit.unregister(mx.base._notify_shutdown)
        atexit.register(self._notify_shutdown)
        if find_spec("torch") is not None:
            import_module("torch")  # aborts the process when it is imported after Horovod
        self._horovod = import_module("horovod.mxnet")
        self._horovod.init()
        atexit.unregister(self._horovod.shutdown)  # `close` does it
        self.rank, self.size = self._horovod.rank(), self._horovod.size()
        host = os.environ.get("HOROVOD_HOSTNAME", socket.gethostname())
        self._star = Star(self.rank, self.size, host, self._all_gather)
        self._gathering = False
        self._last: dict[str, Array] = {}  # by name: the array of the last operation with that name

    def all_reduce(self, arrays: Sequence[Array]) -> None:
        """Queue sums over the ranks, in a few groups of arrays, the last arrays first.

        The gradients of the last layers are computed first, and their sums need not wait for the others.
        """
        for number, group in enumerate(backward_groups(arrays, GROUP)):
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

    def all_gather(self, vector: np.ndarray) -> list[np.ndarray]:
        """Return the vectors of all ranks."""
        self._gathering = True
        rows = self._star.all_gather(vector)
        self._gathering = False
        return rows

    def close(self) -> None:
        """Shut Horovod down."""
        self._star.close()
        self._horovod.shutdown()

    def leave_note(self, text: str) -> None:
        """Leave a note at the server of horovodrun, which outlives the ranks."""
        request = urllib.request.Request(_url(self.rank, text), data=b"here", method="PUT")
        urllib.request.urlopen(request).close()

    def read_notes(self, text: str) -> list[int]:
        """Return the ranks that left such a note."""
        ranks = []
        for rank in range(self.size):
            with suppress(HTTPError):  # there is none
                urllib.request.urlopen(_url(rank, text)).close()
                ranks.append(rank)
        return ranks

    def _all_gather(self, vector: np.ndarray) -> list[np.ndarray]:
        array = new_array(vector, mx.cpu())
        rows = self._horovod.allgather(array, name=f"multifit.gather.{vector.size}").asnumpy()
        return list(rows.reshape(self.size, vector.size))

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

    def _notify_shutdown(self) -> None:
        """Do what MXNet does when Python ends: wait for queued operations; not if a rank may hang."""
        if not self._gathering:
            mx.base._notify_shutdown()


def _url(rank: int, text: str) -> str:
    server = (os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{part}"] for part in ("ADDR", "PORT"))
    return f"http://{':'.join(server)}/multifit/{rank}.{text}"
