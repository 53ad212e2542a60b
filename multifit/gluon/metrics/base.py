"""A metric as a graph: sums over samples, from which its figures are computed."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from ...checks import partly_missing_problem
from ...errors import raise_problems
from ...protocols import Array, Shape, Tensor
from ...spec.names import LABELS, Ref
from ...spec.parsing import label_of, presence
from ...spec.terms import MetricTerm
from ..compat import mx
from ..data.arrays import new_array
from .labels import count_in_part

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
        return as_float64(F, float64_sum(F, label), F.size_array(label))


class PresentMatches(DeviceMetric):
    """Counts the samples whose prediction and label agree, among those whose label is present.

    Its last label is 1 where the label is present, else 0.
    """

    def __init__(self, matches: DeviceMetric) -> None:
        super().__init__(matches.metric)
        self._matches = matches

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], samples: int | None = None) -> bool:
        """See :meth:`DeviceMetric.bind`; returns False unless there is one label, with a value per sample."""
        return (
            len(labels) == 2
            and self._matches.bind(labels[:1], outputs, samples)
            and self._matches.returns_rows
        )

    @property
    def form(self) -> Hashable:
        """See :meth:`DeviceMetric.form`."""
        return self._matches.form

    def statistics(self, F: ModuleType, labels: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
        """See :meth:`DeviceMetric.statistics`."""
        prediction, label = self._matches.statistics(F, labels[:1], outputs)
        present = F.reshape(labels[1], (-1,))
        return as_float64(F, F.sum(F.broadcast_equal(prediction, F.trunc(label)) * present), F.sum(present))


def present_arrays(
    term: MetricTerm, axis: int | None, arrays: Mapping[Ref, Array], others: Mapping[str, Array]
) -> tuple[dict[Ref, Array], dict[str, Array]] | None:
    """Return one device's arrays with what is present for a metric; None if nothing is.

    `others` are what the losses returned, and `axis` is what :func:`value_axis` returns. If it is given, the
    metric gets, of each label and its output, the values that are present; both are left out if there are
    none. Otherwise it gets the samples that have all its labels; raises DataError if a sample has only a part
    of a label. This waits for the engine.
    """
    if axis is not None:
        values = dict(arrays)
        for output, label in zip(term.outputs, term.labels):
            mask = Ref(LABELS, presence(label.name))
            if mask in term.present:
                pair = _values(values.pop(output), values.pop(label), arrays[mask], axis)
                values.update(zip((output, label), pair))
        return (values, dict(others)) if any(ref in values for ref in term.labels) else None
    for ref in term.present:
        if count := count_in_part(arrays[ref]):
            raise_problems([partly_missing_problem(term.where, label_of(ref).name, "", count)])
    masks = [arrays[ref].asnumpy() for ref in term.present]
    rows = np.all([mask.reshape(len(mask), -1).all(axis=1) for mask in masks], axis=0)
    if not rows.any():
        return None
    index = new_array(np.flatnonzero(rows), arrays[term.present[0]].context, "int32")

    def chosen(array: Any) -> Any:
        is_per_sample = array is not None and array.shape[:1] == (len(rows),)
        return mx.nd.take(array, index, axis=0) if is_per_sample else array

    return {ref: chosen(a) for ref, a in arrays.items()}, {name: chosen(a) for name, a in others.items()}


def _values(output: Array, label: Array, present: Array, axis: int) -> list[Array]:
    """Return the values of an output and its label that are present, as samples; nothing if there are none.

    The classes stay along `axis`.
    """
    kept = np.flatnonzero(present.asnumpy())
    if not kept.size:
        return []
    index = new_array(kept, label.context, "int32")
    if label.size > len(label):
        if output.size == label.size:
            output = output.reshape((-1,))
        else:
            classes = output.shape[axis]
            output = mx.nd.moveaxis(output, axis, -1).reshape((-1, *(1,) * (axis - 1), classes))
        label = label.reshape((-1, *(1,) * (axis - 1)))
    return [mx.nd.take(array, index, axis=0) for array in (output, label)]
