"""The sums of a stage's losses and device metrics, and the losses' figures that are computed from them."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from ...protocols import Array
from ...spec.terms import Term
from .accumulators import Accumulator, ScalarSum

Layout = tuple[tuple[str, int], ...]  # of a vector of statistics: the name and width of each part


class MetricSums:
    """Everything that a stage adds up over an epoch.

    A term's figure is Σ loss / Σ normaliser over the epoch; the objective is the weighted sum of the terms'
    figures.

    `batches` and `samples` were added since the last :meth:`clear`. `vectors` are the statistics of all
    batches by layout. `norms` are the normalisers of terms with ``normalize_by``; all others are normalised
    by the number of samples. `weighted` are the weighted losses of terms whose weight is a function.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = list(terms)
        self.clear()

    def clear(self) -> None:
        """Reset all sums."""
        self.batches = 0
        self.samples = 0
        self.vectors: dict[Layout, Accumulator] = {}
        self.norms = {term.key: ScalarSum() for term in self.terms if term.spec.normalize_by is not None}
        self.weighted = {term.key: ScalarSum() for term in self.terms if callable(term.spec.weight)}

    def add(self, layout: Layout, statistics: Array | None) -> None:
        """Add one device's statistics: a vector laid out as `layout` says, or None."""
        if statistics is not None:
            self.vectors.setdefault(layout, Accumulator()).add(statistics)

    def read(self) -> dict[str, np.ndarray]:
        """Return the sums by name; this waits for the engine."""
        sums: dict[str, np.ndarray] = {}
        for layout, vector in self.vectors.items():
            values, start = np.asarray(vector.read()), 0
            for name, width in layout:
                sums[name] = sums.get(name, 0.0) + values[start : start + width]
                start += width
        return sums

    def loss_figures(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the objective, every term and every part, computed from what :meth:`read` returned."""
        figures: dict[str, float] = {}
        objective = 0.0
        for term in self.terms:
            norm = self.norms[term.key].read() if term.key in self.norms else float(self.samples)
            parts = [float(value) / norm if norm else 0.0 for value in sums[term.where]]
            figures.update(zip(term.figures, [parts[term.minimized], *parts]))
            if callable(term.spec.weight):
                objective += self.weighted[term.key].read() / norm if norm else 0.0
            else:
                objective += term.spec.weight * parts[term.minimized]
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
        """Restore what :meth:`state` returned."""
        self.clear()
        self.batches, self.samples = state["batches"], state["samples"]
        for layout, sums in state["vectors"]:
            self.vectors.setdefault(layout, Accumulator()).load(sums)
        for totals, saved in ((self.norms, state["norms"]), (self.weighted, state["weighted"])):
            for key in totals.keys() & saved.keys():
                totals[key].load(saved[key])
