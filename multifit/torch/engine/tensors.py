"""Arrays of MXNet as tensors, and back."""

from __future__ import annotations

import math
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


JOINED = 2**18  # elements; a larger tensor is copied by itself: joining it would take longer than a copy


def on_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    """Return tensors of one device as NumPy arrays; waits for the device. Those on the CPU are not copied."""
    detached = [tensor.detach() for tensor in tensors]
    on_cpu = all(tensor.device.type == "cpu" for tensor in detached)
    return [tensor.numpy() for tensor in (detached if on_cpu else joined(detached, torch.device("cpu")))]


def on_device(arrays: Sequence[np.ndarray[Any, Any]], device: torch.device) -> list[torch.Tensor]:
    """Return arrays as tensors on a device, in memory of their own."""
    tensors = [*map(torch.from_numpy, arrays)]
    return [each.clone() for each in tensors] if device.type == "cpu" else joined(tensors, device)


def copy_into(tensors: Sequence[torch.Tensor], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Copy arrays to tensors of the same shapes and dtypes, which are all on one device."""
    if tensors:
        given, device = [*map(torch.from_numpy, arrays)], tensors[0].device
        with torch.no_grad():
            torch._foreach_copy_([*tensors], given if device.type == "cpu" else joined(given, device))


def joined(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return copies of tensors on another device; small ones of one dtype are joined, copied and split."""
    groups: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        key = (tensor.dtype, None if tensor.numel() <= JOINED else place)
        groups.setdefault(key, []).append(place)
    found: dict[int, torch.Tensor] = {}
    for places in groups.values():
        flat = torch.cat([tensors[place].reshape(-1) for place in places]).to(device)
        parts = flat.split([tensors[place].numel() for place in places])
        found.update((place, part.view(tensors[place].shape)) for place, part in zip(places, parts))
    return [found[place] for place in range(len(tensors))]


SMALL = 2**20  # bytes; smaller batches are copied sooner than Python has submitted events of another stream
ALIGNED = 256  # bytes; tensors begin at such multiples, where some operators are faster


class Uploads:
    """Copies batches to a GPU, each as a whole from pinned memory; large ones on a stream of its own.

    Python only submits computations. While the device computes one batch, Python already copies the next one,
    which does not wait for the computation. The number of batches that wait for the device is limited in the
    same way as by :class:`multifit.gluon.execution.stage.Throttle`. On the CPU, batches are not copied: a
    tensor shares the memory of its array.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._copies = device, device.type != "cpu"
        self._backend = torch.cuda if self._copies else torch.cpu
        self._stream = self._backend.Stream(device)  # positional: torch.cpu's ignores its argument
        # the last batch, if it was copied on the stream, and its size in bytes
        self._last: tuple[torch.Tensor | None, int] = None, 0
        self._waiting: deque[tuple[Any, torch.Tensor | None, int]] = deque()
        self._waiting_bytes = 0

    def __call__(self, arrays: Mapping[str, Any]) -> Tensors:
        """Return MXNet's arrays as tensors on the device; absent slots, which are None, are left out."""
        tensors = {name: view_of(array) for name, array in arrays.items() if array is not None}
        return self.copied(tensors) if self._copies else tensors

    def copied(self, tensors: Tensors) -> Tensors:
        """Return copies on the device, which share memory: a transfer takes Python as long as an operator."""
        self._limit()
        places, size = {}, 0
        for name, tensor in tensors.items():
            places[name] = size
            size += math.ceil(tensor.nbytes / ALIGNED) * ALIGNED
        host = torch.empty(size, dtype=torch.uint8, pin_memory=self._copies)
        for name, tensor in tensors.items():
            _part(host, places[name], tensor).copy_(tensor)
        device = self._transferred(host)
        return {name: _part(device, places[name], tensor) for name, tensor in tensors.items()}

    def _transferred(self, host: torch.Tensor) -> torch.Tensor:
        if host.nbytes <= SMALL:
            self._last = None, host.nbytes
            return host.to(self._device, non_blocking=True)
        with self._backend.stream(self._stream):
            device = host.to(self._device, non_blocking=True)
        self._backend.current_stream(self._device).wait_stream(self._stream)
        self._last = device, host.nbytes
        return device

    def _limit(self) -> None:
        """Keep a large batch until the device has computed it; wait for the oldest if there are too many.

        The memory of a tensor belongs to the stream that copied it: it must not be freed, and used for the
        next copy, while the batch is computed.
        """
        done = self._backend.Event()
        done.record(self._backend.current_stream(self._device))
        self._waiting.append((done, *self._last))
        self._waiting_bytes += self._last[1]
        while too_many(len(self._waiting), self._waiting_bytes) or self._oldest_is_done():
            event, _, size = self._waiting.popleft()
            event.synchronize()
            self._waiting_bytes -= size

    def _oldest_is_done(self) -> bool:
        """Whether the oldest batch is computed; not asked after small ones, for which no memory is kept."""
        return self._last[0] is not None and bool(self._waiting) and self._waiting[0][0].query()


def too_many(batches: int, size: int) -> bool:
    """Whether more batches wait for the device than allowed; `size` is the sum of their sizes in bytes."""
    return batches > (MIN_BATCHES if size > MAX_BYTES else MAX_BATCHES)


def _part(memory: torch.Tensor, place: int, like: torch.Tensor) -> torch.Tensor:
    """Return the part of memory that begins at a place in bytes, with the shape and dtype of a tensor."""
    return memory[place : place + like.nbytes].view(like.dtype).view(like.shape)
