"""Losses whose labels may be missing: missing values add nothing to the loss, and have no gradient.

The functions run on NDArrays and on symbols. Symbols have no shapes, so that a loss's class decides what it
can mask.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from ...errors import SpecError
from ...protocols import Tensor
from ...spec.missing import presence
from ...spec.names import OUTPUTS, Ref
from ...spec.terms import Term
from ..compat import mx
from ..loss_kinds import ELEMENTWISE, class_axis
from ..losses import SegmentationCELoss

_CE = mx.gluon.loss.SoftmaxCrossEntropyLoss


def present_loss(term: Term, arrays: Mapping[Ref, Any], call: Callable[..., Any]) -> Any:
    """Return a term's loss, in which missing labels do not count; `call` calls the loss.

    Stock losses that compare element by element, or that take class indices, leave out single values; so does
    SegmentationCELoss. For all other losses, a sample counts only if all its values are present.
    """
    fn: Any = term.spec.fn
    arguments = [arrays[ref] for ref in term.args]
    F = mx.nd if isinstance(arguments[0], mx.nd.NDArray) else mx.sym
    masks = [arrays[ref] for ref in term.present]
    if _weighs_values(term):
        weight = _as_weight(F, fn, arguments, masks[0])
        weight = F.broadcast_mul(arguments[2], weight) if len(arguments) > 2 else weight
        return call(*arguments[:2], weight)
    if _ignores_values(term):
        scores, label, *weights = arguments
        label = F.where(masks[0], label, F.ones_like(label) * fn._ignore_label)
        return call(scores, label, *weights)
    returned, rows = call(*arguments), _rows(F, masks)
    parts = returned if isinstance(returned, (list, tuple)) else [returned]
    return [_masked(F, term, part, rows) for part in parts]


def present_share(term: Term, slots: Mapping[str, Any]) -> Any:
    """Return the share of each sample in one device's batch that counts for a term, of shape (N,)."""
    masks = [slots[ref.name].reshape((0, -1)) for ref in term.present]
    if _weighs_values(term):
        return mx.nd.mean(masks[0], axis=1)
    if _ignores_values(term):
        return mx.nd.max(masks[0], axis=1)
    return _rows(mx.nd, masks)


def _weighs_values(term: Term) -> bool:
    """Whether the loss is a stock one that weighs each value of its one label."""
    is_sparse = type(term.spec.fn) is _CE and class_axis(term.spec.fn) is not None
    return _takes_pair(term) and (is_sparse or type(term.spec.fn) in ELEMENTWISE)


def _ignores_values(term: Term) -> bool:
    """Whether the loss ignores a value of its one label."""
    fn: Any = term.spec.fn
    return _takes_pair(term) and type(fn) is SegmentationCELoss and fn._ignore_label is not None


def _takes_pair(term: Term) -> bool:
    """Whether the loss takes an output, then the one label that may be missing."""
    first, second = term.args[0], term.args[1:2]
    names = [presence(ref.name) for ref in second]
    return first.space == OUTPUTS and names == [ref.name for ref in term.present]


def _as_weight(F: Any, fn: Any, arguments: Sequence[Any], mask: Tensor) -> Tensor:
    """Return a mask in the dtype of the values that the loss multiplies by it; masks are float32."""
    output, label = arguments[:2]
    axis = class_axis(fn)
    if axis is None:  # the loss compares element by element, so the label has the output's dtype
        return F.reshape_like(F.where(mask, F.ones_like(label), F.zeros_like(label)), output)
    scores = F.slice_axis(output, axis=axis, begin=0, end=1)
    return F.where(F.expand_dims(mask, axis=axis), F.ones_like(scores), F.zeros_like(scores))


def _rows(F: Any, masks: Sequence[Tensor]) -> Tensor:
    """Return 1 for the samples whose values are present in all masks, else 0; of shape (N,)."""
    rows = [F.min(F.reshape(mask, (0, -1)), axis=1) for mask in masks]
    product = rows[0]
    for row in rows[1:]:
        product = product * row
    return product


def _masked(F: Any, term: Term, values: Any, rows: Any) -> Tensor:
    if F is mx.nd and values.shape[:1] != rows.shape:
        raise SpecError(
            f"{term.where}: its label may be missing, and it returns an array of shape {values.shape} for "
            f"{len(rows)} samples; return a value for each sample, so that some can be left out"
        )
    return F.where(rows, values, F.zeros_like(values))  # to multiply, rows would need the values' dtype
