"""torch.distributed: gloo for sums in host memory, over TCP, and NCCL for those on GPUs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .call_thread import CallThread, Late
from .end_process import end_without_waiting
from .header import Vector
from .launchers import TORCH, torch_variables
from .star import Star

NOTICING = 2.0  # additional seconds, in which torch itself says how many processes came
MIN_SEPARATE_BYTES = 2**18  # from this size on, copying into a joint array costs more than a sum of its own


class TorchCommunicator:
    """Connects the processes that ``torchrun`` started; see `Communicator`.

    If torch.distributed is initialised already, a separate group is made for gloo.

    Parameters
    ----------
    timeout : float
        Seconds after which a collective operation fails.
    """

    name, asynchronous = "torch", False

    def __init__(self, timeout: float) -> None:
        wait = timedelta(seconds=timeout)
        self._group: Any = None  # all processes
        self._store: Any = None  # of the group that is made here
        if not dist.is_initialized():
            _set_variables()
            store, rank, size = _meet(timeout)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, timeout=wait, store=store, rank=rank, world_size=size)
            self._store = dist.PrefixStore("multifit", store)
        else:
            self._group = dist.new_group(backend="gloo", timeout=wait)  # which takes a GPU's tensors too
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        host = os.environ.get("MASTER_ADDR", socket.gethostname())
        self._star = Star(self.rank, self.size, host, self._all_gather)

    def all_reduce(self, arrays: Sequence[Vector]) -> None:
        """Sum the arrays over the ranks in place: large ones one by one, small ones of a dtype together."""
        little = self._star.takes(sum(array.nbytes for array in arrays))
        works, joined = [], []
        small: dict[Any, list[Vector]] = {}
        for array in arrays:
            if array.nbytes >= MIN_SEPARATE_BYTES and array.flags.c_contiguous and not little:
                works.append(self._begin_sum(array))
            else:
                small.setdefault(array.dtype, []).append(array)
        for group in small.values():
            flat = np.concatenate([array.ravel() for array in group])
            if little:
                self._star.all_reduce(flat)
            else:
                works.append(self._begin_sum(flat))
            joined.append((flat, group))
        for work in works:
            work.wait()
        for flat, group in joined:
            for part, array in zip(np.split(flat, np.cumsum([array.size for array in group])[:-1]), group):
                array[...] = part.reshape(array.shape)

    def all_reduce_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum tensors over the ranks in place, on the device where they are."""
        for work in [dist.all_reduce(tensor, group=self._group, async_op=True) for tensor in tensors]:
            work.wait()

    def broadcast(self, arrays: Sequence[Vector]) -> None:
        """Copy rank 0's arrays into those of the others."""
        for array in arrays:
            dist.broadcast(torch.from_numpy(array), 0, group=self._group)

    def all_gather(self, vector: Vector) -> list[Vector]:
        """Return the vectors of all ranks."""
        return self._star.all_gather(vector)

    def close(self) -> None:
        """Leave the group that was made."""
        self._star.close()
        if self._store is not None:
            dist.destroy_process_group()

    def leave_note(self, text: str) -> None:
        """Leave a note in the store through which the processes met, which torchrun keeps."""
        if self._store is not None:
            self._store.set(f"{self.rank}.{text}", "here")

    def read_notes(self, text: str) -> list[int]:
        """Return the ranks that left a note with this text."""
        ranks = range(self.size if self._store is not None else 0)
        return [rank for rank in ranks if self._store.check([f"{rank}.{text}"])]

    def _all_gather(self, vector: Vector) -> list[Vector]:
        rows = np.empty((self.size, vector.size), vector.dtype)
        dist.all_gather([*map(torch.from_numpy, rows)], torch.from_numpy(vector), group=self._group)
        return list(rows)

    def _begin_sum(self, array: Vector) -> Any:
        return dist.all_reduce(torch.from_numpy(array), group=self._group, async_op=True)


def _meet(timeout: float) -> tuple[Any, int, int]:
    """Return the store through which the processes meet, this process's rank and the number of processes.

    Raises TimeoutError where torch would wait longer: twice as long if nobody answers, and forever if another
    program accepts the connection and says nothing.
    """
    meeting = dist.rendezvous("env://", timeout=timedelta(seconds=timeout))
    try:
        met: tuple[Any, int, int] = CallThread().call(timeout + NOTICING, next, meeting)
    except Late:
        end_without_waiting()
        raise TimeoutError(
            f"no rank 0 answered at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} within "
            f"{timeout:g} s; check that it has started, and if another program uses that port, choose one "
            "that is free on that host (MASTER_PORT, or torchrun --master-port)"
        ) from None
    return met


def _set_variables() -> None:
    variables = torch_variables()
    missing = [name for name in TORCH if name not in variables]
    if missing:
        raise ValueError(
            f"torch.distributed needs {', '.join(missing)} in the environment of every process: the first "
            "host and a port that is free there, which mpirun passes on with -x NAME=VALUE"
        )
    os.environ.update(variables)
