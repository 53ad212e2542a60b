"""Smooth the labels of softmax losses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Callable, Optional

from ...arguments import Names, Share, checked
from ...errors import SpecError
from ...events import Handler
from ...protocols import MultiEstimator
from ...spec.terms import Term
from ..compat import mx
from ..execution.loss_calls import call_loss
from ..execution.loss_weights import BatchLossScale
from ..losses import SegmentationCELoss, SequenceCELoss
from .loss_blend import BEFORE_PENALTIES, LossBlend, selected_terms


class LabelSmoothing(Handler):
    r"""Smooths the labels of softmax losses: a share of each label is spread evenly over all classes.

    .. math:: \tilde L = (1 - \varepsilon) L(x, y) + \varepsilon \frac{1}{C} \sum_c L(x, c)

    that is, the cross entropy with :math:`(1 - \varepsilon)` of the label's distribution and
    :math:`\varepsilon` of the uniform one. Weights, normalisation, padding, and ignored and missing labels
    are treated as in the original losses. Figures, in training and validation, are computed with the original
    losses.

    Together with `MixUp`, the mixture of labels is smoothed if all losses of the spec are smoothed. If only
    some are smoothed, only each sample's own label is.

    Parameters
    ----------
    epsilon : float
        The share that is spread over all classes, at least 0 and below 1.
    loss : str or sequence of str, optional
        The losses to smooth: ``SoftmaxCrossEntropyLoss`` with class indices as labels, ``SegmentationCELoss``
        or ``SequenceCELoss``. Defaults to all losses of these types.

    Raises
    ------
    ValueError
        `epsilon` is not valid. At the beginning of a fit, a SpecError is raised if there is no such loss.

    References
    ----------
    C. Szegedy, V. Vanhoucke, S. Ioffe, J. Shlens, Z. Wojna: Rethinking the Inception Architecture for
    Computer Vision. CVPR 2016, arXiv:1512.00567, section 7.
    """

    priority = BEFORE_PENALTIES + 1  # after MixUp
    blends_losses = True

    @checked
    def __init__(self, epsilon: Share = 0.1, loss: Optional[Names] = None) -> None:
        self.epsilon, self.loss = epsilon, loss

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Find the losses."""
        terms = selected_terms("LabelSmoothing", estimator.spec, self.loss)
        smoothed = [term for term in terms if _uniform_loss(term) is not None]
        others = [term for term in terms if term not in smoothed]
        if others and (self.loss is not None or not smoothed):
            types = ", ".join(f"{term.where} is {type(term.spec.fn).__name__}" for term in others)
            raise SpecError(
                f"LabelSmoothing: {types}; valid are SoftmaxCrossEntropyLoss with sparse_label=True, "
                "SegmentationCELoss and SequenceCELoss"
            )
        self._blend = LossBlend(estimator.spec, smoothed)

    def batch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget the last batch."""
        self._blend.begin()

    def change_batch(self, estimator: MultiEstimator, slots: Mapping[str, Any]) -> None:
        """Remember a device's slots."""
        self._blend.add(slots)

    def change_objective(
        self,
        estimator: MultiEstimator,
        objectives: list[Any],
        pred: Mapping[str, list[Any]],
        label: Mapping[str, list[Any]],
        loss: Mapping[str, list[Any]],
        scale: BatchLossScale,
    ) -> list[Any]:
        """Replace a share of each loss by its mean over all classes."""
        uniform: dict[str, list[Any]] = {}
        for term in self._blend.computed(loss):
            function, arguments = _uniform_loss(term), self._blend.arguments(pred, label)
            uniform[term.key] = [call_loss(term, arrays, function)[0] for arrays in arguments]
        return self._blend.blend(objectives, self.epsilon, loss, uniform, scale, estimator.batch_axis)


def _uniform_loss(term: Term) -> Callable[..., Any] | None:
    """Return a function that computes a term's loss, from the same arguments, for uniform labels.

    Returns None for a loss that cannot be smoothed.
    """
    # Exactly these types: a subclass may compute anything.
    functions: dict[type, Callable[..., Any]] = {
        mx.gluon.loss.SoftmaxCrossEntropyLoss: _softmax,
        SegmentationCELoss: _segmentation,
        SequenceCELoss: _sequence,
    }
    fn = term.spec.fn
    function = functions.get(type(fn))
    if function is None or not getattr(fn, "_sparse_label", True):
        return None
    return partial(function, fn)


def _softmax(fn: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
    log_prob = pred if fn._from_logits else mx.nd.log_softmax(pred, axis=fn._axis)
    loss = -mx.nd.mean(log_prob, axis=fn._axis, keepdims=True)
    loss = mx.gluon.loss._apply_weighting(mx.nd, loss, fn._weight, sample_weight)
    return mx.nd.mean(loss, axis=fn._batch_axis, exclude=True)


def _segmentation(fn: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
    values = -mx.nd.mean(mx.nd.log_softmax(pred, axis=fn._axis), axis=fn._axis)
    return fn.reduce(mx.nd, values, label, sample_weight)


def _sequence(fn: Any, pred: Any, label: Any, valid_length: Any, sample_weight: Any = None) -> Any:
    # Masked twice, as in the loss: padding, even NaN, must reach neither the loss nor the gradient.
    logits = fn._mask(mx.nd, fn._last(mx.nd, pred), valid_length)
    values = -mx.nd.mean(mx.nd.log_softmax(logits, axis=-1), axis=-1)
    loss = mx.nd.sum(fn._mask(mx.nd, values, valid_length), axis=1)
    return mx.gluon.loss._apply_weighting(mx.nd, loss, fn._weight, sample_weight)
