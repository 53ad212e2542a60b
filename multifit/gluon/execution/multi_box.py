"""gluoncv's SSD loss as a graph on one device: the original cannot be traced, as it reads an array."""

from __future__ import annotations

from typing import Any

NAME = "gluoncv.loss.SSDMultiBoxLoss"


def multi_box_loss(loss: Any, F: Any, *arguments: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the sum, class and box losses of an ``SSDMultiBoxLoss``, each a list of one array (N,).

    The class loss is the cross entropy of the anchors that are matched with an object, and of the unmatched
    anchors where it is largest, at most `negative_mining_ratio` of these for each matched anchor. The box
    loss is a smooth L1 distance of the matched boxes. Both are divided by the number of matched anchors in
    the batch.

    Parameters
    ----------
    loss : gluoncv.loss.SSDMultiBoxLoss
        Its options are used.
    F : module
        ``mx.nd`` or ``mx.sym``.
    arguments : lists of one array
        Scores (N, A, C + 1), offsets (N, 4 A) or (N, A, 4), and their targets (N, A) and (N, A, 4).

    References
    ----------
    W. Liu et al.: SSD: Single Shot MultiBox Detector. ECCV 2016, arXiv:1512.02325, section 2.2.
    """
    scores, boxes, classes, targets = (argument[0] for argument in arguments)
    matched = classes > 0
    count = F.maximum(F.sum(matched), 1)
    entropy = -F.pick(F.log_softmax(scores, axis=-1), classes, axis=-1)
    counted = F.cast(matched, "float32") + _hard_negatives(loss, F, entropy, matched)
    entropy = F.where(counted > 0, entropy, F.zeros_like(entropy))
    by_class = F.broadcast_div(F.sum(entropy, axis=0, exclude=True), count)
    distance = F.abs(F.reshape_like(boxes, targets) - targets)
    smooth = F.square(distance) * (0.5 / loss._rho)
    distance = F.where(distance > loss._rho, distance - 0.5 * loss._rho, smooth)
    distance = F.broadcast_mul(distance, F.expand_dims(matched, axis=-1))
    by_box = F.broadcast_div(F.sum(distance, axis=0, exclude=True), count)
    return [by_class + loss._lambd * by_box], [by_class], [by_box]


def _hard_negatives(loss: Any, F: Any, entropy: Any, matched: Any) -> Any:
    """Return which anchors count as examples without an object.

    MXNet computes ranks in float32, whatever the dtype of the net; gluoncv's own loss fails in float64.
    """
    order = F.argsort(entropy * (matched - 1), axis=1)
    most = F.maximum(F.sum(matched, axis=1) * loss._negative_mining_ratio, loss._min_hard_negatives)
    most = F.expand_dims(F.cast(most, "float32"), axis=-1)
    return F.broadcast_lesser(F.argsort(order, axis=1), most)
