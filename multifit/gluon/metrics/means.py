"""Figures that are means over an epoch's batches, of numbers that a step computes anyway."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Protocol, Sequence

import numpy as np

from ...protocols import Array
from .accumulators import Accumulator


class Sums(Protocol):
    """Adds up arrays of one shape, without waiting for them."""

    def add(self, values: Any) -> None:
        """Add an array."""

    def read(self) -> Any:
        """Return the sum in NumPy, 0 if nothing was added; this waits."""

    def state(self) -> list[Array]:
        """Return NDArrays that add up to the sum, for a checkpoint."""

    def load(self, state: Sequence[Array]) -> None:
        """Restore what :meth:`state` returned."""


class Means:
    """The means of some numbers over the batches; nothing waits for them until they are read.

    `new_sums` makes an object that adds up arrays of an engine.
    """

    def __init__(self, names: Sequence[str], new_sums: Callable[[], Sums] = Accumulator) -> None:
        self.names, self.new_sums = list(names), new_sums
        self.reset()

    def reset(self) -> None:
        """Discard everything, as at the beginning of an epoch."""
        self._sum, self._batches = self.new_sums(), 0
        self._host_sum = np.zeros(len(self.names))

    def add(self, values: Array | np.ndarray) -> None:
        """Add the numbers of a batch: a float64 array, in NumPy or on a device, in the order of the names.

        Further elements of an array on a device are ignored.
        """
        if isinstance(values, np.ndarray):
            self._host_sum = self._host_sum + values
        else:
            self._sum.add(values)
        self._batches += 1

    def read(self) -> dict[str, float]:
        """Return the means by name, NaN if no batch was added; this waits for the engine."""
        sums = self._host_sum + np.ravel(self._sum.read())[: len(self.names)]
        return {
            name: float(value) / self._batches if self._batches else np.nan
            for name, value in zip(self.names, sums)
        }

    def state(self) -> dict[str, Any]:
        """Return the sums, for a checkpoint."""
        sums = {"sum": self._sum.state(), "host_sum": self._host_sum}
        return {"names": self.names, "batches": self._batches, **sums}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._batches = state["batches"]
        self._host_sum = state.get("host_sum", np.zeros(len(self.names)))  # the oldest have none
        older = [array for array in state["sum"] if len(array.shape) == 1]  # without what follows the numbers
        self._sum.load([] if older else state["sum"])
        for array in older:
            self._host_sum = self._host_sum + array.asnumpy()
