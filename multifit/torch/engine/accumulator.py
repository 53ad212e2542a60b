"""The sum of tensors over batches."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from .tensors import to_array, to_tensor


class Accumulator:
    """Adds up tensors of one shape on their device, without waiting for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._total: torch.Tensor | None = None

    def add(self, values: torch.Tensor) -> None:
        """Add a tensor, which may change afterwards."""
        self._total = values.clone() if self._total is None else self._total.add_(values)

    def read(self) -> Any:
        """Return the sum in NumPy, 0 if nothing was added; this waits for the device."""
        return 0.0 if self._total is None else self._total.cpu().numpy().copy()

    def state(self) -> list[Any]:
        """Return the sum as NDArrays, for a checkpoint."""
        return [] if self._total is None else [to_array(self._total)]

    def load(self, state: Sequence[Any]) -> None:
        """Restore what :meth:`state` returned, of either engine."""
        self._total = None
        for array in state:
            self.add(to_tensor(array, self._device))
