"""Check a loss on copies of the first batch: its result, and that its gradient scales with its weight."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from ...checks import describe
from ...errors import Problem, counted
from ...protocols import Array
from ...spec.names import Ref, listed
from ...spec.terms import Term
from ..compat import mx
from ..execution.loss_calls import call_loss, detached
from ..losses import SegmentationCELoss
from ..user_code import wait_for

TRUSTED = ("mxnet.gluon.loss", SegmentationCELoss.__module__)  # modules whose losses are known to do so
NO_GRADIENT = (
    "returns numbers that autograd has not computed from the outputs, so they train nothing; compute "
    "them from the outputs, without asnumpy(), detach() or autograd.pause(), or give weight=0 to only "
    "measure the loss"
)


def check_loss_gradient(
    term: Term, arrays: Mapping[Ref, Any], own_gradients: set[str], training: bool
) -> list[Problem]:
    """Check the result of a loss, and that its gradient scales with its weight, on copies of its arguments.

    A loss built on an operator with its own gradient (SoftmaxOutput) silently ignores its weight and its
    normalizer. With a weight of 1 it is added to `own_gradients`: a step then scales the gradient that it
    returns. When `training`, a loss without a gradient is an error, unless the loss is 0, because there may
    be nothing to learn in the batch. No parameter and no gradient of the net is changed.
    """
    copies = detached(term, arrays)
    outputs = [copies[ref] for ref in term.outputs]
    trusted = type(term.spec.fn).__module__ in TRUSTED
    variables = [a for a in outputs if not trusted and a is not None and np.dtype(a.dtype).kind == "f"]
    for variable in variables:
        variable.attach_grad()
    with mx.autograd.record(train_mode=False) if variables else mx.autograd.pause(train_mode=False):
        values = call_loss(term, copies)
    is_double = any(np.dtype(array.dtype) == "float64" for array in outputs if array is not None)
    message = _result_problem(term, values, "float64" if is_double else "float32")
    if message is None:
        losses = [values[term.minimized]]
        wait_for(losses, lambda: term.where, *((str(ref), copy) for ref, copy in copies.items()))
        if variables and training and _is_constant(term, copies, losses):
            message = NO_GRADIENT
        elif variables:
            message = _weight_problem(term, copies, losses, variables, own_gradients)
    return [] if message is None else [Problem("spec", f"{term.where}: {message}")]


def is_recorded(array: mx.nd.NDArray) -> bool:
    """Whether autograd knows the origin of an array: it is a variable, or was computed from one."""
    try:
        mx.autograd.get_symbol(array)
    except mx.base.MXNetError:
        return False
    return True


def _result_problem(term: Term, values: Sequence[Any], dtype: str) -> str | None:
    declared, returned = listed(term.spec.returns), describe.structure(list(values))
    if not values or not all(isinstance(value, mx.nd.NDArray) for value in values):
        return f"returns {returned[1:-1] or 'nothing'}; a loss must return an array, or several"
    if declared and len(values) != len(declared):
        parts = f"returns= names {len(declared)}: {', '.join(declared)}"
        return (
            f"returns {counted(len(values), 'part')}, {returned}, but {parts}; name each part that it returns"
        )
    if not declared and len(values) > 1:
        way_out = "name them with returns=[...], and the one that counts with minimize="
        return f"returns {len(values)} parts, {returned}; {way_out}"
    kinds = {np.dtype(value.dtype).name for value in values}
    if not kinds <= {"float32", dtype}:
        return f'returns {returned[1:-1]}; a loss must return {dtype}: cast it, with astype("{dtype}")'
    return None


def _is_constant(term: Term, copies: Mapping[Ref, Any], losses: list[Array]) -> bool:
    """Whether a loss with a weight is not 0, but was not computed from its outputs by autograd."""
    is_suspect = term.spec.weight != 0 and not any(map(is_recorded, losses))
    if not is_suspect or not any(loss.asnumpy().any() for loss in losses):
        return False
    with mx.autograd.record():  # some losses have a gradient in training mode only
        return not is_recorded(call_loss(term, copies)[term.minimized])


def _weight_problem(
    term: Term,
    copies: Mapping[Ref, Any],
    losses: list[Array],
    variables: list[Array],
    own_gradients: set[str],
) -> str | None:
    try:
        gradients = [_gradients(losses, variables, scale) for scale in (1.0, 4.0)]
    except mx.base.MXNetError:
        return None  # unknown: the loss does not depend on these outputs, or cannot be differentiated
    pairs = [(one.asnumpy(), four.asnumpy()) for one, four in zip(*gradients)]
    decidable = [
        (one, four) for one, four in pairs if np.isfinite(one).all() and np.abs(one).max(initial=0.0) > 0
    ]
    if all(_equal(four, 4 * one) for one, four in decidable):
        return None
    is_plain = term.spec.weight == 1 and term.counts_samples
    ignored = all(_equal(four, one) for one, four in decidable)
    if is_plain and ignored and _decreases(term, copies, losses, variables, gradients[0]):
        own_gradients.add(term.key)
        return None
    name = getattr(term.spec.fn, "__name__", type(term.spec.fn).__name__)
    same = "the same gradient" if ignored else "one that is not four times as large"
    return (
        f"{name} ignores its weight: an incoming gradient four times as large gave {same}, so weights and "
        "normalisation have no effect; train it with weight=1 if it returns the loss itself, or use one made "
        "of log_softmax and pick, such as multifit.losses.SegmentationCELoss"
    )


def _equal(gradient: np.ndarray, other: np.ndarray) -> bool:
    return np.allclose(gradient, other, rtol=1e-3, atol=1e-12)


def _gradients(losses: list[Array], variables: list[Array], scale: float) -> list[Array]:
    incoming = [mx.nd.full(loss.shape, scale, ctx=loss.context, dtype=loss.dtype) for loss in losses]
    return mx.autograd.grad(losses, variables, incoming, retain_graph=True, train_mode=False)


def _decreases(
    term: Term,
    copies: Mapping[Ref, Any],
    losses: list[Array],
    variables: list[Array],
    gradients: list[Array],
) -> bool:
    """Whether a loss decreases along its gradient; SoftmaxOutput returns probabilities, which do not."""
    rate = 0.1 / max(float(mx.nd.abs(gradient).max().asscalar()) for gradient in gradients)
    stepped = {id(array): array - rate * gradient for array, gradient in zip(variables, gradients)}
    with mx.autograd.pause(train_mode=False):
        values = call_loss(term, {ref: stepped.get(id(copy), copy) for ref, copy in copies.items()})
    before, after = (
        sum(float(mx.nd.sum(array).asscalar()) for array in arrays)
        for arrays in (losses, [values[term.minimized]])
    )
    return before - after > 1e-5 * abs(before)
