"""What every device-side figure shares: pairs of label and output, and sums that add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

__all__ = ["DeviceMetric", "Pair", "Shape", "doubles", "inner_size", "total"]

Shape = tuple[int, ...]
Pair = Callable[[Any, Any, Any], "list[Any]"]
"""``pair(F, label, output)``: the statistics of one label and its output, in vectors."""


class DeviceMetric:
    """The statistics from which one metric is computed, as a graph of mxnet's operators.

    The order of use is: :meth:`bind` once with real shapes, then :meth:`statistics` for each device's batch
    (eagerly with ``mx.nd`` or traced with ``mx.sym``), whose results are added; :meth:`load` at the end.

    Parameters
    ----------
    metric : mxnet.metric.EvalMetric
        The metric to compute.

    Attributes
    ----------
    width : int
        Number of statistics.
    of_labels : bool
        Whether the statistics count labels.
    small : bool
        Whether it gives two rows of float32 instead, with an element for each sample: what was said, and
        the label. Whoever asked counts where they agree (what is behind a label's point is cut off),
        together with others', and counts the samples. Known once it is bound.
    per_batch : bool
        True where the figure is a mean over updates of something that is not a sum: then the statistics of
        one batch are added over its devices, go through :meth:`fold`, and only that adds up over batches.
    """

    width: int = 2
    of_labels: bool = False
    small: bool = False
    per_batch: bool = False

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        self._pairs: list[Pair] = []

    @classmethod
    def covers(cls, metric: Any) -> bool:
        """Whether `metric`'s options are covered; its type is."""
        return True

    def match(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]] | None:
        """Pair labels with outputs as the metric's own ``update`` does; None where it would refuse."""
        return list(zip(labels, outputs)) if len(labels) == len(outputs) else None

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """Choose the graph for one pair by its shapes; None where they are not covered."""
        raise NotImplementedError

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], samples: int | None = None) -> bool:
        """Prepare for batches of these shapes.

        Only the number of axes and the sizes behind the first axis count, so a later batch may be smaller.

        Parameters
        ----------
        labels, outputs : sequence of tuple of int
            Shapes of one device's batch.
        samples : int, optional
            The number of samples, where it is the size of the labels' first axis in every batch.

        Returns
        -------
        bool
            False where these shapes are not covered: use the metric itself.
        """
        matched = self.match(labels, outputs) or []
        shapes = [label for label, _ in matched]
        self.small = self.of_labels and len(shapes) == 1
        self.small = self.small and shapes[0][:1] == (samples,) and inner_size(shapes[0]) == 1
        if self.of_labels:
            self.width = 1 if self.small else 2
        pairs = [self.fit(label, output) for label, output in matched]
        self._pairs = [pair for pair in pairs if pair is not None]
        return bool(pairs) and len(self._pairs) == len(pairs)

    def statistics(self, F: Any, labels: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Reduce one device's batch.

        Parameters
        ----------
        F : module
            ``mx.nd`` or ``mx.sym``.
        labels, outputs : sequence of NDArray or Symbol
            What the metric's ``update`` would be given, of the shapes that were bound.

        Returns
        -------
        list of NDArray or Symbol, float64, or float32 if `small`
            Vectors that make `width` statistics one behind the other, or the two rows if `small`.
            Additive over devices, and over batches unless `per_batch`. No gradient flows through them.
        """
        matched = self.match(labels, outputs) or []
        found = [pair(F, *slots) for pair, slots in zip(self._pairs, matched)]
        return found[0] if len(found) == 1 else [F.add_n(*pieces) for pieces in zip(*found)]

    def fold(self, F: Any, statistics: Any) -> Any:
        """Turn one whole batch's statistics into what adds up over batches; unless `per_batch`, the same."""
        return statistics

    def load(self, totals: np.ndarray) -> None:
        """Write an epoch's totals into `metric`, in place of whatever it held.

        Parameters
        ----------
        totals : numpy.ndarray, shape (width,), float64
            The sum of all statistics.
        """
        self._set(float(totals[0]), int(round(totals[1])))

    def _set(self, value: float, count: int) -> None:
        """Set the sum and the count, which mxnet's metrics keep twice: locally and globally."""
        self.metric.sum_metric = self.metric.global_sum_metric = value
        self.metric.num_inst = self.metric.global_num_inst = count


def doubles(F: Any, *sums: Any) -> list[Any]:
    """Return sums as float64."""
    return [F.cast(value, "float64") for value in sums]


def total(F: Any, values: Any) -> Any:
    """Sum all of `values`, of shape (N, ...): each sample in float32, the samples in float64.

    float32 holds the sum of one sample well, and is fast; it stops growing at 2**24, which an epoch passes.
    """
    return F.sum(F.cast(F.sum(values, axis=0, exclude=True), "float64"))


def inner_size(shape: Shape) -> int:
    """Count the elements of one sample."""
    return int(np.prod(shape[1:]))
