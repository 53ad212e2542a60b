"""Calls losses with the arrays that they take."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...spec.names import Ref
from ...spec.terms import Term, is_multi_box
from ..compat import mx
from ..user_code import user_code
from .present_losses import changed_loss
from .present_losses import present_share as present_share


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


def call_loss(
    term: Term,
    arrays: Mapping[Ref, Any],
    function: Callable[..., Any] | None = None,
    by_value: bool = False,
) -> list[Any]:
    """Return the parts that a term's loss returns; `function` replaces the loss, if given.

    `by_value` says whether single values of its labels may be missing.
    """
    arguments = [arrays[ref] for ref in term.args]
    call: Any = function or term.spec.fn
    if is_multi_box(call):
        call = partial(multi_box_loss, call)
    if call is None and term.weights is None:
        return arguments[:1]
    with user_code(lambda: term.where, *zip(map(str, term.args), arguments)):
        is_changed = term.present or term.weights is not None
        parts = changed_loss(term, arrays, call, by_value) if is_changed else call(*arguments)
    return list(parts) if isinstance(parts, (list, tuple)) else [parts]


def as_variable(weights: Any) -> Any:
    """Return a copy of the weights that is a variable of the recorded graph.

    The objective can then be differentiated even if all losses are constant, because no sample had anything
    to learn; its gradient then reaches no parameter.
    """
    if mx.autograd.is_recording():
        weights = weights.copy()
        weights.attach_grad()
    return weights


def detached(term: Term, arrays: Mapping[Ref, Any]) -> dict[Ref, Any]:
    """Return the arrays that a term reads, detached from the graph that computed them."""
    return {ref: None if arrays[ref] is None else arrays[ref].detach() for ref in term.refs}
