"""Losses of scope "batch" as part of a graph, for an engine that has one device."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping, Sequence

from ...spec.names import OUTPUTS, Ref
from ...spec.terms import Term
from ..metrics.catalogue import class_name
from .batch_losses import split_parts
from .loss_calls import call_loss, named_parts
from .multi_box import NAME, multi_box_loss
from .traceable import is_traceable

GRAPHS: dict[str, Callable[..., Any]] = {NAME: multi_box_loss}
"""By the full name of a loss, a function of the loss, F and its arguments; subclasses are not covered."""


class BatchLossGraph:
    """The terms of scope "batch" of one step graph; each loss gets lists with the array of one device.

    For each loss, it computes ``part.<loss>``, as for other losses; ``sums.<loss>``, the sum of each part in
    float64, of shape (parts,); and ``objective.<loss>``. `dtype` is that of the objective.
    """

    def __init__(self, terms: Sequence[Term], dtype: str) -> None:
        self.terms, self._dtype = list(terms), dtype

    @property
    def outputs(self) -> set[str]:
        """The outputs that the losses read."""
        return {ref.name for term in self.terms for ref in term.refs if ref.space == OUTPUTS}

    @property
    def slots(self) -> set[str]:
        """The slots that the losses read."""
        return {ref.name for term in self.terms for ref in term.refs if ref.space != OUTPUTS}

    def __call__(self, F: Any, arrays: Mapping[Ref, Any], weights: Any) -> dict[str, Any]:
        """Compute everything from symbols; `weights`, of shape (terms,), are None when evaluating."""
        computed = {}
        for i, term in enumerate(self.terms):
            listed = {ref: [arrays[ref]] for ref in term.args}
            parts = split_parts(term, call_loss(term, listed, _graph_of(term.spec.fn, F)))
            for name, part in named_parts(term, [each[0] for each in parts]).items():
                computed[f"part.{name}"] = part
            sums = [F.add_n(*[F.sum(value) for value in part]) for part in parts]
            in_double = [F.cast(total, "float64") for total in sums]
            computed[f"sums.{term.key}"] = F.BlockGrad(F.concat(*in_double, dim=0))
            if weights is not None:
                weight = F.slice_axis(weights, axis=0, begin=i, end=i + 1)
                total = F.cast(sums[term.minimized], self._dtype)
                computed[f"objective.{term.key}"] = F.broadcast_mul(total, weight)
        return computed


def is_graph(loss: Any) -> bool:
    """Whether a loss of scope "batch" may become part of a graph."""
    return is_traceable(loss) or class_name(loss) in GRAPHS


def _graph_of(loss: Any, F: Any) -> Callable[..., Any] | None:
    function = GRAPHS.get(class_name(loss))
    return None if function is None else partial(function, loss, F)
