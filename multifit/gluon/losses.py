"""The losses that Gluon and its toolkits lack or have wrong, and what is known of theirs."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Annotated, Any

import numpy as np

from ..utils.arguments import Valid, checked
from ..utils.protocols import Tensor
from .compat import mx

_LOSSES = mx.gluon.loss
MANY_CLASSES = 24  # with as many, a softmax over the last axis fills the processor's vector registers
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


def weighs_values(fn: Any) -> bool:
    """Whether a loss takes a weight for each value of its label, before it reduces them to samples."""
    is_sparse = is_kind(fn, _LOSSES.SoftmaxCrossEntropyLoss) and class_axis(fn) is not None
    return is_sparse or is_kind(fn, SequenceCELoss, SegmentationCELoss, *ELEMENTWISE)


def weighted(F: Any, values: Tensor, weight: Tensor | None) -> Tensor:
    """Multiply values of shape (N, ...) by a weight for each sample, or for each of their values."""
    if weight is None:
        return values
    product = F.broadcast_mul(F.reshape(values, (0, -1)), F.reshape(weight, (0, -1)))
    return F.reshape_like(product, values)


def class_axis(fn: Any) -> int | None:
    """Return the class axis of a loss that takes class indices, and clips them; None for other losses."""
    if isinstance(fn, SegmentationCELoss):
        return int(fn._axis)
    if not getattr(fn, "_sparse_label", False):
        return None
    if isinstance(fn, SequenceCELoss):
        return -1 if fn._classes_last else 1
    return int(fn._axis) if isinstance(fn, _LOSSES.SoftmaxCrossEntropyLoss) else None


def softmax_axis(fn: Any) -> int | None:
    """Return the class axis of a loss that takes a softmax; None for other losses."""
    if isinstance(fn, _LOSSES.SoftmaxCrossEntropyLoss):  # of one-hot labels, too
        return int(fn._axis)
    return class_axis(fn)


_ClassAxis = Annotated[int, Valid("-1 or 2 for logits (N, T, V), 1 for (N, V, T)", (-1, 1, 2).__contains__)]


class SequenceCELoss(mx.gluon.loss.Loss):
    r"""Softmax cross entropy of sequences, summed over each sequence's valid tokens.

    .. math:: L_n = -\sum_{t < \mathrm{length}_n} \log \mathrm{softmax}(x_{n,t})_{y_{n,t}}

    gluonnlp's ``MaskedSoftmaxCELoss`` divides by the padded length, so that padding changes the gradients.
    With ``LossSpec(SequenceCELoss(), ..., normalize_by="target_length")`` the term is the mean per token of
    the whole batch. Values in the padding, even NaN, affect neither the loss nor a gradient.

    Parameters
    ----------
    axis : int, default -1
        The axis of the classes: -1 or 2 for logits of shape (N, T, V), 1 for (N, V, T).
    sparse_label : bool, default True
        Whether labels are class indices (N, T); otherwise they are distributions of the logits' shape.
    weight : float, optional
        Factor for the whole loss.

    Raises
    ------
    ValueError
        `axis` is none of these.

    Notes
    -----
    Inputs are logits (N, T, V); labels (N, T); valid_length (N,), in tokens; optionally sample_weight, one
    number for each sample or for each token. The output is (N,), in nats.
    """

    @checked
    def __init__(
        self,
        axis: _ClassAxis = -1,
        sparse_label: bool = True,
        weight: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, batch_axis=0, **kwargs)
        self._classes_last = axis != 1
        self._sparse_label = sparse_label

    def hybrid_forward(
        self, F: Any, pred: Tensor, label: Tensor, valid_length: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Return the loss of each sample; see the class."""
        # Both are masked before the logarithm: if they were masked after it, 0 * NaN would put NaN into the
        # gradient.
        logits = self._mask(F, self._last(F, pred), valid_length)
        log_prob = F.log_softmax(logits, axis=-1)
        label = self._mask(F, label if self._sparse_label else self._last(F, label), valid_length)
        loss = -F.pick(log_prob, label, axis=-1) if self._sparse_label else -F.sum(log_prob * label, axis=-1)
        loss = F.sum(weighted(F, self._mask(F, loss, valid_length), sample_weight), axis=1)
        return mx.gluon.loss._apply_weighting(F, loss, self._weight)

    def _last(self, F: Any, array: Tensor) -> Tensor:
        """Move the classes to the last axis."""
        return array if self._classes_last else F.swapaxes(array, dim1=1, dim2=2)

    @staticmethod
    def _mask(F: Any, array: Tensor, valid_length: Tensor) -> Tensor:
        """Set the padding of (N, T, ...) to 0."""
        return F.SequenceMask(array, valid_length, use_sequence_length=True, value=0, axis=1)


class SegmentationCELoss(mx.gluon.loss.Loss):
    """Softmax cross entropy of pixels: each sample's mean over its valid pixels, and 0 if it has none.

    gluoncv's ``MixSoftmaxCrossEntropyLoss`` ignores the gradient that it receives, so that weights have no
    effect, and divides by the valid pixels of one device's batch. Here, weights have their effect, and a
    sample's loss depends on that sample only, so that one and two devices give the same result. For an
    auxiliary output, declare a second LossSpec.

    Parameters
    ----------
    ignore_label : int or None, default -1
        Pixels with this label are ignored; None ignores none.
    axis : int, default 1
        The axis of the classes in the logits.
    weight : float, optional
        Factor for the whole loss.

    Notes
    -----
    Inputs are logits (N, C, H, W) and labels (N, H, W), class indices; optionally sample_weight, one number
    for each sample or for each pixel, which is multiplied before the mean. The output is (N,), in nats per
    pixel.
    """

    @checked
    def __init__(
        self, ignore_label: int | None = -1, axis: int = 1, weight: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(weight=weight, batch_axis=0, **kwargs)
        self._ignore_label = ignore_label
        self._axis = axis

    def hybrid_forward(
        self, F: Any, pred: Tensor, label: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Return the loss of each sample; see the class."""
        values = -F.pick(F.log_softmax(pred, axis=self._axis), label, axis=self._axis)
        return self.reduce(F, values, label, sample_weight)

    def reduce(self, F: Any, values: Tensor, label: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Reduce the cross entropy of each pixel, (N, H, W), to each sample's mean over its valid pixels."""
        values = F.reshape(weighted(F, values, sample_weight), (0, -1))
        if self._ignore_label is None:
            loss = F.mean(values, axis=1)
        else:
            # in uint8, -1 would be 255; labels may keep an axis of channels, (N, 1, H, W)
            valid = F.reshape(F.cast(label, "int32") != self._ignore_label, (0, -1))
            none = F.zeros_like(values)
            pixels = F.sum(F.where(valid, F.ones_like(values), none), axis=1)
            loss = F.sum(F.where(valid, values, none), axis=1) / F.broadcast_maximum(
                pixels, F.ones_like(pixels)
            )
        return mx.gluon.loss._apply_weighting(F, loss, self._weight)


def faster_loss(fn: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """Return a function that computes the cross entropy of maps faster; None for other losses.

    It takes a half of the time with four classes, a quarter with 21: MXNet's ``log_softmax`` is slow along an
    axis that is not the last. So few classes of logits (N, C, ...) are computed map by map, and many moved to
    the last axis. The function computes what Gluon's SoftmaxCrossEntropyLoss or :class:`SegmentationCELoss`
    does, but no subclass, and no loss with hooks. `args` are the loss's arguments, of which only shapes and
    dtypes are read.
    """
    if type(fn) not in _OF_ROWS or fn._forward_hooks or fn._forward_pre_hooks or mx.util.is_np_array():
        return None
    logits, label = args[0].shape, args[1].shape
    takes_classes = getattr(fn, "_sparse_label", True) and not getattr(fn, "_from_logits", False)
    fits = takes_classes and fn._axis == 1 and fn._batch_axis == 0
    if not fits or len(logits) < 3 or label != logits[:1] + logits[2:]:
        return None
    is_few = 1 < logits[1] < MANY_CLASSES and np.dtype(args[0].dtype) == "float32"
    return partial(_by_maps, fn, logits[1]) if is_few else partial(_by_rows, fn)


def _by_maps(fn: Any, classes: int, logits: Any, label: Any, *weight: Any) -> Any:
    r"""Compute :math:`\log \sum_c e^{x_c - m} + m - x_y`, where m is the largest score of a position.

    MXNet has a vectorised kernel for :math:`e^x - 1` of negative numbers (``elu``), but none for a softmax
    along an axis other than the last.
    """
    F = mx.nd if isinstance(logits, mx.nd.NDArray) else mx.sym
    maps = list(F.split(logits, num_outputs=classes, axis=1, squeeze_axis=True))
    best = F.BlockGrad(reduce(F.maximum, maps))
    terms = [F.LeakyReLU(scores - best, act_type="elu", slope=1.0) for scores in maps]
    values = F.log(F.add_n(*terms) + classes) + best - F.pick(logits, label, axis=1)
    return _OF_ROWS[type(fn)](fn, F, values, label, *weight)


def _by_rows(fn: Any, logits: Any, label: Any, *weight: Any) -> Any:
    """Compute it with the classes in the last axis."""
    F = mx.nd if isinstance(logits, mx.nd.NDArray) else mx.sym
    log_prob = F.log_softmax(F.transpose(F.reshape(logits, (0, 0, -1)), (0, 2, 1)), axis=-1)
    values = -F.pick(log_prob, F.reshape(label, (0, -1)), axis=-1)
    return _OF_ROWS[type(fn)](fn, F, F.reshape_like(values, label), label, *weight)


def _mean(fn: Any, F: Any, values: Any, label: Any, sample_weight: Any = None) -> Any:
    """Reduce as SoftmaxCrossEntropyLoss does: the mean over all axes but the first."""
    values = F.expand_dims(values, axis=1)  # sample weights broadcast to this shape
    values = _LOSSES._apply_weighting(F, values, fn._weight, sample_weight)
    return F.mean(F.reshape(values, (0, -1)), axis=1)


_OF_ROWS = {_LOSSES.SoftmaxCrossEntropyLoss: _mean, SegmentationCELoss: SegmentationCELoss.reduce}
