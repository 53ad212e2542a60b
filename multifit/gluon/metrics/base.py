"""The base of device metrics: graphs that reduce a batch to statistics, which add up."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable

import numpy as np

from ...protocols import Shape, Tensor
from ..compat import mx

__all__ = ["DeviceMetric", "PairGraph", "as_float64", "float64_sum", "sample_size"]

PairGraph = Callable[[ModuleType, Any, Any], "list[Tensor]"]
"""``graph(F, label, output)``: the statistics of one label and its output, in vectors."""


class DeviceMetric:
    """The statistics from which one metric is computed, as a graph of mxnet's operators.

    It is used in this order: :meth:`bind` once with real shapes; :meth:`statistics` for each device's batch
    (eagerly with ``mx.nd`` or in a graph with ``mx.sym``), whose results are added up; :meth:`load` at the
    end.

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
        Whether :meth:`statistics` returns two rows of float32 with an element per sample, the prediction and
        the label, instead of sums. The caller counts where they agree (labels are truncated), for all such
        metrics together, and counts the samples. Known after :meth:`bind`.
    per_batch : bool
        Whether the metric is a mean over updates of a value that is not a sum. If so, the statistics of one
        batch are added over its devices and go through :meth:`fold`, whose results add up over batches.
    """

    width: int = 2
    of_labels: bool = False
    small: bool = False
    per_batch: bool = False

    def __init__(self, metric: mx.metric.EvalMetric) -> None:
        self.metric = metric
        self._graphs: list[PairGraph] = []

    @classmethod
    def covers(cls, metric: mx.metric.EvalMetric) -> bool:
        """Whether the options of `metric`, which is of the right type, are supported."""
        return True

    def match(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]] | None:
        """Pair labels with outputs as the metric's own ``update`` does; None if it would raise."""
        return list(zip(labels, outputs)) if len(labels) == len(outputs) else None

    def graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        """Return the graph for a pair of these shapes; None if they are not supported."""
        raise NotImplementedError

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], samples: int | None = None) -> bool:
        """Choose the graphs for batches of these shapes.

        Later batches may have another number of samples, but not another number of axes or other sizes of
        the axes behind the first.

        Parameters
        ----------
        labels, outputs : sequence of tuple of int
            Shapes of one device's batch.
        samples : int, optional
            The number of samples, if it is the size of the labels' first axis in every batch.

        Returns
        -------
        bool
            False if these shapes are not supported, and the metric itself must be updated.
        """
        pairs = self.match(labels, outputs) or []
        shapes = [label for label, _ in pairs]
        self.small = self.of_labels and len(shapes) == 1
        self.small = self.small and shapes[0][:1] == (samples,) and sample_size(shapes[0]) == 1
        if self.of_labels:
            self.width = 1 if self.small else 2
        graphs = [self.graph_for(label, output) for label, output in pairs]
        self._graphs = [graph for graph in graphs if graph is not None]
        return bool(graphs) and len(self._graphs) == len(graphs)

    def statistics(self, F: ModuleType, labels: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
        """Reduce one device's batch.

        Parameters
        ----------
        F : module
            ``mx.nd`` or ``mx.sym``.
        labels, outputs : sequence of NDArray or Symbol
            The arguments of the metric's ``update``, of the shapes that were bound.

        Returns
        -------
        list of NDArray or Symbol, float64, or float32 if `small`
            Vectors that together have `width` elements, or the two rows if `small`. They add up over devices,
            and over batches unless `per_batch`. No gradient flows through them.
        """
        pairs = self.match(labels, outputs) or []
        vectors = [graph(F, *pair) for graph, pair in zip(self._graphs, pairs)]
        return vectors[0] if len(vectors) == 1 else [F.add_n(*column) for column in zip(*vectors)]

    def fold(self, F: ModuleType, statistics: Tensor) -> Tensor:
        """Turn one batch's statistics into a vector that adds up over batches, if `per_batch`."""
        return statistics

    def load(self, totals: np.ndarray) -> None:
        """Replace the state of `metric` by an epoch's totals.

        Parameters
        ----------
        totals : numpy.ndarray, shape (width,), float64
            The sum of all statistics.
        """
        self._set(float(totals[0]), int(round(totals[1])))

    def _set(self, value: float, count: int) -> None:
        """Set the sum and the count, of which mxnet's metrics have a local and a global one."""
        self.metric.sum_metric = self.metric.global_sum_metric = value
        self.metric.num_inst = self.metric.global_num_inst = count


def as_float64(F: ModuleType, *sums: Tensor) -> list[Tensor]:
    """Cast sums to float64."""
    return [F.cast(value, "float64") for value in sums]


def float64_sum(F: ModuleType, values: Tensor) -> Tensor:
    """Sum values of shape (N, ...): each sample in float32, the samples in float64.

    float32 is fast and exact enough for one sample, but it cannot count beyond 2**24, which an epoch exceeds.
    """
    return F.sum(F.cast(F.sum(values, axis=0, exclude=True), "float64"))


def sample_size(shape: Shape) -> int:
    """Return the number of elements of one sample."""
    return int(np.prod(shape[1:]))
