"""A metric as a graph: sums over samples, from which its figures are computed."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from ...utils.protocols import Shape, Tensor
from ..compat import mx

PairGraph = Callable[..., "list[Tensor]"]
"""``graph(F, label, output)`` or, with a mask, ``graph(F, label, output, mask)``: statistics, in vectors."""


class DeviceMetric:
    """The statistics from which one metric is computed, as a graph of MXNet's operators.

    Call :meth:`bind` once with real shapes; :meth:`statistics` for each device's batch, eagerly with
    ``mx.nd`` or in a graph with ``mx.sym``, and add up the results in float64; :meth:`load` at the end.

    The statistics are `width` numbers: a sum and a count, unless a subclass says otherwise; its number may
    depend on the shapes. If it `takes_mask`, they can leave out single values of a label that are missing.
    """

    width: int = 2
    takes_mask: bool = False

    def __init__(self, metric: mx.metric.EvalMetric) -> None:
        self.metric = metric
        self._graphs: list[PairGraph] = []

    def _match(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]] | None:
        """Pair labels with outputs as the metric's own ``update`` does; None if it would raise."""
        return list(zip(labels, outputs)) if len(labels) == len(outputs) else None

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        """Return the graph for a pair of these shapes, a method or a partial; None if not supported."""
        raise NotImplementedError

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], mask: Shape | None = None) -> bool:
        """Choose the graphs for batches of these shapes; return False if they are not supported.

        Later batches may have a different number of samples, but must have the same axes, and the same sizes
        of all axes but the first. `mask` is the shape of what says where the one label is present.
        """
        if mask is not None and not (self.takes_mask and [prod(mask)] == [prod(label) for label in labels]):
            return False
        graphs = [self._graph_for(*pair) for pair in self._match(labels, outputs) or []]
        self._graphs = [graph for graph in graphs if graph is not None]
        return bool(graphs) and len(self._graphs) == len(graphs)

    def statistics(
        self, F: ModuleType, labels: Sequence[Tensor], outputs: Sequence[Tensor], mask: Tensor | None = None
    ) -> list[Tensor]:
        """Reduce one device's batch, eagerly with ``mx.nd`` or in a graph with ``mx.sym``.

        `labels` and `outputs` are the arguments of the metric's ``update``, of the shapes that were bound;
        `mask` is 1 where the label is present, else 0. Returns vectors of float32 that together have `width`
        elements and add up over devices and batches. No gradient flows through them.
        """
        pairs, masks = self._match(labels, outputs) or [], [] if mask is None else [mask]
        vectors = [graph(F, *pair, *masks) for graph, pair in zip(self._graphs, pairs)]
        return vectors[0] if len(vectors) == 1 else [F.add_n(*column) for column in zip(*vectors)]

    @property
    def program(self) -> Hashable:
        """What the statistics depend on besides the metric; it is equal for all shapes that share a graph."""
        return tuple(map(program_of, self._graphs))

    def load(self, totals: np.ndarray) -> None:
        """Set the state of `metric` to a pass's totals, the sums of all statistics, of shape (width,).

        Its ``get()`` then returns what it would return after a single update with all samples of the pass.
        """
        self._set(float(totals[0]), int(round(totals[1])))

    def _set(self, value: float, count: int) -> None:
        """Set the sum and the count, both the local and the global ones of MXNet's metrics."""
        self.metric.sum_metric = self.metric.global_sum_metric = value
        self.metric.num_inst = self.metric.global_num_inst = count


def program_of(function: Callable[..., Any]) -> Hashable:
    """Return what functions of one object have in common if they compute the same."""
    if isinstance(function, partial):
        return program_of(function.func), function.args, frozenset(function.keywords.items())
    return getattr(function, "__func__", function)


def size_of(F: ModuleType, values: Tensor) -> Tensor:
    """Return the number of elements."""
    return F.cast(F.size_array(values), "float32")


def sample_size(shape: Shape) -> int:
    """Return the number of elements of one sample."""
    return prod(shape[1:])


class Coverage(mx.metric.EvalMetric):
    """The share of a label's values that are present; it is updated with 1 where they are, else 0."""

    def __init__(self, name: str = "coverage") -> None:
        super().__init__(name)

    def update(self, labels: Sequence[Any], preds: Sequence[Any]) -> None:
        """Add one batch."""
        for label in labels:
            self.sum_metric += float(label.sum().asscalar())
            self.num_inst += label.size


class DeviceCoverage(DeviceMetric):
    """:class:`Coverage` on the device."""

    def _match(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]] | None:
        """Pair each label with nothing."""
        return [(label, ()) for label in labels]

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        return self._statistics

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        return [F.sum(label), size_of(F, label)]
