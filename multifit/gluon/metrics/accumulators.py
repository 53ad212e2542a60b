"""Sums over an epoch, kept on the devices until somebody reads a figure."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from ...spec.terms import Term
from ..compat import mx

__all__ = ["Accumulator", "Layout", "MetricSums", "ScalarSum"]

Layout = tuple[tuple[str, int], ...]  # of where a statistic comes from, and its width


AT_ONCE = 16  # arrays that are added in one call,
SMALL = 4096  # unless they are larger than this


class Accumulator:
    """A float64 vector per device to which batches are added; float64 counts exactly up to 2**53."""

    def __init__(self) -> None:
        self._sums: dict[Any, list[Any]] = {}  # what is added already, and what waits to be

    def add(self, values: Any) -> None:
        """Add an NDArray of float64, without waiting for it."""
        own = self._sums.setdefault(values.context, [])
        own.append(values)
        if len(own) > (AT_ONCE if values.size <= SMALL else 1):
            own[:] = [mx.nd.add_n(*own)]

    def read(self) -> np.ndarray | float:
        """Return the sum over devices; this waits for the engine. 0 where nothing was added.

        What waits goes on waiting: who reads when does not change the order in which numbers are added.
        """
        return sum((mx.nd.add_n(*own).asnumpy() for own in self._sums.values()), 0.0)

    def clear(self) -> None:
        """Forget everything."""
        self._sums.clear()

    def state(self) -> list[Any]:
        """Return the devices' sums, and what waits to be added, for a checkpoint."""
        return [value for own in self._sums.values() for value in own]

    def load(self, state: Sequence[Any]) -> None:
        """Go on from what :meth:`state` returned, each array on its device."""
        self._sums = {}
        for value in state:
            self._sums.setdefault(value.context, []).append(value.copy())


class ScalarSum:
    """A number to which numbers and arrays are added; only the arrays live on the device."""

    def __init__(self) -> None:
        self._number, self._array = 0.0, Accumulator()

    def add(self, value: Any) -> None:
        """Add a number, or an NDArray of shape (1,)."""
        if isinstance(value, mx.nd.NDArray):
            self._array.add(value.astype("float64"))
        else:
            self._number += value

    def read(self) -> float:
        """Return the total; this waits for the engine if arrays were added."""
        return self._number + float(np.sum(self._array.read()))

    def state(self) -> list[Any]:
        """Return the number and the devices' sums, for a checkpoint."""
        return [self._number, self._array.state()]

    def load(self, state: Sequence[Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self._number = state[0]
        self._array.load(state[1])


class MetricSums:
    """The sums of a stage's terms, and from them the terms' figures.

    A figure is Σ loss / Σ normaliser over the epoch; the objective is the sum of the terms' figures with
    their weights.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = list(terms)
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.batches = 0
        self.samples = 0
        self.vectors: dict[Layout, Accumulator] = {}
        # a normaliser that is not declared is the number of samples
        self.norms = {term.key: ScalarSum() for term in self.terms if term.spec.normalize_by is not None}
        self.weighted = {term.key: ScalarSum() for term in self.terms if callable(term.spec.weight)}

    def add(self, layout: Layout, statistics: Any) -> None:
        """Add one device's statistics: a vector of the widths, one after the other, that `layout` says."""
        if statistics is not None:
            self.vectors.setdefault(layout, Accumulator()).add(statistics)

    def read(self) -> dict[str, np.ndarray]:
        """Return the sums by where they come from; this waits for the engine."""
        sums: dict[str, np.ndarray] = {}
        for layout, vector in self.vectors.items():
            values, start = vector.read(), 0
            for where, width in layout:
                sums[where] = sums.get(where, 0.0) + values[start : start + width]
                start += width
        return sums

    def figures(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the objective, every term and every part."""
        figures: dict[str, float] = {}
        objective = 0.0
        for term in self.terms:
            norm = self.norms[term.key].read() if term.key in self.norms else float(self.samples)
            parts = [float(value) / norm if norm else 0.0 for value in sums[term.where]]
            figures.update(zip(term.figures, [parts[term.minimized], *parts]))
            weighted = self.weighted.get(term.key)
            if weighted is None:
                objective += term.spec.weight * parts[term.minimized]
            else:
                objective += weighted.read() / norm if norm else 0.0
        return {"loss": objective, **figures} if self.terms else {}

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
        """Go on from what :meth:`state` returned."""
        self.clear()
        self.batches, self.samples = state["batches"], state["samples"]
        for layout, sums in state["vectors"]:
            self.vectors.setdefault(layout, Accumulator()).load(sums)
        for own, saved in ((self.norms, state["norms"]), (self.weighted, state["weighted"])):
            for key in own.keys() & saved.keys():
                own[key].load(saved[key])
