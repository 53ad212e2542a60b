"""Copy batches to the device."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from typing import Any, Mapping, Sequence

import torch

from ...gluon.execution.throttle import MAX_BATCHES, MAX_BYTES, MIN_BATCHES
from .tensors import Tensors, view_of

SMALL = 2**20  # bytes; smaller batches are copied sooner than Python has submitted events of another stream


class Uploads:
    """Copies batches to a GPU, from pinned memory; large ones on a stream of its own.

    Python only submits computations. While the device computes one batch, Python already copies the next one,
    which does not wait for the computation. The number of batches that wait for the device is limited in the
    same way as by :class:`multifit.gluon.execution.throttle.Throttle`. On the CPU, batches are not copied: a
    tensor shares the memory of its array.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._copies = device, device.type != "cpu"
        self._backend = torch.cuda if self._copies else torch.cpu
        self._stream = self._backend.Stream(device)  # positional: torch.cpu's ignores its argument
        self._last: list[torch.Tensor] = []
        self._waiting: deque[tuple[Any, list[torch.Tensor]]] = deque()

    def __call__(self, arrays: Mapping[str, Any]) -> Tensors:
        """Return MXNet's arrays as tensors on the device; absent slots, which are None, are left out."""
        tensors = {name: view_of(array) for name, array in arrays.items() if array is not None}
        return self.copied(tensors) if self._copies else tensors

    def copied(self, tensors: Tensors) -> Tensors:
        """Return copies on the device; on the CPU the tensors, as streams and events do nothing there."""
        self._limit()
        is_small = sum(tensor.nbytes for tensor in tensors.values()) <= SMALL
        with nullcontext() if is_small else self._backend.stream(self._stream):
            copies = {name: self._copy(tensor) for name, tensor in tensors.items()}
        if not is_small:
            self._backend.current_stream(self._device).wait_stream(self._stream)
        self._last = list(copies.values())
        return copies

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return (tensor.pin_memory() if self._copies else tensor).to(self._device, non_blocking=True)

    def _limit(self) -> None:
        """Keep the last batch until the device has computed it; wait for the oldest if there are too many.

        The memory of a tensor belongs to the stream that copied it: it must not be freed, and used for the
        next copy, while the batch is computed.
        """
        done = self._backend.Event()
        done.record(self._backend.current_stream(self._device))
        self._waiting.append((done, self._last))
        while self._waiting and (self._too_many() or self._waiting[0][0].query()):
            self._waiting.popleft()[0].synchronize()

    def _too_many(self) -> bool:
        return too_many([sum(tensor.nbytes for tensor in tensors) for _, tensors in self._waiting])


def too_many(sizes: Sequence[int]) -> bool:
    """Whether more batches wait for the device than allowed; `sizes` are their sizes in bytes."""
    return len(sizes) > (MIN_BATCHES if sum(sizes) > MAX_BYTES else MAX_BATCHES)
