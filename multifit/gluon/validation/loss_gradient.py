"""Check a loss on copies of the first batch: its result, and that its gradient follows its weight."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from ...checks import describe
from ...errors import Problem, counted
from ...protocols import Array
from ...spec.names import OUTPUTS, Ref, listed
from ...spec.terms import Term
from ..compat import mx
from ..execution.loss_graph import call_loss
from ..losses import SegmentationCELoss
from ..user_code import user_code

TRUSTED = ("mxnet.gluon.loss", SegmentationCELoss.__module__)  # modules whose losses follow their weight


def check_loss_gradient(term: Term, arrays: Mapping[Ref, Any]) -> list[Problem]:
    """Check the result of a loss, and that its gradient follows its weight, on copies of its arguments.

    A loss built on an operator with its own gradient (SoftmaxOutput) silently ignores its weight and its
    normaliser. No parameter and no gradient of the net is changed.
    """
    copies = {ref: None if arrays[ref] is None else arrays[ref].detach() for ref in term.args}
    outputs = [copies[ref] for ref in term.args if ref.space == OUTPUTS]
    trusted = type(term.spec.fn).__module__ in TRUSTED
    variables = [a for a in outputs if not trusted and a is not None and np.dtype(a.dtype).kind == "f"]
    for variable in variables:
        variable.attach_grad()
    batch_scope = term.spec.scope == "batch"
    with mx.autograd.record(train_mode=False) if variables else mx.autograd.pause(train_mode=False):
        values = call_loss(term, {ref: [copy] for ref, copy in copies.items()} if batch_scope else copies)
    is_double = any(np.dtype(array.dtype) == "float64" for array in outputs if array is not None)
    message = _result_problem(term, values, "float64" if is_double else "float32")
    if message is None:
        minimized = values[term.minimized] if not batch_scope or term.spec.returns else values
        losses = list(minimized) if isinstance(minimized, (list, tuple)) else [minimized]
        with user_code(lambda: term.where, *((str(ref), copy) for ref, copy in copies.items())):
            for loss in losses:
                loss.wait_to_read()  # errors of the engine are raised here, where their place is known
        message = None if not variables or _follows_weight(losses, variables) else _ignores_weight(term)
    return [] if message is None else [Problem("spec", f"{term.where}: {message}")]


def _result_problem(term: Term, values: Sequence[Any], dtype: str) -> str | None:
    declared, batch_scope = listed(term.spec.returns), term.spec.scope == "batch"
    leaves = [leaf for value in values for leaf in (value if isinstance(value, (list, tuple)) else [value])]
    per_device = batch_scope and not declared and all(isinstance(value, mx.nd.NDArray) for value in values)
    returned = describe.structure(list(values))
    if not values or not all(isinstance(leaf, mx.nd.NDArray) for leaf in leaves):
        return f"returns {returned[1:-1] or 'nothing'}; a loss must return an array, or several"
    if declared and len(values) != len(declared):
        parts = f"returns= names {len(declared)}: {', '.join(declared)}"
        return (
            f"returns {counted(len(values), 'part')}, {returned}, but {parts}; name each part that it returns"
        )
    if not declared and len(values) > 1 and not per_device:
        way_out = "name them with returns=[...], and the one that counts with minimize="
        return f"returns {len(values)} parts, {returned}; {way_out}"
    kinds = {np.dtype(leaf.dtype).name for leaf in leaves}
    if not kinds <= {"float32", dtype}:
        return f'returns {returned[1:-1]}; a loss must return {dtype}: cast it, with astype("{dtype}")'
    nested = [leaf for value in values if isinstance(value, (list, tuple)) for leaf in value]
    if nested and not batch_scope:
        return f'returns {returned}, lists within parts; that is for scope="batch" only'
    return None


def _ignores_weight(term: Term) -> str:
    name = getattr(term.spec.fn, "__name__", type(term.spec.fn).__name__)
    return (
        f"{name} ignores its weight: an incoming gradient four times as large gave the same gradient, so "
        "weights and normalisation have no effect; use a loss made of log_softmax and pick, such as "
        "multifit.losses.SegmentationCELoss"
    )


def _follows_weight(losses: list[Array], variables: list[Array]) -> bool:
    try:
        ones, fours = (_gradients(losses, variables, scale) for scale in (1.0, 4.0))
    except mx.base.MXNetError:
        return True  # unknown: it does not depend on these outputs, or cannot be differentiated
    for one, four in ((one.asnumpy(), four.asnumpy()) for one, four in zip(ones, fours)):
        decidable = np.isfinite(one).all() and np.abs(one).max(initial=0.0) > 0
        if decidable and not np.allclose(four, 4 * one, rtol=1e-3, atol=1e-12):
            return False
    return True


def _gradients(losses: list[Array], variables: list[Array], scale: float) -> list[Array]:
    incoming = [mx.nd.full(loss.shape, scale, ctx=loss.context, dtype=loss.dtype) for loss in losses]
    return mx.autograd.grad(losses, variables, incoming, retain_graph=True, train_mode=False)
