"""Arrays of MXNet as tensors, and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ...gluon.data.arrays import new_array, shared, to_numpy
from ...gluon.execution.stage import MAX_BATCHES, MAX_BYTES, MIN_BATCHES

Tensors = dict[str, torch.Tensor]


def view_of(array: Any) -> torch.Tensor:
    """Return an array of MXNet or NumPy as a tensor on the CPU, which shares its memory if possible.

    Do not write to the tensor.
    """
    capsule = shared(array)
    return torch.from_numpy(to_numpy(array)) if capsule is None else torch.from_dlpack(capsule)


def to_tensor(array: Any, device: torch.device) -> torch.Tensor:
    """Copy an array of MXNet or NumPy to a tensor on a device."""
    return torch.from_numpy(to_numpy(array)).to(device, non_blocking=True)


def unshared(
    function: Callable[..., Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor]
) -> Callable[..., list[torch.Tensor]]:
    """Return a function that copies those of its results that share memory with tensors."""

    def memory(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().data_ptr()  # the same for views

    shared = frozenset(map(memory, tensors))

    def call(*arguments: torch.Tensor) -> list[torch.Tensor]:
        return [each.clone() if memory(each) in shared else each for each in function(*arguments)]

    return call


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of real tensors, in few kernels."""
    return list(torch._foreach_mul(list(tensors), 1.0)) if tensors else []


def copied(tensors: Tensors) -> Tensors:
    """Return copies of tensors; all real ones are copied at once."""
    real = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
    copies = dict(zip(real, copies_of([tensors[name] for name in real])))
    return {name: copies[name] if name in copies else tensor.clone() for name, tensor in tensors.items()}


@contextmanager
def restored(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Restore the values of tensors after the block, without waiting for them."""
    saved = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, copy in zip(tensors, saved):
            tensor.copy_(copy)


def to_array(tensor: torch.Tensor) -> Any:
    """Return a tensor as an NDArray on the CPU; this waits for the device."""
    return new_array(tensor.detach().cpu().numpy())


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return tensors as NDArrays on the CPU; this waits for the device."""
    return {name: to_array(tensor) for name, tensor in tensors.items()}


def on_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    """Return tensors as NumPy arrays; waits for the device. Those on the CPU are not copied."""
    return [tensor.detach().cpu().numpy() for tensor in tensors]


def on_device(arrays: Sequence[np.ndarray[Any, Any]], device: torch.device) -> list[torch.Tensor]:
    """Return arrays as tensors on a device, in memory of their own."""
    return [torch.from_numpy(array).to(device, copy=True) for array in arrays]


def copy_into(tensors: Sequence[torch.Tensor], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Copy arrays to tensors of the same shapes and dtypes."""
    with torch.no_grad():
        for tensor, array in zip(tensors, arrays):
            tensor.copy_(torch.from_numpy(array))


class Uploads:
    """Copies batches to a GPU through pinned memory, which does not wait for earlier batches.

    The number of batches that wait for the device is limited in the same way as by
    :class:`multifit.gluon.execution.stage.Throttle`. On the CPU, batches are not copied: a tensor shares the
    memory of its array.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._copies = device, device.type != "cpu"
        self._backend = torch.cuda if self._copies else torch.cpu
        self._waiting: deque[tuple[Any, int]] = deque()  # when a batch is copied, and its size in bytes

    def __call__(self, arrays: Mapping[str, Any]) -> Tensors:
        """Return MXNet's arrays as tensors on the device; absent slots, which are None, are left out."""
        tensors = {name: view_of(array) for name, array in arrays.items() if array is not None}
        return self.copied(tensors) if self._copies else tensors

    def copied(self, tensors: Tensors) -> Tensors:
        """Return copies on the device."""
        hosts = {name: tensor.pin_memory() if self._copies else tensor for name, tensor in tensors.items()}
        copies = {name: host.to(self._device, non_blocking=True, copy=True) for name, host in hosts.items()}
        done = self._backend.Event()
        done.record(self._backend.current_stream(self._device))
        self._waiting.append((done, sum(tensor.nbytes for tensor in tensors.values())))
        while too_many(len(self._waiting), sum(size for _, size in self._waiting)):
            self._waiting.popleft()[0].synchronize()
        return copies


def too_many(batches: int, size: int) -> bool:
    """Whether more batches wait for the device than allowed; `size` is the sum of their sizes in bytes."""
    return batches > (MIN_BATCHES if size > MAX_BYTES else MAX_BATCHES)
