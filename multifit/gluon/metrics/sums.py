"""Sums over a pass, on the devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...engines.stage_figures import loss_figures
from ...protocols import Array, Context
from ...spec.terms import Term
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


Layout = tuple[tuple[str, int], ...]  # of a vector of statistics: the name and width of each part


def slices(layout: Layout) -> Iterator[tuple[str, slice]]:
    """Yield the name and the slice of each part of a vector of statistics."""
    start = 0
    for name, width in layout:
        yield name, slice(start, start + width)
        start += width


class Totals(NamedTuple):
    """The totals from which figures are computed, read from the devices.

    `sums` are those of losses and metrics by name; the other fields are as in :class:`MetricSums`.
    """

    samples: int
    sums: dict[str, np.ndarray]
    norms: dict[str, float]
    weighted: dict[str, float]

    def __add__(self, other: Totals) -> Totals:  # type: ignore[override]
        return Totals(
            self.samples + other.samples,
            _added(self.sums, other.sums),
            _added(self.norms, other.norms),
            _added(self.weighted, other.weighted),
        )


class MetricSums:
    """Everything that a stage adds up over an epoch.

    A term's figure is Σ loss / Σ normalizer over the epoch; the objective is the weighted sum of the terms'
    figures.

    `batches` and `samples` are the numbers of batches and samples since the last :meth:`clear`. `vectors` are
    the summed statistics by layout. `norms` are the normalizers of terms that are not normalised by the
    number of samples. `weighted` are the weighted losses of terms whose weight is a function.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = list(terms)
        self.clear()

    def clear(self) -> None:
        """Reset all sums."""
        self.batches = 0
        self.samples = 0
        self.vectors: dict[Layout, Accumulator] = {}
        self.norms = {term.key: ScalarSum() for term in self.terms if not term.counts_samples}
        self.weighted = {term.key: ScalarSum() for term in self.terms if callable(term.spec.weight)}

    def add(self, layout: Layout, statistics: Array | None) -> None:
        """Add one device's statistics: a vector laid out as `layout` says, or None."""
        if statistics is not None:
            self.vectors.setdefault(layout, Accumulator()).add(statistics)

    def count(self, samples: int, norms: Mapping[str, Any]) -> None:
        """Count a batch whose statistics were added: its samples, and the normalizers of terms."""
        for key, norm in self.norms.items():
            norm.add(norms[key])
        self.batches += 1
        self.samples += samples

    def read(self) -> dict[str, np.ndarray]:
        """Return the sums by name; this waits for the engine."""
        sums: dict[str, np.ndarray] = {}
        for layout, vector in self.vectors.items():
            values = np.asarray(vector.read())
            for name, part in slices(layout):
                sums[name] = sums.get(name, 0.0) + values[part]
        return sums

    def totals(self) -> Totals:
        """Return everything that figures are computed from; this waits for the engine."""
        return Totals(
            self.samples,
            self.read(),
            {key: norm.read() for key, norm in self.norms.items()},
            {key: weighted.read() for key, weighted in self.weighted.items()},
        )

    def loss_figures(self, totals: Totals) -> dict[str, float]:
        """Return the objective, every term and every part."""
        norms = {term.key: totals.norms.get(term.key, float(totals.samples)) for term in self.terms}
        # 0 if no batch had a term's slots
        sums = {term.key: totals.sums.get(term.where, np.zeros(len(term.parts))) for term in self.terms}
        return loss_figures(self.terms, sums, norms, totals.weighted)

    def state(self) -> dict[str, Any]:
        """Return all sums, for a checkpoint."""
        return {
            "batches": self.batches,
            "samples": self.samples,
            "vectors": [[layout, vector.state()] for layout, vector in self.vectors.items()],
            "norms": {key: total.state() for key, total in self.norms.items()},
            "weighted": {key: total.state() for key, total in self.weighted.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.clear()
        self.batches = state["batches"]
        self.merge(state)

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` returned in another process, where batches had the same numbers."""
        self.samples += state["samples"]
        for layout, arrays in state["vectors"]:
            for array in arrays:
                self.vectors.setdefault(layout, Accumulator()).add(array)
        for totals, saved in ((self.norms, state["norms"]), (self.weighted, state["weighted"])):
            for key in totals.keys() & saved.keys():
                for value in (saved[key][0], *saved[key][1]):
                    totals[key].add(value)


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    sums = dict(one)
    for name, value in other.items():
        sums[name] = sums[name] + value if name in sums else value
    return sums
