"""The means over an epoch of what single batches have measured."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..protocols import Array, Numbers


class Sums(Protocol):
    """Adds up arrays of one shape, without waiting for them."""

    def add(self, values: Any) -> None:
        """Add an array."""

    def read(self) -> Any:
        """Return the sum in NumPy, 0 if nothing was added; this waits."""

    def state(self) -> list[Array]:
        """Return arrays that add up to the sum, for a checkpoint."""

    def load(self, state: Sequence[Array]) -> None:
        """Restore what :meth:`state` returned."""


class Means:
    """The means of some numbers over the batches in which each was measured; only reading them waits.

    What is added up has two rows: the numbers, 0 where there is none, and how often each was measured.
    `new_sums` makes an object that adds up arrays of an engine; without it, all are NumPy's.
    """

    def __init__(self, names: Sequence[str], new_sums: Callable[[], Sums] | None = None) -> None:
        self.names, self.new_sums = list(names), new_sums
        self.reset()

    def reset(self) -> None:
        """Discard everything, as at the beginning of an epoch."""
        self._sum = None if self.new_sums is None else self.new_sums()
        self._host_sum = np.zeros((2, len(self.names)))

    def add(self, rows: Array | Numbers) -> None:
        """Add a batch: a float64 array, in NumPy or on a device, with a column for each of the names.

        The first row holds the numbers, and the second has 1 for each of them that was measured, else 0. A
        number that was not measured must be 0. Further rows of an array on a device are ignored.
        """
        if self._sum is None or isinstance(rows, np.ndarray):
            self._host_sum = self._host_sum + rows
        else:
            self._sum.add(rows)

    def read(self) -> dict[str, float]:
        """Return the means by name, NaN for those that were never measured; this waits for the engine."""
        on_device = np.asarray(0.0 if self._sum is None else self._sum.read())
        sums, counts = self._host_sum + (on_device[:2] if on_device.ndim else 0.0)  # one 0: nothing there
        means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        return dict(zip(self.names, means.tolist()))

    def state(self) -> dict[str, Any]:
        """Return the sums, for a checkpoint."""
        on_device = [] if self._sum is None else self._sum.state()
        return {"names": self.names, "sum": on_device, "host_sum": self._host_sum}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        if self._sum is not None:
            self._sum.load(state["sum"])
        self._host_sum = state["host_sum"]


def measured_rows(numbers: Numbers, measured: Numbers) -> Numbers:
    """Return the rows to add to :class:`Means`; `measured` is 1 for each number that was measured, else 0."""
    return np.stack([numbers * measured, measured])
