"""What handlers do with MXNet's arrays; see :class:`multifit.engines.Arrays`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..distributed import World
from ..engines import Arrays
from ..spec.terms import LABELS, Ref, Taker, Term
from ..utils.protocols import Array, Numbers, Parameter
from .compat import mx
from .data.arrays import new_array
from .losses import SegmentationCELoss, SequenceCELoss, class_axis, is_kind, weighted
from .metrics import BinaryAccuracy
from .metrics.host import as_metric
from .optim.parameters import statistics
from .ranks.collectives import broadcast
from .step.loss_calls import as_variable, call_loss
from .step.weights import factor

_LOSSES, _METRICS = mx.gluon.loss, mx.metric
CHUNK = 200  # MXNet takes no more arrays at once


class GluonArrays(Arrays):
    """Functions on arrays of MXNet."""

    def __init__(self, parameters: Mapping[str, Parameter], world: World) -> None:
        self._parameters, self._world = parameters, world

    def held(self, kind: str = "all") -> dict[str, list[Array]]:
        known = {name: p for name, p in self._parameters.items() if p._data is not None}
        if kind == "statistics":
            known = statistics(known)
        elif kind == "trained":
            known = {name: p for name, p in known.items() if p.grad_req != "null"}
        return {name: p.list_data() for name, p in known.items()}

    def numpy(self, array: Array) -> Numbers:
        numbers: Numbers = array.asnumpy()
        return numbers

    def copy(self, array: Array) -> Array:
        return array.copy()

    def assign(self, target: Array, source: Array) -> None:
        source.copyto(target)

    def approach(self, average: Array, value: Array, rate: float) -> Array:
        # MXNet's step of gradient descent computes a - rate (a - w) in one pass, with the value as the
        # gradient and the average as its own decay. If a parameter does not change, its average is exactly
        # equal to it, unlike with ``sgd_update``. Updating many arrays in one call takes longer than one by
        # one.
        mx.nd.multi_sgd_update(
            average, value, lrs=(rate,), wds=(1.0,), rescale_grad=-1.0, num_weights=1, out=[average]
        )
        return average

    def noise(self, arrays: Sequence[Array], sigma: float, random: Callable[..., Any] | None) -> list[Array]:
        draw = mx.nd.random.normal if random is None else random
        noises = [draw(0, sigma, shape=each.shape, dtype=each.dtype, ctx=each.context) for each in arrays]
        broadcast(self._world, noises)
        return noises

    def add(self, array: Array, other: Array) -> None:
        array += other.as_in_context(array.context)

    def is_sparse(self, array: Array) -> bool:
        sparse: bool = array.stype != "default"
        return sparse

    def all_finite(self, arrays: Sequence[Array]) -> Array:
        by_dtype: dict[Any, list[Any]] = {}
        for array in arrays:
            by_dtype.setdefault(np.dtype(array.dtype), []).append(array.tostype("default"))
        chunks = [each[i : i + CHUNK] for each in by_dtype.values() for i in range(0, len(each), CHUNK)]
        # multi_all_finite takes forty times as long
        squares = [mx.nd.multi_sum_sq(*chunk, num_arrays=len(chunk)) for chunk in chunks]
        total = mx.nd.sum(mx.nd.concat(*squares, dim=0), axis=0, keepdims=True)
        return mx.nd.contrib.isfinite(total)

    def zero_unless(self, flag: Array, arrays: Sequence[Array]) -> None:
        for array in arrays:
            if self.is_sparse(array):
                dense = array.tostype("default")
                _keep_if(dense, flag)
                dense.tostype(array.stype).copyto(array)
            else:
                _keep_if(array, flag)

    def indices(self, order: Numbers, array: Array) -> Array:
        return new_array(order, array.context, "int32")

    def take(self, array: Array, order: Array, axis: int) -> Array:
        return mx.nd.take(array, order, axis)

    def objectives(
        self, arrays: Mapping[Ref, Any], terms: Sequence[Term], scale: Any, axis: int, smoothed: bool = False
    ) -> list[Array]:
        objectives = []
        for term in terms:
            known = (arrays.get(ref) for ref in term.args if ref.space == LABELS)
            first = next(array for array in known if array is not None)
            with first.context:
                parts = call_loss(term, arrays, uniform_loss(term) if smoothed else None)
            total = _sum(parts[0 if smoothed else term.minimized], first.shape[axis])
            objectives.append(total * as_variable(factor(term, scale, first.context).astype(total.dtype)))
        return objectives

    def can_smooth(self, term: Term) -> bool:
        return uniform_loss(term) is not None

    def comparison(self, taker: Taker) -> Mapping[str, Any] | None:
        if isinstance(taker, Term):
            fn: Any = taker.spec.fn
        else:
            fn = None if getattr(taker.spec, "transform", None) else as_metric(taker)  # type: ignore[arg-type]
        axis = fn.axis if type(fn) is _METRICS.Accuracy else class_axis(fn)
        if axis is not None:
            return {"axis": axis}
        if is_kind(fn, _LOSSES.SigmoidBinaryCrossEntropyLoss):
            return {"threshold": 0.5 if fn._from_sigmoid else 0.0}
        if isinstance(fn, BinaryAccuracy):
            return {"threshold": fn.threshold}
        numbers = type(fn) in (_METRICS.MAE, _METRICS.MSE, _METRICS.RMSE)
        return {} if numbers or is_kind(fn, _LOSSES.L1Loss, _LOSSES.L2Loss, _LOSSES.HuberLoss) else None


def _keep_if(array: Array, flag: Array) -> None:
    # The array becomes a sequence of one step, which is overwritten if the length is 0. A product would not
    # work, because 0 * NaN is NaN; `where` takes six times as long. The reshaped array shares its memory with
    # the array.
    step = array.reshape((1, 1, -1))
    mx.nd.SequenceMask(step, flag, use_sequence_length=True, value=0, out=step)


def uniform_loss(term: Term) -> Callable[..., Any] | None:
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
    F = _functions(pred)
    log_prob = pred if fn._from_logits else F.log_softmax(pred, axis=fn._axis)
    loss = -F.mean(log_prob, axis=fn._axis, keepdims=True)
    loss = mx.gluon.loss._apply_weighting(F, loss, fn._weight, sample_weight)
    return F.mean(loss, axis=fn._batch_axis, exclude=True)


def _segmentation(fn: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
    F = _functions(pred)
    values = -F.mean(F.log_softmax(pred, axis=fn._axis), axis=fn._axis)
    return fn.reduce(F, values, label, sample_weight)


def _sequence(fn: Any, pred: Any, label: Any, valid_length: Any, sample_weight: Any = None) -> Any:
    # Masked twice, as in the loss: padding, even NaN, must reach neither the loss nor the gradient.
    F = _functions(pred)
    logits = fn._mask(F, fn._last(F, pred), valid_length)
    values = -F.mean(F.log_softmax(logits, axis=-1), axis=-1)
    loss = F.sum(weighted(F, fn._mask(F, values, valid_length), sample_weight), axis=1)
    return mx.gluon.loss._apply_weighting(F, loss, fn._weight)


def _functions(array: Any) -> Any:
    return mx.nd if isinstance(array, mx.nd.NDArray) else mx.sym


def _sum(value: Array, size: int) -> Array:
    total = mx.nd.reshape(mx.nd.sum(value), (1,))
    return total * size if value.size == 1 else total  # a scalar is the mean over its device's samples
