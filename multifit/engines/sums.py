"""Sums over a pass, from which figures are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

SAMPLES = "samples"  # the number of samples among the sums
NORM, WEIGHTED = "norm ", "weighted "  # before a loss's key: its normalizer, and the loss times its weight

Layout = tuple[tuple[str, int], ...]
"""Of what a batch adds up, as one vector: the name and width of each part; a name may come again."""


class Accumulator(Protocol):
    """Adds up arrays of one layout in float64, which counts exactly up to 2**53.

    What is read, saved and resumed does not change the order of additions, and so not the rounding.
    """

    def read(self) -> Any:
        """Return the sum in NumPy; this waits for the devices."""

    def state(self) -> list[Any]:
        """Return the sum and the arrays that are not yet added to it, for a checkpoint."""

    def merge(self, state: Sequence[Any]) -> None:
        """Add what :meth:`state` returned; exactly as it was, unless it has a sum already."""


class PassSums(ABC):
    """Everything that a stage adds up over a pass.

    `batches` and `samples` are the numbers of batches and samples since the last :meth:`clear`. `vectors` are
    the accumulators by layout, which `new_sum` makes. `numbers` are sums that are known without a device.
    """

    def __init__(self, new_sum: Callable[[], Any]) -> None:
        self._new_sum = new_sum
        self.clear()

    def clear(self) -> None:
        """Reset all sums."""
        self.batches = self.samples = 0
        self.vectors: dict[Layout, Any] = {}
        self.numbers: dict[str, float] = {}

    @abstractmethod
    def add(self, layout: Layout, values: Any) -> None:
        """Add arrays of an engine, without waiting for them."""

    def read(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the sums by name, also that of samples; this waits for the devices.

        Where a name comes again in a layout, or has a number, its parts are one behind the other, but
        normalizers are added up.
        """
        totals: dict[str, Any] = {SAMPLES: np.array([float(self.samples)])}
        for layout, vector in self.vectors.items():
            values, start, named = vector.read(), 0, dict[str, list[Any]]()
            for name, width in layout:
                named.setdefault(name, []).append(values[start : start + width])
                start += width
            for name, pieces in named.items():
                totals[name] = totals.get(name, 0.0) + np.concatenate(pieces)
        for name, number in self.numbers.items():
            if name.startswith(NORM):
                totals[name] = totals.get(name, 0.0) + np.array([number])
            else:
                totals[name] = np.append(totals[name], number)
        return totals

    def state(self) -> dict[str, Any]:
        """Return all sums, for a checkpoint."""
        return {
            "batches": self.batches,
            "samples": self.samples,
            "vectors": [[layout, vector.state()] for layout, vector in self.vectors.items()],
            "numbers": dict(self.numbers),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.clear()
        self.batches = state["batches"]
        self.merge(state)

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` returned in another process, where batches had the same numbers."""
        self.samples += state["samples"]
        for saved, arrays in state["vectors"]:
            layout = tuple([(name, width) for name, width in saved])
            if layout not in self.vectors:
                self.vectors[layout] = self._new_sum()
            self.vectors[layout].merge(arrays)
        for name, number in state["numbers"].items():
            self.add_number(name, number)

    def add_number(self, name: str, number: float) -> None:
        """Add a number that is known without a device."""
        self.numbers[name] = self.numbers.get(name, 0.0) + number
