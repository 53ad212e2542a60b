"""The figures of the tasks' gradients: norms, cosines, and how many pairs conflict."""

from __future__ import annotations

from itertools import combinations
from typing import Any, Sequence

import numpy as np

from ...protocols import Numbers
from ..metrics.means import Means, measured_rows

CHUNK = 64  # batches whose figures are computed at once, which takes as long as for a single batch


class GradientFigures(Means):
    """The means over an epoch of figures of each batch's Gramian; see :func:`gradient_figures`."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._pending: list[Numbers] = []
        super().__init__(gradient_figures(tasks))

    def reset(self) -> None:
        """Discard everything, as at the beginning of an epoch."""
        self._pending = []
        super().reset()

    def add_gramian(self, gramian: Numbers) -> None:
        """Add the inner products of a batch, of shape (tasks, tasks)."""
        self._pending.append(gramian)
        if len(self._pending) == CHUNK:
            self._flush()

    def read(self) -> dict[str, float]:
        """Return the means by name, NaN for those that no batch has measured."""
        self._flush()
        return super().read()

    def state(self) -> dict[str, Any]:
        """Return the sums, for a checkpoint."""
        self._flush()
        return super().state()

    def _flush(self) -> None:
        if self._pending:
            for row in _figures(np.stack(self._pending)):
                self.add(row)
        self._pending = []


def gradient_figures(names: Sequence[str]) -> list[str]:
    """Return the names of the figures: norms, cosines of pairs, and the share of pairs that conflict."""
    cosines = [f"cosine_{one}_{other}" for one, other in combinations(names, 2)]
    return [*[f"gradnorm_{name}" for name in names], *cosines, "conflict"]


def _figures(gramians: Numbers) -> list[Numbers]:
    """Return the figures of each batch as the rows that :class:`Means` adds up, in the order of their names.

    A task whose gradient is 0, such as one without labels in the batch, has no figures there.
    """
    norms = np.sqrt(np.diagonal(gramians, axis1=1, axis2=2).clip(min=0))
    there = norms > 0
    lengths = np.where(there, norms, 1.0)
    one, other = np.triu_indices(norms.shape[1], 1)
    cosines = gramians[:, one, other] / (lengths[:, one] * lengths[:, other])
    pairs = there[:, one] & there[:, other]
    counts = pairs.sum(axis=1, keepdims=True)
    conflicts = ((cosines < 0) & pairs).sum(axis=1, keepdims=True) / counts.clip(min=1)
    figures, measured = np.hstack([norms, cosines, conflicts]), np.hstack([there, pairs, counts > 0])
    return [measured_rows(*each) for each in zip(figures, measured.astype(np.float64))]
