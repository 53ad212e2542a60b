"""Check that each sample weight multiplies the losses of its own sample."""

from __future__ import annotations

from typing import Any, Mapping

from ...checks import sample_weight_problem
from ...errors import Problem
from ...protocols import Shape
from ...signatures import signature_of
from ...spec.names import LABELS, Ref
from ...spec.terms import Term
from ..compat import mx
from ..loss_kinds import ELEMENTWISE
from ..losses import SegmentationCELoss, SequenceCELoss

PARAMETER = "sample_weight"  # its name in all losses


def inspect_sample_weights(term: Term, arrays: Mapping[Ref, Any]) -> list[Problem]:
    """Check the shape of a stock loss's sample weights, if these are a slot, on one device's arrays."""
    losses = _shape_of_losses(term.spec.fn, arrays[term.args[0]].shape)
    if losses is None:
        return []
    fn: Any = term.spec.fn
    signature = signature_of(fn.hybrid_forward, skip=["F"])
    taken = None if signature is None else dict(zip(signature.parameters, term.args)).get(PARAMETER)
    if taken is None or taken.space != LABELS or arrays[taken] is None:
        return []
    message = sample_weight_problem(term.where, (taken.name, arrays[taken]), losses)
    return [Problem("spec", message)] if message else []


def _shape_of_losses(fn: Any, prediction: Shape) -> Shape | None:
    """Return the shape of the losses that are multiplied by sample weights; None if it is not known."""
    if type(fn) in ELEMENTWISE:
        return prediction
    if type(fn) is mx.gluon.loss.SoftmaxCrossEntropyLoss:
        axis = fn._axis % len(prediction)
        return (*prediction[:axis], 1, *prediction[axis + 1 :])
    return prediction[:1] if type(fn) in (SegmentationCELoss, SequenceCELoss) else None
