"""What is known of Gluon's losses and of ours: which compare elements, and which take class indices."""

from __future__ import annotations

from typing import Any

from .compat import mx
from .losses import SegmentationCELoss, SequenceCELoss

_LOSSES = mx.gluon.loss
ELEMENTWISE = (
    _LOSSES.L1Loss, _LOSSES.L2Loss, _LOSSES.SigmoidBinaryCrossEntropyLoss, _LOSSES.HuberLoss,
    _LOSSES.HingeLoss, _LOSSES.SquaredHingeLoss, _LOSSES.LogisticLoss, _LOSSES.KLDivLoss,
    _LOSSES.PoissonNLLLoss,
)  # fmt: skip


def is_kind(fn: Any, *kinds: Any) -> bool:
    """Whether a loss computes what one of the classes computes; a subclass may not replace that."""
    own: Any = type(fn)
    return any(
        issubclass(own, kind) and own.hybrid_forward is kind.hybrid_forward and own.forward is kind.forward
        for kind in kinds
    )


def class_axis(fn: Any) -> int | None:
    """Return the class axis of a loss that takes class indices, and clips them; None for other losses."""
    if isinstance(fn, SegmentationCELoss):
        return int(fn._axis)
    if not getattr(fn, "_sparse_label", False):
        return None
    if isinstance(fn, SequenceCELoss):
        return -1 if fn._classes_last else 1
    return int(fn._axis) if isinstance(fn, _LOSSES.SoftmaxCrossEntropyLoss) else None
