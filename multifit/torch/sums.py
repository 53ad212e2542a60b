"""Sums over a pass, on the device; only reading them waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..balance import means

TOGETHER = 32  # batches that are added up at once, which takes hardly longer than to add up one
WIDE = 2**16  # elements of a tensor that is added up at once

Layout = tuple[tuple[str, ...], ...]
"""Of the tensors of a batch: the names of the elements of each, or one name for all of its elements."""


class PassSums:
    """Sums of small tensors in float64, which counts exactly up to 2**53.

    What is read, saved and resumed does not change the order of additions, and so not the rounding.
    """

    def __init__(self) -> None:
        self._rows: dict[Layout, list[list[Tensor]]] = {}  # sums, if there are any, and the last batches'

    def add(self, layout: Layout, tensors: list[Tensor]) -> None:
        """Add a batch's tensors, which must not change afterwards, without waiting."""
        rows = self._rows.setdefault(layout, [])
        rows.append(tensors)
        if len(rows) > TOGETHER or (len(rows) <= 2 and any(each.numel() > WIDE for each in tensors)):
            self._rows[layout] = [_summed(rows)]

    def read(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the sums by name, those of a tensor that has one name as an array; this waits."""
        found: dict[str, np.ndarray[Any, Any]] = {}
        for layout, rows in self._rows.items():
            sums = _summed(rows)
            values = torch.cat([each.reshape(-1) for each in sums]).cpu().numpy()
            named: dict[str, list[Any]] = {}
            for names, part in zip(layout, np.split(values, np.cumsum([each.numel() for each in sums])[:-1])):
                for name, piece in zip(names, np.split(part, len(names))):
                    named.setdefault(name, []).append(piece)
            for name, pieces in named.items():
                found[name] = found.get(name, 0.0) + np.concatenate(pieces)
        return found

    def state(self) -> list[Any]:
        """Return the sums, and the tensors that are not yet added up, for a checkpoint; this waits."""
        return [
            {
                "layout": [list(names) for names in layout],
                "rows": [torch.stack(column).cpu() for column in zip(*rows)],
            }
            for layout, rows in self._rows.items()
        ]

    def merge(self, state: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        """Add what :meth:`state` returned; exactly as it was, unless there are sums already."""
        for saved in state:
            layout = tuple(tuple(names) for names in saved["layout"])
            columns = [torch.as_tensor(each).to(device) for each in saved["rows"]]
            rows = [list(row) for row in zip(*(column.unbind() for column in columns))]
            own = self._rows.get(layout)
            self._rows[layout] = [_summed([_summed(own), _summed(rows)])] if own else rows


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


class Means(means.Means):
    """The means of some numbers over the batches in which each was measured; only reading them waits."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names, DeviceSum)
