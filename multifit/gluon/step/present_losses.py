"""Losses with weights for their values, and losses whose labels may be missing.

Missing values add nothing to the loss, and have no gradient.
The functions run on NDArrays and on symbols. Symbols have no shapes, so that what a loss can leave out is
found out from arrays before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...checks import describe
from ...errors import SpecError
from ...protocols import Tensor
from ...spec.names import LABELS, OUTPUTS, Ref
from ...spec.parsing import label_of, presence
from ...spec.terms import Term
from ..compat import mx
from ..data.arrays import new_array
from ..losses import SegmentationCELoss, SequenceCELoss, class_axis, is_kind, weighs_values, weighted
from .blocks import run_by_python

OURS = SegmentationCELoss, SequenceCELoss


def changed_loss(term: Term, arrays: Mapping[Ref, Any], call: Any, by_value: bool) -> Any:
    """Return a term's loss, times its weights, in which missing labels do not count; `call` calls the loss.

    What a loss returns is multiplied by the weights, unless it takes weights for the values of its label.
    Values count one by one if the loss leaves them out itself, or returns as many values as its labels have.
    Symbols have no sizes, so `by_value` says whether it does: what :func:`counts_values` returns. Of any
    other loss, a sample counts only if all its values are present.
    """
    fn: Any = term.spec.fn
    arguments = [arrays[ref] for ref in term.args]
    F = mx.nd if isinstance(arguments[0], mx.nd.NDArray) else mx.sym
    masks = [arrays[ref] for ref in term.present]
    weight = None if term.weights is None else arrays[term.weights]
    if _weighs_values(term):
        factors = [_as_weight(F, fn, arguments, mask) for mask in masks] + arguments[2:3]
        if weight is not None:
            factors.append(F.reshape_like(weight, _one_per_value(F, fn, arguments[0])))
        return _without_cache(call, *arguments[:2], _product(F, factors), *arguments[3:])
    if weight is not None and is_kind(fn, *OURS) and _takes_pair(term):
        fixed = 2 + is_kind(fn, SequenceCELoss)
        factors = [F.reshape(factor, (0, -1)) for factor in (*arguments[fixed:], weight)]
        arguments[fixed:], weight = [_product(F, factors)], None
        call = partial(_without_cache, call)
    if masks and ignores_values(term):
        scores, label, *weights = arguments
        label = F.where(masks[0], label, F.ones_like(label) * fn._ignore_label)
        return call(scores, label, *weights)
    parts = _parts(call(*arguments)) if call is not None else arguments
    parts = [_weighted(F, term, part, weight) for part in parts]
    if not masks:
        return parts
    if by_value if F is mx.sym else _fit(parts, masks):
        return [_masked_values(F, part, masks) for part in parts]
    rows = _rows(F, masks)
    return [_masked(F, term, part, rows) for part in parts]


def counts_values(term: Term, arrays: Mapping[Ref, Any]) -> bool:
    """Whether a loss can leave out single values of a label; `arrays` are one device's outputs and slots.

    Stock losses that compare element by element, or that take class indices, can, and SegmentationCELoss. So
    can a loss that returns a value for each value of the label, if it does not depend on the others: here,
    those on the squares of one color of a chessboard are replaced.
    """
    if _weighs_values(term) or ignores_values(term):
        return True
    fn: Any = term.spec.fn
    masks = {label_of(ref): arrays[ref] for ref in term.present}
    shape = len(arrays[term.present[0]]), max(mask.size // len(mask) for mask in masks.values())
    for color in (0, 1):
        there = np.indices(shape).sum(axis=0) % 2 == color
        results = []
        for other in (0, 1):
            known = {ref: _only(there, arrays[ref], other) for ref in masks if arrays[ref].size == there.size}
            with mx.autograd.pause(train_mode=False):
                results.append(_parts(fn(*[known.get(ref, arrays[ref]) for ref in term.args])))
        if not _fit(results[0], list(masks.values())):
            return False
        for pair in zip(*results):
            zeros, ones = (part.asnumpy().reshape(shape)[there] for part in pair)
            if not np.array_equal(zeros, ones, equal_nan=True):
                return False
    return True


def present_share(term: Term, slots: Mapping[str, Any]) -> Any:
    """Return the share of each sample in one device's batch that counts for a term, of shape (N,)."""
    masks = [slots[ref.name].reshape((0, -1)) for ref in term.present]
    if ignores_values(term):
        return mx.nd.max(masks[0], axis=1)
    if len({mask.shape[1] for mask in masks} - {1}) > 1:
        return _rows(mx.nd, masks)
    return mx.nd.mean(_product(mx.nd, masks), axis=1)


def _weighs_values(term: Term) -> bool:
    """Whether the loss is one of Gluon's that weighs each value of its label."""
    return _takes_pair(term) and weighs_values(term.spec.fn) and not is_kind(term.spec.fn, *OURS)


def _weighted(F: Any, term: Term, values: Any, weight: Any) -> Any:
    if weight is None:
        return values
    if F is mx.nd and (values.shape[:1] != weight.shape[:1] or weight.size not in (len(weight), values.size)):
        raise SpecError(
            f"{term.where}: its weights are {describe.array(weight)}, and it returns "
            f"{describe.array(values)}; return a value for each weight, or give a weight for each sample"
        )
    return weighted(F, values, weight)


def _without_cache(call: Any, *arguments: Any) -> Any:
    """Call a loss; a hybridized one keeps a graph for one number of arguments, and may have other users."""
    with run_by_python([call]):
        return call(*arguments)


def ignores_values(term: Term) -> bool:
    """Whether the loss ignores a value of its one label."""
    fn: Any = term.spec.fn
    return _takes_pair(term) and is_kind(fn, SegmentationCELoss) and fn._ignore_label is not None


def _takes_pair(term: Term) -> bool:
    """Whether the loss takes an output, then a label, and no other label may be missing."""
    spaces, names = [ref.space for ref in term.args[:2]], {presence(ref.name) for ref in term.args[1:2]}
    return spaces == [OUTPUTS, LABELS] and {ref.name for ref in term.present} <= names


def _fit(parts: Sequence[Any], masks: Sequence[Any]) -> bool:
    """Whether all parts of a loss have a value for each value of its labels, and samples have several."""
    size, samples = max(mask.size for mask in masks), len(masks[0])
    return (
        size > samples
        and {mask.size for mask in masks} <= {samples, size}
        and all(part.shape[:1] == (samples,) and part.size == size for part in parts)
    )


def _only(there: np.ndarray[Any, Any], label: Any, other: int) -> Any:
    """Return a label with another value where it is not `there`."""
    mask: Any = new_array(there.reshape(label.shape), label.context, label.dtype)
    return label * mask + (1 - mask) * other


def _parts(returned: Any) -> list[Any]:
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def _as_weight(F: Any, fn: Any, arguments: Sequence[Any], mask: Tensor) -> Tensor:
    """Return a mask in the dtype of the values that the loss multiplies by it; masks are float32."""
    output, label = arguments[:2]
    axis = class_axis(fn)
    if axis is None:  # the loss compares element by element, so the label has the output's dtype
        return F.reshape_like(F.where(mask, F.ones_like(label), F.zeros_like(label)), output)
    scores = _one_per_value(F, fn, output)
    return F.where(F.expand_dims(mask, axis=axis), F.ones_like(scores), F.zeros_like(scores))


def _one_per_value(F: Any, fn: Any, output: Any) -> Tensor:
    """Return an array of the shape in which one of Gluon's losses takes the weights of values."""
    axis = class_axis(fn)
    return output if axis is None else F.slice_axis(output, axis=axis, begin=0, end=1)


def _rows(F: Any, masks: Sequence[Tensor]) -> Tensor:
    """Return 1 for the samples whose values are present in all masks, else 0; of shape (N,)."""
    return _product(F, [F.min(F.reshape(mask, (0, -1)), axis=1) for mask in masks])


def _product(F: Any, masks: Sequence[Any]) -> Any:
    product = masks[0]
    for mask in masks[1:]:
        product = F.broadcast_mul(product, mask)
    return product


def _masked_values(F: Any, values: Any, masks: Sequence[Tensor]) -> Tensor:
    present = _product(F, [F.reshape(mask, (0, -1)) for mask in masks])
    flat = F.reshape(values, (0, -1))
    return F.reshape_like(F.where(present, flat, F.zeros_like(flat)), values)


def _masked(F: Any, term: Term, values: Any, rows: Any) -> Tensor:
    if F is mx.nd and values.shape[:1] != rows.shape:
        raise SpecError(
            f"{term.where}: its label may be missing, and it returns an array of shape {values.shape} for "
            f"{len(rows)} samples; return a value for each sample, so that some can be left out"
        )
    return F.where(rows, values, F.zeros_like(values))  # to multiply, rows would need the values' dtype
