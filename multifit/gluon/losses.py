"""The losses that Gluon and its toolkits lack or have wrong; take all others from them."""

from __future__ import annotations

from typing import Any

from .compat import mx

__all__ = ["SegmentationCELoss", "SequenceCELoss", "sample_sums"]


class SequenceCELoss(mx.gluon.loss.Loss):  # type: ignore[misc]
    r"""Softmax cross entropy of sequences, summed over each sequence's valid tokens.

    .. math:: L_n = -\sum_{t < \mathrm{length}_n} \log \mathrm{softmax}(x_{n,t})_{y_{n,t}}

    gluonnlp's ``MaskedSoftmaxCELoss`` divides by the padded length, so that a batch's padding changes what is
    learned. With ``LossSpec(SequenceCELoss(), ..., normalize_by="target_length")`` the term is the mean per
    token of the whole batch. What stands in the padding, NaN included, reaches neither the loss nor a
    gradient.

    Parameters
    ----------
    axis : int, default -1
        Where the classes are: -1 or 2 for logits of shape (N, T, V), 1 for (N, V, T).
    sparse_label : bool, default True
        Whether labels are class indices (N, T), or distributions of the logits' shape.
    weight : float, optional
        Factor for the whole loss.

    Raises
    ------
    ValueError
        Another axis.

    Notes
    -----
    Inputs are logits (N, T, V); labels (N, T); valid_length (N,), in tokens; optionally sample_weight, which
    broadcasts to (N,). The output is (N,), in nats.
    """

    def __init__(
        self, axis: int = -1, sparse_label: bool = True, weight: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(weight=weight, batch_axis=0, **kwargs)
        if axis not in (-1, 1, 2):
            raise ValueError(f"axis must be -1 or 2 for logits (N, T, V) or 1 for (N, V, T), not {axis!r}")
        self._classes_last = axis != 1
        self._sparse_label = sparse_label

    def hybrid_forward(
        self, F: Any, pred: Any, label: Any, valid_length: Any, sample_weight: Any = None
    ) -> Any:
        """Compute the loss; see the class."""
        # Both are masked before the logarithm: behind it, 0 * NaN would bring a NaN back into the gradient.
        logits = self._mask(F, self._last(F, pred), valid_length)
        log_prob = F.log_softmax(logits, axis=-1)
        label = self._mask(F, label if self._sparse_label else self._last(F, label), valid_length)
        loss = -F.pick(log_prob, label, axis=-1) if self._sparse_label else -F.sum(log_prob * label, axis=-1)
        loss = F.sum(self._mask(F, loss, valid_length), axis=1)
        return mx.gluon.loss._apply_weighting(F, loss, self._weight, sample_weight)

    def _last(self, F: Any, array: Any) -> Any:
        """Bring the classes to the last axis."""
        return array if self._classes_last else F.swapaxes(array, dim1=1, dim2=2)

    @staticmethod
    def _mask(F: Any, array: Any, valid_length: Any) -> Any:
        """Put zeros into the padding of (N, T, ...)."""
        return F.SequenceMask(array, valid_length, use_sequence_length=True, value=0, axis=1)


class SegmentationCELoss(mx.gluon.loss.Loss):  # type: ignore[misc]
    """Softmax cross entropy of pixels: each sample's mean over its valid pixels, and 0 where it has none.

    gluoncv's ``MixSoftmaxCrossEntropyLoss`` ignores head gradients, so no weight changes what it teaches; it
    divides by the valid pixels of one device's batch. Here a sample's loss depends on that sample alone,
    weights are obeyed, and one device or two give the same. For an auxiliary output declare a second
    LossSpec.

    Parameters
    ----------
    ignore_label : int or None, default -1
        Pixels of this label count for nothing; None counts all.
    axis : int, default 1
        Where the classes are in the logits.
    weight : float, optional
        Factor for the whole loss.

    Notes
    -----
    Inputs are logits (N, C, H, W) and labels (N, H, W), class indices; optionally sample_weight, which
    broadcasts to (N,). The output is (N,), in nats per pixel.
    """

    def __init__(
        self, ignore_label: int | None = -1, axis: int = 1, weight: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(weight=weight, batch_axis=0, **kwargs)
        self._ignore_label = ignore_label
        self._axis = axis

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute the loss; see the class."""
        values = -F.pick(F.log_softmax(pred, axis=self._axis), label, axis=self._axis)
        return self.reduce(F, values, label, sample_weight)

    def reduce(self, F: Any, values: Any, label: Any, sample_weight: Any = None) -> Any:
        """Reduce the cross entropy of each pixel, (N, H, W), to each sample's mean over its valid pixels."""
        if self._ignore_label is None:
            loss = F.mean(values, axis=0, exclude=True)
        else:
            valid = F.cast(label, "int32") != self._ignore_label  # in uint8, -1 would be 255
            values = F.where(valid, values, F.zeros_like(values))
            pixels = sample_sums(F, F.cast(valid, "float32"))
            loss = sample_sums(F, values) / F.broadcast_maximum(pixels, F.ones_like(pixels))
        return mx.gluon.loss._apply_weighting(F, loss, self._weight, sample_weight)


def sample_sums(F: Any, values: Any) -> Any:
    """Sum each sample of (N, ...), float32; to (N,).

    A product of matrices takes a fifth of the time of mxnet's sum over axes.
    """
    rows = F.reshape(values, (0, -1))
    ones = F.ones_like(F.slice_axis(rows, axis=0, begin=0, end=1))
    return F.reshape(F.dot(rows, ones, transpose_b=True), (-1,))
