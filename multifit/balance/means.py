"""The means over an epoch of what single batches have measured."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Protocol

import numpy as np

from ..utils.protocols import Array, Numbers
from .protocol import PULL_APART

CHUNK = 64  # batches whose figures are computed at once, which takes as long as for a single batch


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
        """Return the means by name, NaN for those that were never measured; this waits for the device."""
        on_device = np.asarray(0.0 if self._sum is None else self._sum.read())
        sums, counts = self._host_sum + (on_device[:2] if on_device.ndim else 0.0)
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


class GradientFigures(Means):
    """The means over an epoch of figures of each batch's Gramian; see :func:`gradient_figures`."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._pending: list[Numbers] = []
        self._pairs = list(combinations(tasks, 2))
        super().__init__(gradient_figures(tasks))

    def reset(self) -> None:
        """Discard everything, as at the beginning of an epoch."""
        self._pending = []
        self._unmet = np.zeros(len(self._pairs), bool)  # in some batch that had a gradient of both
        super().reset()

    def add_gramian(self, gramian: Numbers) -> None:
        """Add the inner products of a batch, of shape (tasks, tasks)."""
        self._pending.append(gramian)
        if len(self._pending) == CHUNK:
            self._flush()

    def never_met(self) -> list[tuple[str, str]]:
        """Return the pairs of tasks whose gradients met in no batch, though some batch had both."""
        means, pairs = self.read(), zip(self._pairs, self._unmet)
        return [pair for pair, unmet in pairs if unmet and math.isnan(means[cosine_figure(*pair)])]

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
            rows, unmet = _figures(np.stack(self._pending))
            self._unmet |= unmet
            for row in rows:
                self.add(row)
        self._pending = []


def gradient_figures(names: Sequence[str]) -> list[str]:
    """Return the names of the figures: norms, cosines of pairs, and the share of pairs that conflict."""
    cosines = [cosine_figure(*pair) for pair in combinations(names, 2)]
    return [*[f"gradnorm_{name}" for name in names], *cosines, "conflict"]


def cosine_figure(one: str, other: str) -> str:
    """Return the name of the figure of two tasks' cosine."""
    return f"cosine_{one}_{other}"


def _figures(gramians: Numbers) -> tuple[list[Numbers], Numbers]:
    """Return the figures of each batch as the rows that :class:`Means` adds up, in the order of their names.

    A task whose gradient is 0, such as one without labels in the batch, has no figures there. Nor have two
    tasks whose gradients did not meet: an inner product of exactly 0 means that they are nowhere both other
    than 0. Also returns for each pair whether that was so in a batch, though both had a gradient.
    """
    norms = np.sqrt(np.diagonal(gramians, axis1=1, axis2=2).clip(min=0))
    has_gradient = norms > 0
    lengths = np.where(has_gradient, norms, 1.0)
    one, other = np.triu_indices(norms.shape[1], 1)
    cosines = gramians[:, one, other] / (lengths[:, one] * lengths[:, other])
    both = has_gradient[:, one] & has_gradient[:, other]
    pairs = both & (cosines != 0)
    counts = pairs.sum(axis=1, keepdims=True)
    conflicts = ((cosines < PULL_APART) & pairs).sum(axis=1, keepdims=True) / counts.clip(min=1)
    figures, measured = np.hstack([norms, cosines, conflicts]), np.hstack([has_gradient, pairs, counts > 0])
    rows = [measured_rows(*each) for each in zip(figures, measured.astype(np.float64))]
    return rows, (both & ~pairs).any(axis=0)


def weight_figure(task: str) -> str:
    """Return the name of the figure of a task's weight."""
    return f"weight_{task}"
