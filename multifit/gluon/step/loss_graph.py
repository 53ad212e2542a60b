"""Computes what follows the net on one device: losses, the objective, and the statistics of figures.

The same functions run on NDArrays and, traced once, on symbols.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from ...balance.tasks import Means
from ...engines.forms import ResultForms
from ...spec.terms import MetricTerm, Ref, Term, named_parts
from ...utils.protocols import Array, Shape, Tensor
from ..compat import mx
from ..metrics.base import DeviceMetric, program_of
from ..metrics.labels import LabelRule, count_wrong, rows_first
from ..user_code import user_code
from .cached_graph import Backward
from .loss_calls import as_variable, call_loss

MAX_FLOAT = 3e38
SUM, BY_TERM, APART = "sum", "by term", "apart"  # forms of the objective


@dataclass(frozen=True)
class LossSeparation:
    """How losses are kept apart in the objective, and which figures that adds; by default, they are summed.

    `objective_form` is as for :class:`LossGraph`, and `means` are the further figures. `tasks` is the number
    of each loss's task: the graph of net and losses is then cut where the tasks branch. If it `repeats`, the
    backward pass through the shared body runs once for each task. `updated` returns the names of the
    parameters that trainers update; only these count as shared. `bound` returns, by loss, the names of the
    parameters that the loss trains; a loss that it does not name trains all.

    `balances` says whether a method of balancing weighs the losses.
    """

    objective_form: str = SUM
    means: tuple[Means, ...] = ()
    tasks: Mapping[str, int] | None = None
    repeats: bool = False
    updated: Callable[[], Collection[str]] = frozenset
    bound: Callable[[], Mapping[str, frozenset[str]]] | None = None
    balances: bool = False

    @property
    def needs_graph(self) -> bool:
        """Whether net and losses must be one graph, even for the first batch."""
        return self.tasks is not None or self.bound is not None


TOGETHER = LossSeparation()


@dataclass
class LossOutputs:
    """What net, losses and metrics computed for one device's samples.

    ``outputs`` are the net's. ``parts`` are what the losses returned, element by element, by figure;
    ``<loss>`` is the part that is minimised. ``objectives`` are the objectives by the losses that each
    contains: arrays of shape (1,), or with an element for each loss, whose sum is the sum of the weighted
    minimised parts; none when evaluating. ``statistics``, float64 of shape (width,), are the sums of every
    part, the counts of wrong labels, and each metric's statistics. ``backward`` runs the backward pass of all
    objectives; None if autograd has recorded them.
    """

    outputs: dict[str, Array] = field(default_factory=dict)
    parts: dict[str, Array] = field(default_factory=dict)
    objectives: dict[tuple[str, ...], Array] = field(default_factory=dict)
    statistics: Array | None = None
    backward: Backward | None = None


class Example(NamedTuple):
    """The batch that is computed, or for which a graph is traced.

    These are its number of samples on the device, their axis, and the shapes of its arrays by symbol; None if
    it is computed.
    """

    samples: int
    axis: int
    shapes: Mapping[str, Shape] | None = None

    def shapes_of(self, symbols: Sequence[Any]) -> list[Shape]:
        """Return the shapes of arrays or symbols; 0 for an unknown length, () for all unknown."""
        if self.shapes is None or not symbols:
            return [array.shape for array in symbols]
        graph = mx.sym.Group(list(symbols))
        inputs = set(graph.list_inputs())
        shapes = {name: shape for name, shape in self.shapes.items() if name in inputs}
        inferred: list[Shape] = graph.infer_shape_partial(**shapes)[1]
        return inferred


class LossGraph:
    """Some of a spec's terms and metrics, computed together.

    Each term adds one sum per part to the statistics, each metric its `width` statistics. `forms` check, on
    arrays, that losses return the same form as in the first batch. `fused` are faster functions for the
    losses of some terms. `dtype` is that of the objective, `weights` and `size`. The losses named in
    `own_gradients` ignore the gradient that they receive, and with it their weights and normalizers: the
    gradients that they return are scaled instead. `by_value` says of the losses whose labels may be missing
    whether they leave out single values. Values that break one of the `rules` are counted. `objective_form`
    is SUM, BY_TERM (with an element for each term), or APART (in a traced graph an array for each term, so
    that the graph can be cut).

    `layout` names the parts of the statistics and their widths, `slices` says where the losses are, and
    `width` is the length of the statistics.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        metrics: Sequence[tuple[MetricTerm, DeviceMetric]],
        forms: ResultForms | None = None,
        fused: Mapping[str, Callable[..., Any]] | None = None,
        dtype: str = "float32",
        own_gradients: Collection[str] = (),
        by_value: Mapping[str, bool] | None = None,
        rules: Sequence[LabelRule] = (),
        objective_form: str = SUM,
    ) -> None:
        self.terms, self.metrics = list(terms), list(metrics)
        self.keys = tuple([term.key for term in terms])
        self._forms, self._fused = forms or ResultForms(mx.nd.NDArray), fused or {}
        self._dtype, self._own_gradients, self._by_value = dtype, own_gradients, by_value or {}
        self.rules, self._objective_form = rows_first(rules), objective_form
        self.layout = tuple(
            [(term.where, len(term.parts)) for term in terms]
            + [(rule.key, 1) for rule in self.rules]
            + [(metric.where, device.width) for metric, device in metrics]
        )
        self.width, ends = sum(width for _, width in self.layout), accumulate(len(t.parts) for t in terms)
        self.slices = {t.where: slice(end - len(t.parts), end) for t, end in zip(terms, ends)}

    @property
    def refs(self) -> set[Ref]:
        """All outputs and slots that are read."""
        taken: list[Any] = [*self.terms, *(metric for metric, _ in self.metrics), *self.rules]
        return {ref for each in taken for ref in each.refs}

    @property
    def program(self) -> Hashable:
        """What the graph depends on, besides the slots that a batch has; needs a first batch."""
        return (
            tuple((metric.where, device.program) for metric, device in self.metrics),
            tuple((key, program_of(function)) for key, function in self._fused.items()),
            tuple(rule.program for rule in self.rules),
        )

    def __call__(
        self,
        F: Any,
        arrays: Mapping[Ref, Any],
        weights: Any,
        size: Any,
        example: Example,
    ) -> LossOutputs:
        """Compute everything for the outputs and slots of one device, with ``mx.nd`` or ``mx.sym`` as `F`.

        `weights`, of shape (number of terms,), are each term's weight over its normalizer; None when
        evaluating. `size` is the device's number of samples, with which a scalar loss is multiplied.
        `example` is the batch.
        """
        outputs, values = LossOutputs(), []
        for i, term in enumerate(self.terms):
            arguments = arrays
            if weights is not None and term.key in self._own_gradients:
                scale = F.slice_axis(weights, axis=0, begin=i, end=i + 1)
                scaled = {ref: _scale_gradient(F, arrays[ref], scale) for ref in term.outputs}
                arguments = {**arrays, **scaled}
            function, by_value = self._fused.get(term.key), self._by_value.get(term.key, False)
            values.append(call_loss(term, arguments, function, by_value))
            if F is mx.nd:
                self._forms.check_loss(term, values[-1], example.samples, example.axis)
            outputs.parts.update(named_parts(term, values[-1]))
        if self._objective_form == APART and F is not mx.nd:
            sums = self._sum_apart(F, values, weights, size, example, outputs)
        else:
            losses, sums = self._sum_losses(F, values, size, example)
            if weights is not None and self.terms:
                weighted = losses * (as_variable(weights) if F is mx.nd else weights)
                is_vector = len(self.terms) == 1 or self._objective_form == BY_TERM
                outputs.objectives[self.keys] = weighted if is_vector else F.sum(weighted)
        with mx.autograd.pause(train_mode=mx.autograd.is_training()):
            outputs.statistics = self._statistics(F, sums, arrays, outputs.parts)
        return outputs

    def _statistics(
        self, F: Any, sums: list[Any], arrays: Mapping[Ref, Any], parts: Mapping[str, Any]
    ) -> Any:
        counts = count_wrong(F, self.rules, arrays)
        counts += [each for pair in self.metrics for each in self._measure(F, *pair, arrays, parts)]
        pieces = [[*sums, *counts]] if self._dtype == "float32" else [sums, counts]  # of one dtype each
        vectors = [F.cast(_concat(F, each), "float64") for each in pieces if each]
        return F.BlockGrad(_concat(F, vectors)) if vectors else None

    def _measure(
        self,
        F: Any,
        metric: MetricTerm,
        device: DeviceMetric,
        arrays: Mapping[Ref, Any],
        parts: Mapping[str, Any],
    ) -> list[Any]:
        labels, masks = ([arrays[ref] for ref in refs] for refs in (metric.labels, metric.present))
        outputs = [arrays[ref] for ref in metric.outputs] + [parts[name] for name in metric.losses]
        if self._dtype != "float32":  # which device metrics compute with
            outputs = [F.cast(output, "float32") for output in outputs]
        with user_code(lambda: metric.where):
            return device.statistics(F, labels, outputs, *masks)

    def _sum_losses(
        self, F: Any, values: Sequence[Sequence[Any]], size: Any, example: Example
    ) -> tuple[Any, list[Any]]:
        """Return the sums of the minimised parts as one vector, and the sums of all parts in pieces."""
        shapes = self._shapes(values, example)
        stock = [type(term.spec.fn).__module__ == mx.gluon.loss.__name__ for term in self.terms]
        if values and all(stock) and all(each == [(example.samples,)] for each in shapes):
            losses = self._cast(F, _sum_rows(F, [parts[0] for parts in values]))
            return losses, [losses]
        sums = self._sums(F, values, size, example)
        losses = _concat(F, [parts[term.minimized] for term, parts in zip(self.terms, sums)])
        if all(len(parts) == 1 for parts in sums):  # `losses` has them all already
            return losses, [losses] * bool(sums)
        return losses, [part for parts in sums for part in parts]

    def _sum_apart(
        self,
        F: Any,
        values: Sequence[Sequence[Any]],
        weights: Any,
        size: Any,
        example: Example,
        outputs: LossOutputs,
    ) -> list[Any]:
        """Set the objective of each term, and return the sums of all parts in pieces."""
        sums = self._sums(F, values, size, example)
        for i, (term, parts) in enumerate(zip(self.terms, sums)):
            weight = F.slice_axis(weights, axis=0, begin=i, end=i + 1)
            outputs.objectives[term.key,] = parts[term.minimized] * weight
        return [part for parts in sums for part in parts]

    def _sums(self, F: Any, values: Sequence[Sequence[Any]], size: Any, example: Example) -> list[list[Any]]:
        """Return the sums of all parts; a number for all samples counts for each of them."""
        sums = []
        for term, parts, shapes in zip(self.terms, values, self._shapes(values, example)):
            totals = [self._cast(F, F.sum(part)) for part in parts]
            for i, shape in enumerate(shapes):
                is_number = self._forms.is_number(term, i)
                if example.shapes is not None and shape and min(shape) > 0:
                    is_number = prod(shape) == 1 < example.samples
                totals[i] = totals[i] * size if is_number else totals[i]
            sums.append(totals)
        return sums

    def _shapes(self, values: Sequence[Sequence[Any]], example: Example) -> list[list[Shape]]:
        """Return the shapes of all parts."""
        flat = [part for parts in values for part in parts]
        shapes = iter(example.shapes_of(flat))
        return [[next(shapes) for _ in parts] for parts in values]

    def _cast(self, F: Any, total: Any) -> Any:
        # losses of a net of float64 may still be float32
        return total if self._dtype == "float32" else F.cast(total, self._dtype)


def _scale_gradient(F: Any, array: Any, scale: Any) -> Any:
    """Return an array as it is, but multiply its gradient by `scale`, of shape (1,)."""
    finite = F.clip(array, -MAX_FLOAT, MAX_FLOAT)  # the difference of two infinities would be NaN
    return F.BlockGrad(array) + F.broadcast_mul(finite - F.BlockGrad(finite), scale)


def _sum_rows(F: Any, rows: Sequence[Tensor]) -> Tensor:
    """Return the sum of each row as one vector; this is cheaper than one sum after the other."""
    return F.sum(F.stack(*rows, axis=0), axis=1) if len(rows) > 1 else F.sum(rows[0])


def _concat(F: Any, pieces: Sequence[Any]) -> Any:
    """Return the vectors concatenated; None if there are none."""
    return F.concat(*pieces, dim=0) if len(pieces) > 1 else next(iter(pieces), None)
