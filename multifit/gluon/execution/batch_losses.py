"""Losses that see all devices at once (``scope="batch"``), such as gluoncv's SSD loss."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...spec.names import Ref
from ...spec.terms import Term
from ..compat import mx
from .loss_graph import anchored, call_term, named_parts

__all__ = ["BatchLosses"]


class BatchLosses:
    """The terms of scope "batch": each is called once per batch with a list per device of every argument.

    What a loss returns (per part a list per device, or one array) is taken as normalised already: its sum is
    the term.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = list(terms)

    def __call__(
        self, arrays: Sequence[Mapping[Ref, Any]], weights: Mapping[str, float] | None
    ) -> tuple[list[Any], list[dict[str, Any]], dict[str, list[Any]]]:
        """Compute all terms.

        Returns
        -------
        objectives : list of arrays of shape (1,)
            Weighted sums of the minimised parts, one per device.
        parts : list of dict
            Per device, what the losses returned, by figure.
        sums : dict of str to list of array
            Per term, the sum of each part over all devices, float64, on the first device.
        """
        objectives: list[Any] = []
        parts: list[dict[str, Any]] = [{} for _ in arrays]
        sums: dict[str, list[Any]] = {}
        for term in self.terms:
            refs = term.args
            values = self._split(
                term, call_term(term, {ref: [device[ref] for device in arrays] for ref in refs})
            )
            if weights is not None:
                objectives += [_weighted(value, weights[term.key]) for value in values[term.minimized]]
            for device, own in enumerate(parts):
                own.update(named_parts(term, [value[min(device, len(value) - 1)] for value in values]))
            with mx.autograd.pause():
                sums[term.where] = [_total(value) for value in values]
        return objectives, parts, sums

    @staticmethod
    def _split(term: Term, values: list[Any]) -> list[list[Any]]:
        if not term.spec.returns:
            values = [values]  # one part, a list per device
        return [list(value) if isinstance(value, (list, tuple)) else [value] for value in values]


def _weighted(value: Any, weight: float) -> Any:
    return mx.nd.sum(value) * anchored(mx.nd.full((1,), weight, ctx=value.context))


def _total(values: Sequence[Any]) -> Any:
    context = values[0].context
    sums = [mx.nd.sum(value).astype("float64").as_in_context(context) for value in values]
    return mx.nd.add_n(*sums) if len(sums) > 1 else sums[0]
