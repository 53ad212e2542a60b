"""Sums over a pass, on the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...engines import sums
from ...engines.sums import NORM, WEIGHTED, Layout
from ...spec.terms import Term
from ...utils.protocols import Array, Context
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
        """Return the sum over all devices, 0 if nothing was added; this waits for them.

        Reading changes nothing, so that the order of additions, and with it the rounding, does not depend on
        when figures are read.
        """
        return sum((mx.nd.add_n(*arrays).asnumpy() for arrays in self._pending.values()), 0.0)

    def state(self) -> list[Array]:
        """Return the sums and the arrays yet to be added, for a checkpoint."""
        return [array for arrays in self._pending.values() for array in arrays]

    def merge(self, state: Sequence[Array]) -> None:
        """Add what :meth:`state` returned, each array on its device."""
        for array in state:
            self.add(array)

    def load(self, state: Sequence[Array]) -> None:
        """Restore what :meth:`state` returned, each array on its device."""
        self._pending = {}
        self.merge(state)


class PassSums(sums.PassSums):
    """Everything that a stage adds up over a pass.

    `norms` are the losses that are not divided by the number of samples, and `weighted` those whose weight is
    a function: these are also added up times their weight.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__(Accumulator)
        self.norms = [term.key for term in terms if not term.counts_samples]
        self.weighted = {term.key for term in terms if callable(term.spec.weight)}

    def add(self, layout: Layout, values: Array | None) -> None:
        """Add one device's vector of float64, or nothing."""
        if values is not None:
            vector = self.vectors.get(layout)
            if vector is None:
                vector = self.vectors[layout] = Accumulator()
            vector.add(values)

    def add_weighted(self, key: str, value: Array) -> None:
        """Add a loss of one device times its weight: float64, of shape (1,)."""
        self.add(((WEIGHTED + key, 1),), value)

    def count(self, samples: int, norms: Mapping[str, Any]) -> None:
        """Count a batch whose vectors were added: its samples, and the normalizers of losses."""
        for key in self.norms:
            norm = norms[key]
            if isinstance(norm, mx.nd.NDArray):
                self.add(((NORM + key, 1),), norm.astype("float64"))
            else:
                self.add_number(NORM + key, norm)
        self.batches += 1
        self.samples += samples
