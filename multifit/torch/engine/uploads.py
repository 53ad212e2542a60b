"""Copy batches to the device."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Mapping

import torch

from ...gluon.execution.throttle import MAX_BATCHES, MAX_BYTES, MIN_BATCHES
from .tensors import Tensors, view_of

SMALL = 2**20  # bytes; smaller batches are copied sooner than Python has submitted events of another stream
ALIGNED = 256  # bytes; tensors begin at such multiples, where some operators are faster


class Uploads:
    """Copies batches to a GPU, each as a whole from pinned memory; large ones on a stream of its own.

    Python only submits computations. While the device computes one batch, Python already copies the next one,
    which does not wait for the computation. The number of batches that wait for the device is limited in the
    same way as by :class:`multifit.gluon.execution.throttle.Throttle`. On the CPU, batches are not copied: a
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
