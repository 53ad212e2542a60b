"""Batches on their way to the device."""

from __future__ import annotations

from collections import deque
from typing import Any, Mapping, Sequence

import torch

from ...gluon.execution.throttle import MAX_BATCHES, MAX_BYTES, MIN_BATCHES
from .tensors import Tensors, view_of


class Uploads:
    """Copies batches to a device, from pinned memory and on a stream of its own.

    Python only asks for computations. While the device computes one batch, Python is already at the next,
    whose copy does not wait for the computation. How many batches wait for the device is limited, as
    :class:`multifit.gluon.execution.throttle.Throttle` limits it. On the CPU, a batch is not copied: streams
    and events do nothing there, and a tensor shares the memory of its array.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pins = device, device.type == "cuda"
        self._backend = torch.cuda if self._pins else torch.cpu
        self._stream = self._backend.Stream(device)  # by place: a CPU's stream ignores it
        self._last: list[torch.Tensor] = []
        self._waiting: deque[tuple[Any, list[torch.Tensor]]] = deque()

    def __call__(self, arrays: Mapping[str, Any]) -> Tensors:
        """Return arrays of MXNet's as tensors on the device; None, for a slot that is absent, is left out."""
        self._limit()
        present = {name: array for name, array in arrays.items() if array is not None}
        with self._backend.stream(self._stream):
            tensors = {name: self._copy(view_of(array)) for name, array in present.items()}
        self._backend.current_stream(self._device).wait_stream(self._stream)
        self._last = list(tensors.values())
        return tensors

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return (tensor.pin_memory() if self._pins else tensor).to(self._device, non_blocking=True)

    def _limit(self) -> None:
        """Hold the last batch until the device is past it; wait for the oldest if there are too many.

        The memory of a tensor belongs to the stream of its copy: it must not be freed for the next copy while
        the batch is computed.
        """
        done = self._backend.Event()
        done.record(self._backend.current_stream(self._device))
        self._waiting.append((done, self._last))
        while self._waiting and (self._too_many() or self._waiting[0][0].query()):
            self._waiting.popleft()[0].synchronize()

    def _too_many(self) -> bool:
        return too_many([sum(tensor.nbytes for tensor in tensors) for _, tensors in self._waiting])


def too_many(sizes: Sequence[int]) -> bool:
    """Whether batches that take so many bytes are more than may wait for the device."""
    return len(sizes) > (MIN_BATCHES if sum(sizes) > MAX_BYTES else MAX_BATCHES)
