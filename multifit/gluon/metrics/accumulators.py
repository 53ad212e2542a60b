"""Sum over an epoch on the devices, without waiting until a figure is read."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from ...protocols import Array, Context
from ..compat import mx

CHUNK = 64  # arrays that are added in one call, if they are small
SMALL = 4096  # elements of a small array, at most


class Accumulator:
    """A float64 vector per device to which batches are added; float64 counts exactly up to 2**53.

    `context` is the device of all batches, if it is known: to ask each array for it takes time.
    """

    def __init__(self, context: Context | None = None) -> None:
        self._context = context
        self._pending: dict[Any, list[Array]] = {}  # per device: the sum so far, then arrays yet to be added
        self._most = 0  # arrays per device, besides the sum

    def add(self, values: Array) -> None:
        """Add an NDArray of float64, without waiting for it."""
        arrays = self._pending.setdefault(self._context or values.context, [])
        arrays.append(values)
        if not self._most:
            self._most = CHUNK if values.size <= SMALL else 1
        if len(arrays) > self._most:
            arrays[:] = [mx.nd.add_n(*arrays)]

    def read(self) -> np.ndarray | float:
        """Return the sum over all devices, 0 if nothing was added; this waits for the engine.

        Reading changes nothing, so that the order of additions, and with it the rounding, does not depend on
        when figures are read.
        """
        return sum((mx.nd.add_n(*arrays).asnumpy() for arrays in self._pending.values()), 0.0)

    def state(self) -> list[Array]:
        """Return the sums and the arrays yet to be added, for a checkpoint."""
        return [array for arrays in self._pending.values() for array in arrays]

    def load(self, state: Sequence[Array]) -> None:
        """Restore what :meth:`state` returned, each array on its device."""
        self._pending = {}
        for array in state:
            self._pending.setdefault(array.context, []).append(array.copy())


class ScalarSum:
    """A sum of numbers and of arrays of shape (1,); the arrays are added on their device."""

    def __init__(self) -> None:
        self._number, self._array = 0.0, Accumulator()

    def add(self, value: Any) -> None:
        """Add a number, or an NDArray of shape (1,)."""
        if isinstance(value, mx.nd.NDArray):
            self._array.add(value.astype("float64"))
        else:
            self._number += value

    def read(self) -> float:
        """Return the sum; this waits for the engine if arrays were added."""
        return self._number + float(np.sum(self._array.read()))

    def state(self) -> list[Any]:
        """Return the number and the devices' sums, for a checkpoint."""
        return [self._number, self._array.state()]
