"""Faster functions for some losses, with equal values and gradients."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..compat import mx
from ..losses import SegmentationCELoss
from ..ops import largest, sample_sums, split_maps

MANY_CLASSES = 24  # with as many, a softmax over the last axis fills the processor's vector registers


def fused_loss(loss: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """Return a function that computes the same as a loss, but faster; None if there is none.

    There is one for the softmax cross entropy of maps with the classes in axis 1: there, MXNet's
    ``log_softmax`` takes two to four times as long as :func:`negative_log_likelihood`. There is another for
    one class per sample, :func:`cross_entropy`, which leaves out the mean over the single value of a sample.

    ``SoftmaxCrossEntropyLoss`` and ``SegmentationCELoss`` are supported, but no subclasses, and no losses
    with hooks. `args` are the loss's arguments: logits (N, C, ...), labels (N, ...), optionally sample
    weights. Except for :func:`cross_entropy`, the function is valid for this C only.
    """
    reduce: Any = REDUCTIONS.get(type(loss))
    if reduce is None or loss._forward_hooks or loss._forward_pre_hooks or mx.util.is_np_array():
        return None
    if _is_one_class_per_sample(loss, *args):
        return cross_entropy
    return partial(_call, reduce, loss, args[0].shape[1]) if _is_class_map(loss, *args) else None


def cross_entropy(logits: Any, label: Any, weight: Any = None) -> Any:
    """Return the softmax cross entropy (N,) of logits (N, C) and classes (N,), times the weights (N, 1)."""
    F = mx.nd if isinstance(logits, mx.nd.NDArray) else mx.sym
    loss = -F.pick(F.log_softmax(logits, axis=-1), label, axis=-1)
    return loss if weight is None else loss * F.reshape(weight, (-1,))


def negative_log_likelihood(F: Any, logits: Any, label: Any, classes: int) -> Any:
    r"""Return :math:`-\log \mathrm{softmax}(x)_y` for every position of a map.

    With few classes, it is computed as :math:`\log \sum_c e^{x_c - m} + m - x_y`, map by map, where m is the
    largest score: MXNet has a vectorised kernel for :math:`e^x - 1` of negative numbers (``elu``), but none
    for softmax along an axis other than the last. With many classes, these are moved to the last axis.
    """
    if classes >= MANY_CLASSES:
        maps = F.transpose(F.reshape(logits, (0, 0, -1)), (0, 2, 1))
        picked = F.pick(F.log_softmax(maps, axis=-1), F.reshape(label, (0, -1)), axis=-1)
        return -F.reshape_like(picked, label)
    best = largest(F, logits, classes)
    terms = [
        F.LeakyReLU(scores - best, act_type="elu", slope=1.0) for scores in split_maps(F, logits, classes)
    ]
    return F.log(F.add_n(*terms) + classes) + best - F.pick(logits, label, axis=1)


def _call(
    reduce: Callable[..., Any], loss: Any, classes: int, logits: Any, label: Any, *sample_weight: Any
) -> Any:
    F = mx.nd if isinstance(logits, mx.nd.NDArray) else mx.sym
    return reduce(loss, F, negative_log_likelihood(F, logits, label, classes), label, *sample_weight)


def _is_one_class_per_sample(loss: Any, logits: Any, label: Any = None, *more: Any) -> bool:
    return (
        type(loss) is mx.gluon.loss.SoftmaxCrossEntropyLoss
        and not more
        and loss._axis in (-1, 1)
        and loss._sparse_label
        and not loss._from_logits
        and loss._weight is None
        and loss._batch_axis == 0
        and len(logits.shape) == 2
        and label.shape == logits.shape[:1]
    )


def _is_class_map(loss: Any, logits: Any, label: Any, *sample_weight: Any) -> bool:
    shape = logits.shape
    return (
        loss._axis == 1
        and getattr(loss, "_sparse_label", True)
        and not getattr(loss, "_from_logits", False)
        and len(shape) > 2
        and label.shape == shape[:1] + shape[2:]
        and np.dtype(logits.dtype) == "float32"
    )


def _softmax(loss: Any, F: Any, values: Any, label: Any, sample_weight: Any = None) -> Any:
    """Reduce as ``SoftmaxCrossEntropyLoss`` does: the mean over all axes but the batch axis."""
    values = F.expand_dims(values, axis=1)  # sample weights broadcast to this shape
    values = mx.gluon.loss._apply_weighting(F, values, loss._weight, sample_weight)
    if loss._batch_axis != 0:
        return F.mean(values, axis=loss._batch_axis, exclude=True)
    size = F.sum(F.ones_like(F.slice_axis(values, axis=0, begin=0, end=1)))
    return F.broadcast_div(sample_sums(F, values), size)


REDUCTIONS = {mx.gluon.loss.SoftmaxCrossEntropyLoss: _softmax, SegmentationCELoss: SegmentationCELoss.reduce}
