"""Losses that get all devices' arrays at once (``scope="batch"``), such as gluoncv's SSD loss."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...protocols import Array
from ...spec.names import Ref
from ...spec.terms import Term
from ..compat import mx
from ..metrics.metric_sums import MetricSums
from .forms import ResultForms
from .loss_calls import as_variable, call_loss, named_parts
from .loss_weights import BatchLossScale, without_empty
from .result import StepResult


class BatchLosses:
    """The terms of scope "batch": each loss is called once per batch, with a list over devices per argument.

    What a loss returns (for each part a list over devices, or one array) is already normalised: its sum is
    the term. With several processes, each process's sum is weighted by its part of the normalizer. `forms`
    check that a loss returns the same form as in the first batch.
    """

    def __init__(self, terms: Sequence[Term], training: bool, forms: ResultForms) -> None:
        self.terms, self._training, self._forms = list(terms), training, forms

    def __call__(self, result: StepResult, scale: BatchLossScale) -> dict[str, list[Array]]:
        """Compute all terms from the result's outputs; add their objectives and parts to the result.

        Returns, for each term, the sum of each part over all devices: float64, on the first device.
        """
        sums: dict[str, list[Array]] = {}
        if not self.terms or not result.outputs:
            return sums
        arrays: Sequence[Mapping[Ref, Any]] = result.arrays()
        for term in self.terms:
            if not term.optional.isdisjoint(result.batch.absent):
                continue
            arguments = {ref: [device[ref] for device in arrays] for ref in term.args}
            values = split_parts(term, call_loss(term, arguments))
            for device, parts in enumerate(result.parts):
                of_device = [value[min(device, len(value) - 1)] for value in values]
                self._forms.check_loss(term, of_device, samples=0)  # it is a sum, of any shape
                parts.update(named_parts(term, of_device))
            if self._training:
                for value in values[term.minimized]:
                    result.add({(term.key,): _weighted(value, term, scale)})
            with mx.autograd.pause():
                sums[term.where] = [_total(value) for value in values]
        return sums

    def add(self, sums: Mapping[str, list[Array]], scale: BatchLossScale, totals: MetricSums) -> None:
        """Add the sums to a stage's totals; a figure is the mean over batches, weighted by normalizer."""
        for term in self.terms:
            if term.where not in sums:
                continue
            norm = scale.own[term.key]
            total = mx.nd.concat(*sums[term.where], dim=0)
            factor = norm.as_in_context(total.context) if isinstance(norm, mx.nd.NDArray) else norm
            total = without_empty(total * factor, norm)
            totals.add(((term.where, len(term.parts)),), total)
            if term.key in totals.weighted:
                minimized = total[term.minimized : term.minimized + 1]
                totals.weighted[term.key].add(minimized * scale.weights[term.key])


def split_parts(term: Term, values: list[Any]) -> list[list[Any]]:
    """Return the values of a loss as a list for each part, with an array for each device or a single one."""
    if not term.spec.returns:
        values = [values]  # one part, a list per device
    return [list(value) or [None] if isinstance(value, (list, tuple)) else [value] for value in values]


def _weighted(value: Array, term: Term, scale: BatchLossScale) -> Array:
    weight = scale.part(term, value.context) * scale.weights[term.key]
    return mx.nd.sum(value) * as_variable(weight.astype(value.dtype))


def _total(values: Sequence[Array]) -> Array:
    context = values[0].context
    sums = [mx.nd.sum(value).astype("float64").as_in_context(context) for value in values]
    return mx.nd.add_n(*sums) if len(sums) > 1 else sums[0]
