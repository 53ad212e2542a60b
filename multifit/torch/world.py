"""torch.distributed: gloo for sums in host memory, over TCP, and NCCL for those on GPUs."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..distributed import World, with_peers
from ..distributed.world import Vector

MIN_SEPARATE_BYTES = 2**18  # from this size on, copying into a joint array costs more than a sum of its own


class TorchWorld(World):
    """The processes that ``torchrun`` started.

    If torch.distributed is initialised already, a separate group is made for gloo.

    Parameters
    ----------
    timeout : float
        Seconds after which a sum or an exchange fails.
    """

    name = "torch"

    def __init__(self, timeout: float) -> None:
        wait = timedelta(seconds=timeout)
        self._group: Any = None  # all processes
        self._initialised = not dist.is_initialized()
        if self._initialised:
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, timeout=wait)
        else:
            self._group = dist.new_group(backend="gloo", timeout=wait)  # which takes a GPU's tensors too
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, vector: Any) -> Vector:
        """Return the sum over all ranks, float64, of the same shape."""
        total = np.array(vector, np.float64)
        self.all_reduce([total])
        return total

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        values: list[Any] = [None] * self.size
        with with_peers():
            dist.all_gather_object(values, value, group=self._group)
        return values

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value."""
        values = [value if self.first else None]
        with with_peers():
            dist.broadcast_object_list(values, 0, group=self._group)
        return values[0]

    def all_reduce(self, arrays: Iterable[Vector]) -> None:
        """Sum NumPy arrays over the ranks in place."""
        self.all_reduce_tensors(map(torch.from_numpy, arrays))

    def all_reduce_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        """Sum tensors over the ranks in place: large ones one by one, small ones of a dtype together."""
        works, small = [], dict[torch.dtype, list[torch.Tensor]]()
        for each in tensors:  # this may wait for the engine, whose errors are no other rank's
            if each.nbytes >= MIN_SEPARATE_BYTES and each.is_contiguous():
                works.append(self._begin_sum(each))
            else:
                small.setdefault(each.dtype, []).append(each)
        flat = [torch.cat([each.reshape(-1) for each in group]) for group in small.values()]
        works += map(self._begin_sum, flat)
        with with_peers():
            for work in works:
                work.wait()
        for joined, group in zip(flat, small.values()):
            parts = joined.split([each.numel() for each in group])
            torch._foreach_copy_(group, [part.view(each.shape) for part, each in zip(parts, group)])

    def broadcast(self, arrays: Sequence[Vector]) -> None:
        """Copy rank 0's NumPy arrays into those of the others."""
        with with_peers():
            for array in arrays:
                dist.broadcast(torch.from_numpy(array), 0, group=self._group)

    def close(self) -> None:
        """Leave the group that was made."""
        if self._initialised:
            self._initialised = False
            dist.destroy_process_group()

    def _begin_sum(self, tensor: torch.Tensor) -> Any:
        with with_peers():
            return dist.all_reduce(tensor, group=self._group, async_op=True)
