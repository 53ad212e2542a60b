"""Calls losses with the arrays that they take, also where labels are missing or values have weights.

Missing values add nothing to the loss, and have no gradient. The functions run on NDArrays and on symbols.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from ...spec.checks.results import check_rows, check_weights, has_values
from ...spec.parsing import label_of, presence
from ...spec.terms import LABELS, OUTPUTS, Ref, Term, is_multi_box
from ...utils.protocols import Tensor
from ..compat import mx
from ..data.arrays import new_array
from ..losses import SegmentationCELoss, SequenceCELoss, class_axis, is_kind, weighs_values, weighted
from ..user_code import user_code
from .blocks import run_by_python

OURS = SegmentationCELoss, SequenceCELoss


def call_loss(
    term: Term,
    arrays: Mapping[Ref, Any],
    function: Callable[..., Any] | None = None,
    by_value: bool | None = None,
) -> list[Any]:
    """Return the parts that a term's loss returns; `function` replaces the loss, if given.

    They are multiplied by the weights, unless the loss takes weights for the values of its label. Missing
    labels count one by one if the loss leaves them out itself, or if `by_value`: what :func:`counts_values`
    returns. By default, they do if the loss returns as many values as its labels have; symbols have no sizes.
    Of any other loss, a sample counts only if all its values are present.
    """
    arguments = [arrays[ref] for ref in term.args]
    call: Any = function or term.spec.fn
    if is_multi_box(call):
        call = partial(multi_box_loss, call)
    if call is None and term.weights is None:
        return arguments[:1]
    with user_code(lambda: term.where, *zip(map(str, term.args), arguments)):
        if term.present or term.weights is not None:
            return _changed(term, arrays, arguments, call, by_value)
        return _parts(call(*arguments))


def _changed(
    term: Term, arrays: Mapping[Ref, Any], arguments: list[Any], call: Any, by_value: bool | None
) -> list[Any]:
    """Return a term's loss, times its weights, in which missing labels do not count."""
    fn: Any = term.spec.fn
    F = mx.nd if isinstance(arguments[0], mx.nd.NDArray) else mx.sym
    masks = [arrays[ref] for ref in term.present]
    weight = None if term.weights is None else arrays[term.weights]
    if _weighs_values(term):
        factors = [_as_weight(F, fn, arguments, mask) for mask in masks] + arguments[2:3]
        if weight is not None:
            factors.append(F.reshape_like(weight, _one_per_value(F, fn, arguments[0])))
        arguments[2:3], masks, weight = [_product(F, factors)], [], None
    elif weight is not None and is_kind(fn, *OURS) and _takes_pair(term):
        fixed = 2 + is_kind(fn, SequenceCELoss)
        factors = [F.reshape(factor, (0, -1)) for factor in (*arguments[fixed:], weight)]
        arguments[fixed:], weight = [_product(F, factors)], None
    if masks and ignores_values(term):
        arguments[1] = F.where(masks[0], arguments[1], F.ones_like(arguments[1]) * fn._ignore_label)
        masks = []
    with run_by_python([call]):  # its graph is for one number of arguments, and may have other users
        parts = _parts(call(*arguments)) if call is not None else arguments
    for part in parts if weight is not None and F is mx.nd else ():
        check_weights(term, part, weight)
    parts = [weighted(F, part, weight) for part in parts]
    if not masks:
        return parts
    if has_values(parts, masks) if by_value is None else by_value:
        present = _product(F, [F.reshape(mask, (0, -1)) for mask in masks])
        flat = [F.reshape(part, (0, -1)) for part in parts]
        left = [F.where(present, each, F.zeros_like(each)) for each in flat]
        return [F.reshape_like(*pair) for pair in zip(left, parts)]
    rows = _rows(F, masks)
    for part in parts if F is mx.nd else ():
        check_rows(term, part, len(rows))
    return [F.where(rows, part, F.zeros_like(part)) for part in parts]  # a product needs equal dtypes


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
        stays = np.indices(shape).sum(axis=0) % 2 == color
        results = []
        for other in (0, 1):
            changed = dict(arrays)
            for ref in masks:
                label = arrays[ref]
                if label.size == stays.size:
                    mask: Any = new_array(stays.reshape(label.shape), label.context, label.dtype)
                    changed[ref] = label * mask + (1 - mask) * other
            with mx.autograd.pause(train_mode=False):
                results.append(_parts(fn(*[changed[ref] for ref in term.args])))
        if not has_values(results[0], list(masks.values())):
            return False
        for pair in zip(*results):
            zeros, ones = (part.asnumpy().reshape(shape)[stays] for part in pair)
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


def ignores_values(term: Term) -> bool:
    """Whether the loss ignores a value of its one label."""
    fn: Any = term.spec.fn
    return _takes_pair(term) and is_kind(fn, SegmentationCELoss) and fn._ignore_label is not None


def _weighs_values(term: Term) -> bool:
    """Whether the loss is one of Gluon's that weighs each value of its label."""
    return _takes_pair(term) and weighs_values(term.spec.fn) and not is_kind(term.spec.fn, *OURS)


def _takes_pair(term: Term) -> bool:
    """Whether the loss takes an output, then a label, and no other label may be missing."""
    spaces, names = [ref.space for ref in term.args[:2]], {presence(ref.name) for ref in term.args[1:2]}
    return spaces == [OUTPUTS, LABELS] and {ref.name for ref in term.present} <= names


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


def _product(F: Any, factors: Sequence[Any]) -> Any:
    return reduce(F.broadcast_mul, factors)


def as_variable(weights: Any) -> Any:
    """Return a copy of the weights that is a variable of the recorded graph.

    The objective can then be differentiated even if all losses are constant, because no sample had anything
    to learn; its gradient then reaches no parameter.
    """
    if mx.autograd.is_recording():
        weights = weights.copy()
        weights.attach_grad()
    return weights


def multi_box_loss(loss: Any, scores: Any, boxes: Any, classes: Any, targets: Any) -> tuple[Any, Any, Any]:
    """Return the sum, class and box losses of an ``SSDMultiBoxLoss``, each of shape (N,).

    The class loss is the cross entropy of the anchors that are matched with an object, and of the unmatched
    anchors where it is largest, at most `negative_mining_ratio` of these for each matched anchor. The box
    loss is a smooth L1 distance of the matched boxes. Both are sums: the number of matched anchors in the
    batch, by which gluoncv divides them, is the loss's default normalizer.

    Parameters
    ----------
    loss : gluoncv.loss.SSDMultiBoxLoss
        Its options are used.
    scores, boxes, classes, targets : NDArray or Symbol
        Scores (N, A, C + 1), offsets (N, 4 A) or (N, A, 4), and their targets (N, A) and (N, A, 4).

    References
    ----------
    W. Liu et al.: SSD: Single Shot MultiBox Detector. ECCV 2016, arXiv:1512.02325, section 2.2.
    """
    F = mx.nd if isinstance(scores, mx.nd.NDArray) else mx.sym
    matched = classes > 0
    entropy = -F.pick(F.log_softmax(scores, axis=-1), classes, axis=-1)
    counted = F.cast(matched, "float32") + _hard_negatives(loss, F, entropy, matched)
    entropy = F.where(counted > 0, entropy, F.zeros_like(entropy))
    by_class = F.sum(entropy, axis=0, exclude=True)
    distance = F.abs(F.reshape_like(boxes, targets) - targets)
    smooth = F.square(distance) * (0.5 / loss._rho)
    distance = F.where(distance > loss._rho, distance - 0.5 * loss._rho, smooth)
    distance = F.broadcast_mul(distance, F.expand_dims(matched, axis=-1))
    by_box = F.sum(distance, axis=0, exclude=True)
    return by_class + loss._lambd * by_box, by_class, by_box


def _hard_negatives(loss: Any, F: Any, entropy: Any, matched: Any) -> Any:
    """Return which anchors count as examples without an object.

    MXNet computes ranks in float32, whatever the dtype of the net; gluoncv's own loss fails in float64.
    """
    order = F.argsort(entropy * (matched - 1), axis=1)
    most = F.maximum(F.sum(matched, axis=1) * loss._negative_mining_ratio, loss._min_hard_negatives)
    most = F.expand_dims(F.cast(most, "float32"), axis=-1)
    return F.broadcast_lesser(F.argsort(order, axis=1), most)
