"""torch.distributed with gloo: sums in host memory, over TCP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .header import Vector
from .launchers import TORCH, torch_variables


class TorchCommunicator:
    """Connects the processes that ``torchrun`` started; see `Communicator`.

    Where torch.distributed is initialised already, a group of its own is made for gloo.

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
            store, rank, size = next(dist.rendezvous("env://", timeout=wait))
            dist.init_process_group("gloo", timeout=wait, store=store, rank=rank, world_size=size)
            self._store = dist.PrefixStore("multifit", store)
        else:
            self._group = dist.new_group(backend="gloo", timeout=wait)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._buffers: dict[tuple[Any, int], Vector] = {}

    def all_reduce(self, arrays: Sequence[Vector]) -> None:
        """Sum the arrays over the ranks in place, those of one dtype at once."""
        by_dtype: dict[Any, list[Vector]] = {}
        for array in arrays:
            by_dtype.setdefault(array.dtype, []).append(array)
        for dtype, group in by_dtype.items():
            if len(group) == 1:
                dist.all_reduce(torch.from_numpy(group[0]), group=self._group)
                continue
            flat = self._buffer(dtype, sum(array.size for array in group))
            parts = np.split(flat, np.cumsum([array.size for array in group])[:-1])
            for part, array in zip(parts, group):
                part[:] = array.ravel()
            dist.all_reduce(torch.from_numpy(flat), group=self._group)
            for part, array in zip(parts, group):
                array[...] = part.reshape(array.shape)

    def broadcast(self, arrays: Sequence[Vector]) -> None:
        """Copy rank 0's arrays into those of the others."""
        for array in arrays:
            dist.broadcast(torch.from_numpy(array), 0, group=self._group)

    def all_gather(self, vector: Vector) -> list[Vector]:
        """Return the vectors of all ranks."""
        rows = np.empty((self.size, vector.size), vector.dtype)
        dist.all_gather([*map(torch.from_numpy, rows)], torch.from_numpy(vector), group=self._group)
        return list(rows)

    def close(self) -> None:
        """Leave the group that was made."""
        if self._store is not None:
            dist.destroy_process_group()

    def leave_note(self, text: str) -> None:
        """Leave a note in the store by which the processes met, which torchrun keeps."""
        if self._store is not None:
            self._store.set(f"{self.rank}.{text}", "here")

    def read_notes(self, text: str) -> list[int]:
        """Return the ranks that left such a note."""
        ranks = range(self.size if self._store is not None else 0)
        return [rank for rank in ranks if self._store.check([f"{rank}.{text}"])]

    def _buffer(self, dtype: Any, size: int) -> Vector:
        key = dtype, size
        if key not in self._buffers:
            self._buffers[key] = np.empty(size, dtype)
        return self._buffers[key]


def _set_variables() -> None:
    variables = torch_variables()
    missing = [name for name in TORCH if name not in variables]
    if missing:
        raise ValueError(
            f"torch.distributed needs {', '.join(missing)} in the environment of every process: the first "
            "host and a port that is free there, which mpirun passes on with -x NAME=VALUE"
        )
    os.environ.update(variables)
