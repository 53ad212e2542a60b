"""Smooth the labels of softmax losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable

from ...arguments import finite_number
from ...errors import SpecError
from ...spec.terms import Term
from ..compat import mx
from ..losses import SegmentationCELoss, SequenceCELoss
from ..user_code import user_code
from .loss_blend import BEFORE_PENALTIES, LossBlend, chosen

__all__ = ["LabelSmoothing"]


class LabelSmoothing:
    r"""Lets softmax losses count a share of each label for all classes alike.

    .. math:: \tilde L = (1 - \varepsilon) L(x, y) + \varepsilon \frac{1}{C} \sum_c L(x, c)

    that is, the cross entropy to :math:`(1 - \varepsilon)` of the label's distribution and
    :math:`\varepsilon` of the uniform one. Weights, normalisation, padding and ignored labels are the losses'
    own; figures, in training and validation, are of the labels as they are.

    Beside `MixUp`, the mixture of labels is smoothed where all losses of the spec are; where only some are,
    it is each sample's own label that gives way.

    Parameters
    ----------
    epsilon : float
        The share, at least 0 and below 1.
    loss : str or sequence of str, optional
        The losses: ``SoftmaxCrossEntropyLoss`` with class indices as labels, ``SegmentationCELoss`` or
        ``SequenceCELoss``; None: all of these kinds.

    Raises
    ------
    ValueError
        `epsilon` is not valid; or, at the begin of a fit, there is no such loss (a SpecError).

    References
    ----------
    C. Szegedy, V. Vanhoucke, S. Ioffe, J. Shlens, Z. Wojna: Rethinking the Inception Architecture for
    Computer Vision. CVPR 2016, arXiv:1512.00567, section 7.
    """

    priority = BEFORE_PENALTIES + 1  # behind MixUp

    def __init__(self, epsilon: float = 0.1, loss: str | Sequence[str] | None = None) -> None:
        self.epsilon, self.loss = finite_number("LabelSmoothing: epsilon", epsilon, least=0, below=1), loss

    def train_begin(self, estimator: Any, **facts: Any) -> None:
        """Find the losses."""
        terms = chosen("LabelSmoothing", estimator.spec, self.loss)
        able = [term for term in terms if _uniform(term) is not None]
        wrong = [term for term in terms if term not in able]
        if wrong and (self.loss is not None or not able):
            found = ", ".join(f"{term.where} is {type(term.spec.fn).__name__}" for term in wrong)
            raise SpecError(
                f"LabelSmoothing: {found}; valid are SoftmaxCrossEntropyLoss with sparse_label=True, "
                'SegmentationCELoss and SequenceCELoss, of scope "device"'
            )
        self._recount = LossBlend(estimator.spec, able)

    def batch_begin(self, estimator: Any, **facts: Any) -> None:
        """Forget the last batch."""
        self._recount.begin()

    def change_batch(self, estimator: Any, slots: Mapping[str, Any]) -> None:
        """Look at a device's slots."""
        self._recount.see(slots)

    def change_objective(
        self,
        estimator: Any,
        objectives: list[Any],
        pred: Mapping[str, list[Any]],
        label: Mapping[str, list[Any]],
        loss: Mapping[str, list[Any]],
    ) -> list[Any]:
        """Move a share of the losses to the mean over all classes."""
        other: dict[str, list[Any]] = {}
        for term in self._recount.terms:
            uniform: Any = _uniform(term)
            given = [[own[ref] for ref in term.args] for own in self._recount.arrays(pred, label)]
            with user_code(lambda term=term: f"{term.where}, smoothed"):
                other[term.key] = [uniform(*args) for args in given]
        return self._recount.moved(estimator, objectives, self.epsilon, loss, other, label)


def _uniform(term: Term) -> Callable[..., Any] | None:
    """Return what takes the arguments of a term's loss, and returns it for the uniform distribution."""
    # Exactly these: what a subclass computes is not known.
    kinds: dict[type, Callable[..., Any]] = {
        mx.gluon.loss.SoftmaxCrossEntropyLoss: _softmax,
        SegmentationCELoss: _segmentation,
        SequenceCELoss: _sequence,
    }
    fn = term.spec.fn
    found = kinds.get(type(fn))
    sparse = getattr(fn, "_sparse_label", True)
    return partial(found, fn) if found is not None and sparse and term.spec.scope != "batch" else None


def _softmax(fn: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
    log_prob = pred if fn._from_logits else mx.nd.log_softmax(pred, axis=fn._axis)
    loss = -mx.nd.mean(log_prob, axis=fn._axis, keepdims=True)
    loss = mx.gluon.loss._apply_weighting(mx.nd, loss, fn._weight, sample_weight)
    return mx.nd.mean(loss, axis=fn._batch_axis, exclude=True)


def _segmentation(fn: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
    values = -mx.nd.mean(mx.nd.log_softmax(pred, axis=fn._axis), axis=fn._axis)
    return fn.reduce(mx.nd, values, label, sample_weight)


def _sequence(fn: Any, pred: Any, label: Any, valid_length: Any, sample_weight: Any = None) -> Any:
    # masked twice, as the loss does: padding, NaN included, reaches neither loss nor gradient
    logits = fn._mask(mx.nd, fn._last(mx.nd, pred), valid_length)
    values = -mx.nd.mean(mx.nd.log_softmax(logits, axis=-1), axis=-1)
    loss = mx.nd.sum(fn._mask(mx.nd, values, valid_length), axis=1)
    return mx.gluon.loss._apply_weighting(mx.nd, loss, fn._weight, sample_weight)
