"""Sums over a pass, on the device; only reading them waits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engines import sums
from ..engines.sums import Layout

TOGETHER = 32  # batches that are added up at once, which takes hardly longer than to add up one
WIDE = 2**16  # elements of a tensor that is added up at once


class Accumulator:
    """Adds up small tensors of one layout in float64, which counts exactly up to 2**53."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows: list[list[Tensor]] = []  # the sums, if any, and the last batches' tensors

    def add(self, tensors: list[Tensor]) -> None:
        """Add a batch's tensors, which must not change afterwards, without waiting."""
        rows = self._rows
        rows.append(tensors)
        if len(rows) > TOGETHER or (len(rows) <= 2 and any(each.numel() > WIDE for each in tensors)):
            self._rows = [_summed(rows)]

    def read(self) -> np.ndarray[Any, Any]:
        """Return the sums as one vector; this waits, and does not change the order of additions."""
        return torch.cat([each.reshape(-1) for each in _summed(self._rows)]).cpu().numpy()

    def state(self) -> list[Tensor]:
        """Return the sums, and the tensors that are not yet added up, for a checkpoint; this waits."""
        return [torch.stack(column).cpu() for column in zip(*self._rows)]

    def merge(self, state: Sequence[Any]) -> None:
        """Add what :meth:`state` returned; exactly as it was, unless it has sums already."""
        columns = [torch.as_tensor(each).to(self._device) for each in state]
        rows = [list(row) for row in zip(*(column.unbind() for column in columns))]
        before = self._rows
        self._rows = [_summed([_summed(before), _summed(rows)])] if before else rows


class PassSums(sums.PassSums):
    """Everything that a stage adds up over a pass, on a device."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(partial(Accumulator, torch.device(device)))

    def add(self, layout: Layout, values: list[Tensor]) -> None:
        """Add a batch's tensors, one behind the other as the layout says, without waiting."""
        if layout not in self.vectors:
            self.vectors[layout] = self._new_sum()
        self.vectors[layout].add(values)


def _summed(rows: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(column).sum(0, dtype=torch.float64) for column in zip(*rows)]


class DeviceSum:
    """The sum of tensors of one shape, for :class:`Means`."""

    def __init__(self) -> None:
        self._total: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """Add a tensor, which may change afterwards, without waiting."""
        values = values.detach().to(torch.float64)
        self._total = values.clone() if self._total is None else self._total.to(values.device) + values

    def read(self) -> Any:
        """Return the sum in NumPy, 0 if nothing was added; this waits."""
        return 0.0 if self._total is None else self._total.cpu().numpy()

    def state(self) -> list[Tensor]:
        """Return the sum, for a checkpoint."""
        return [] if self._total is None else [self._total.cpu()]

    def load(self, state: Sequence[Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._total = torch.as_tensor(state[0]) if len(state) else None
