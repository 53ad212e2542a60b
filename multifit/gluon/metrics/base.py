"""The base of device metrics: graphs that reduce a batch to statistics, which add up."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Callable

import numpy as np

from ...protocols import Shape, Tensor
from ..compat import mx

PairGraph = Callable[[ModuleType, Any, Any], "list[Tensor]"]
"""``graph(F, label, output)``: the statistics of one label and its output, in vectors."""


class DeviceMetric:
    """The statistics from which one metric is computed, as a graph of mxnet's operators.

    It is used in this order: call :meth:`bind` once with real shapes; :meth:`statistics` for each device's
    batch (eagerly with ``mx.nd`` or in a graph with ``mx.sym``), and add up the results; :meth:`load` at the
    end. The statistics are `width` numbers.

    `counts_labels` metrics count the labels that are predicted correctly. After :meth:`bind`, `returns_rows`
    says whether :meth:`statistics` returns, instead of sums, two float32 rows with an element per sample: the
    predictions and the labels. The caller then counts where they agree (labels are truncated), for all such
    metrics together, and counts the samples.
    """

    width: int = 2
    counts_labels: bool = False
    returns_rows: bool = False

    def __init__(self, metric: mx.metric.EvalMetric) -> None:
        self.metric = metric
        self._graphs: list[PairGraph] = []

    def _match(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]] | None:
        """Pair labels with outputs as the metric's own ``update`` does; None if it would raise."""
        return list(zip(labels, outputs)) if len(labels) == len(outputs) else None

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        """Return the graph for a pair of these shapes, a method or a partial; None if not supported."""
        raise NotImplementedError

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], samples: int | None = None) -> bool:
        """Choose the graphs for batches of these shapes; return False if they are not supported.

        Later batches may have a different number of samples, but must have the same axes, and the same sizes
        of all axes but the first. `samples` is the number of samples, if the labels' first axis has that size
        in every batch.
        """
        pairs = self._match(labels, outputs) or []
        shapes = [label for label, _ in pairs]
        self.returns_rows = self.counts_labels and len(shapes) == 1
        self.returns_rows = self.returns_rows and shapes[0][:1] == (samples,) and sample_size(shapes[0]) == 1
        if self.counts_labels:
            self.width = 1 if self.returns_rows else 2
        graphs = [self._graph_for(label, output) for label, output in pairs]
        self._graphs = [graph for graph in graphs if graph is not None]
        return bool(graphs) and len(self._graphs) == len(graphs)

    def statistics(self, F: ModuleType, labels: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
        """Reduce one device's batch, eagerly with ``mx.nd`` or in a graph with ``mx.sym``.

        `labels` and `outputs` are the arguments of the metric's ``update``, of the shapes that were bound.
        Returns vectors of float64 that together have `width` elements and add up over devices and batches; or
        the two rows if `returns_rows`. No gradient flows through them.
        """
        pairs = self._match(labels, outputs) or []
        vectors = [graph(F, *pair) for graph, pair in zip(self._graphs, pairs)]
        return vectors[0] if len(vectors) == 1 else [F.add_n(*column) for column in zip(*vectors)]

    @property
    def form(self) -> Hashable:
        """What the statistics depend on besides the metric; it is equal for all shapes that share a graph."""
        return self.returns_rows, *map(form_of, self._graphs)

    def load(self, totals: np.ndarray) -> None:
        """Set the state of `metric` to a pass's totals, the sums of all statistics, of shape (width,).

        Its ``get()`` then returns what it would return after a single update with all samples of the pass.
        """
        self._set(float(totals[0]), int(round(totals[1])))

    def _set(self, value: float, count: int) -> None:
        """Set the sum and the count, both the local and the global ones of mxnet's metrics."""
        self.metric.sum_metric = self.metric.global_sum_metric = value
        self.metric.num_inst = self.metric.global_num_inst = count


def form_of(function: Callable[..., Any]) -> Hashable:
    """Return what functions of one object have in common if they compute the same."""
    if isinstance(function, partial):
        return form_of(function.func), function.args, frozenset(function.keywords.items())
    return getattr(function, "__func__", function)


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
