"""What a loss returns, and whether its gradient follows its weight: seen on copies of the first batch."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from ...checks import describe
from ...errors import Problem, counted
from ...spec.names import OUTPUTS, Ref, listed
from ...spec.terms import Term
from ..compat import mx
from ..execution.loss_graph import call_loss
from ..losses import SegmentationCELoss
from ..user_code import user_code

__all__ = ["check_loss_gradient"]

OBEDIENT = ("mxnet.gluon.loss", SegmentationCELoss.__module__)  # losses made of operators that obey


def check_loss_gradient(term: Term, arrays: Mapping[Ref, Any]) -> list[Problem]:
    """Call the loss on detached copies of its arguments; see what it returns and whether it obeys its weight.

    A loss built on an operator that makes its own gradient (SoftmaxOutput) ignores both its weight and its
    normaliser without a word. No parameter and no gradient of the net is touched.
    """
    copies = {ref: None if arrays[ref] is None else arrays[ref].detach() for ref in term.args}
    variables = [copies[ref] for ref in term.args if ref.space == OUTPUTS and _is_real(copies[ref])]
    if type(term.spec.fn).__module__ in OBEDIENT:
        variables = []
    for variable in variables:
        variable.attach_grad()
    joint = term.spec.scope == "batch"
    with mx.autograd.record(train_mode=False) if variables else mx.autograd.pause(train_mode=False):
        values = call_loss(term, {ref: [copy] for ref, copy in copies.items()} if joint else copies)
    message = _returned(term, values)
    if message is None:
        part = values[term.minimized] if not joint or term.spec.returns else values
        heads = list(part) if isinstance(part, (list, tuple)) else [part]
        with user_code(lambda: term.where, *((str(ref), copy) for ref, copy in copies.items())):
            for head in heads:
                head.wait_to_read()  # what fails in the engine fails here, where it can be named
        message = None if not variables or _obeys(heads, variables) else _disobedient(term)
    return [] if message is None else [Problem("spec", f"{term.where}: {message}")]


def _is_real(array: Any) -> bool:
    return array is not None and np.dtype(array.dtype).kind == "f"


def _returned(term: Term, values: Sequence[Any]) -> str | None:
    declared, joint = listed(term.spec.returns), term.spec.scope == "batch"
    leaves = [leaf for value in values for leaf in (value if isinstance(value, (list, tuple)) else [value])]
    per_device = joint and not declared and all(isinstance(value, mx.nd.NDArray) for value in values)
    found = describe.structure(list(values))
    if not values or not all(isinstance(leaf, mx.nd.NDArray) for leaf in leaves):
        return f"returns {found[1:-1] or 'nothing'}; a loss must return an array, or several"
    if declared and len(values) != len(declared):
        parts = f"returns= names {len(declared)}: {', '.join(declared)}"
        return f"returns {counted(len(values), 'part')}, {found}, but {parts}; name each part that it returns"
    if not declared and len(values) > 1 and not per_device:
        way = "name them with returns=[...], and the one that counts with minimize="
        return f"returns {len(values)} parts, {found}; {way}"
    kinds = {np.dtype(leaf.dtype).name for leaf in leaves}
    if kinds != {"float32"}:
        return f'returns {found[1:-1]}; a loss must return float32: cast it, with astype("float32")'
    nested = [leaf for value in values if isinstance(value, (list, tuple)) for leaf in value]
    if nested and not joint:
        return f'returns {found}, lists within parts; that is for scope="batch" only'
    return None


def _disobedient(term: Term) -> str:
    name = getattr(term.spec.fn, "__name__", type(term.spec.fn).__name__)
    return (
        f"{name} does not obey its weight: a head gradient four times as large gave the same gradient, so "
        "weights and normalisation have no effect; use a loss made of log_softmax and pick, such as "
        "multifit.losses.SegmentationCELoss"
    )


def _obeys(heads: list[Any], variables: list[Any]) -> bool:
    try:
        once, four = (_gradients(heads, variables, scale) for scale in (1.0, 4.0))
    except mx.base.MXNetError:
        # it does not depend on these outputs, or cannot be differentiated: not for us to say
        return True
    for a, b in zip(once, four):
        a, b = a.asnumpy(), b.asnumpy()
        decidable = np.isfinite(a).all() and np.abs(a).max(initial=0.0) > 0
        if decidable and not np.allclose(b, 4 * a, rtol=1e-3, atol=1e-12):
            return False
    return True


def _gradients(heads: list[Any], variables: list[Any], scale: float) -> Any:
    head_grads = [mx.nd.full(h.shape, scale, ctx=h.context, dtype=h.dtype) for h in heads]
    return mx.autograd.grad(heads, variables, head_grads, retain_graph=True, train_mode=False)
