"""Sums over an epoch that stay on the devices until a figure is read."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from ...protocols import Array
from ..compat import mx

CHUNK = 16  # arrays that are added in one call,
SMALL = 4096  # unless they have more elements than this
SEARCHED = 64  # vectors in which a first batch is looked for at once
NEVER = 2**52  # no batch has this number


class Accumulator:
    """A float64 vector per device to which batches are added; float64 counts exactly up to 2**53."""

    def __init__(self) -> None:
        self._pending: dict[Any, list[Array]] = {}  # per device: the sum so far, then arrays yet to be added

    def add(self, values: Array) -> None:
        """Add an NDArray of float64, without waiting for it."""
        arrays = self._pending.setdefault(values.context, [])
        arrays.append(values)
        if len(arrays) > (CHUNK if values.size <= SMALL else 1):
            arrays[:] = [mx.nd.add_n(*arrays)]

    def read(self) -> np.ndarray | float:
        """Return the sum over all devices, 0 if nothing was added; this waits for the engine.

        Reading changes nothing, so the order of additions, and with it rounding, does not depend on it.
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


class FirstBatches:
    """Finds the first batch in which each of some counts was not 0, on the devices and without waiting.

    `names` are those of the counts, which are consecutive elements, from `start`, of the vectors that are
    added.
    """

    def __init__(self, names: Sequence[str], start: int) -> None:
        self.names, self._start = list(names), start
        self._pending: dict[Any, tuple[list[Array], list[int]]] = {}  # per device: vectors and batches
        self._scores: dict[Any, Array] = {}  # per device: NEVER - the first batch; 0 if there is none

    def add(self, values: Array, batch: int) -> None:
        """Add a batch's vector, and the batch's number."""
        arrays, batches = self._pending.setdefault(values.context, ([], []))
        arrays.append(values)
        batches.append(batch)
        if len(arrays) * values.size > SMALL or len(arrays) == SEARCHED:
            self._search(values.context)

    def read(self) -> dict[str, int]:
        """Return the first batch of each count that was not always 0; this waits for the engine."""
        scores = np.max([array.asnumpy() for array in self.state()], axis=0)
        return {name: int(NEVER - score) for name, score in zip(self.names, scores) if score}

    def state(self) -> list[Array]:
        """Return what was found, for a checkpoint."""
        for context in self._pending:
            self._search(context)
        return list(self._scores.values())

    def load(self, state: Sequence[Array]) -> None:
        """Restore what :meth:`state` returned, each array on its device."""
        self._scores = {array.context: array.copy() for array in state}

    def _search(self, context: Any) -> None:
        arrays, batches = self._pending[context]
        if not arrays:
            return
        rows = mx.nd.concat(*arrays, dim=0).reshape((len(arrays), -1))
        end = self._start + len(self.names)
        present = mx.nd.slice_axis(rows, axis=1, begin=self._start, end=end) != 0
        scores = mx.nd.array([[NEVER - batch] for batch in batches], ctx=context, dtype="float64")
        best = mx.nd.max(mx.nd.broadcast_mul(present, scores), axis=0)
        before = self._scores.get(context)
        self._scores[context] = best if before is None else mx.nd.maximum(before, best)
        arrays.clear()
        batches.clear()


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

    def load(self, state: Sequence[Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._number = state[0]
        self._array.load(state[1])
