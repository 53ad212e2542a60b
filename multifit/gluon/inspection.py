"""What one batch tells about losses and metrics before anything is updated."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import numpy as np

from ..checks import arity_problem, describe, elementwise_problem, label_problems
from ..errors import Problem
from ..spec import TaskSpec
from ..spec.names import Ref, listed
from ..spec.terms import Term
from .compat import mx
from .head import call_term
from .measures import Measure

__all__ = ["check_call", "inspect_metric", "inspect_slots", "inspect_term"]

_LOSSES = mx.gluon.loss
ELEMENTWISE = (
    _LOSSES.L1Loss, _LOSSES.L2Loss, _LOSSES.SigmoidBinaryCrossEntropyLoss, _LOSSES.HuberLoss, _LOSSES.HingeLoss,
    _LOSSES.SquaredHingeLoss, _LOSSES.LogisticLoss, _LOSSES.KLDivLoss, _LOSSES.PoissonNLLLoss,
)  # fmt: skip
ELEMENTWISE_METRICS = (mx.metric.MSE, mx.metric.RMSE, mx.metric.MAE)


def check_call(term: Term) -> list[Problem]:
    """Check how many arguments a loss takes."""
    fn, given = term.spec.fn, [str(ref) for ref in term.args]
    if fn is None or not callable(fn):
        return []
    wrong = arity_problem(term.where, *_signature(fn, given))
    return [Problem("spec", wrong)] if wrong else []


def inspect_term(spec: TaskSpec, term: Term, arrays: Mapping[Ref, Any]) -> list[Problem]:
    """Check shapes, label values, what the loss returns, and that it obeys its weight."""
    outputs = [(ref.name, arrays[ref]) for ref in term.args if ref.space == "outputs"]
    labels = [(ref.name, arrays[ref]) for ref in term.args if ref.space != "outputs"]
    problems: list[Problem] = []
    if outputs and labels:
        problems = _elementwise(term, outputs[0], labels[0]) + _classes(spec, term, outputs[0], labels[0])
    return problems or _probe(term, arrays)


def inspect_metric(measure: Measure, arrays: Mapping[Ref, Any]) -> list[Problem]:
    """Check how many arguments a metric takes, and sizes where it would broadcast."""
    term, messages = measure.term, []
    given = [str(ref) for ref in term.args] + list(term.losses)
    if not measure.stock and term.spec.transform is None:
        messages.append(arity_problem(f"{term.where}.update", measure.metric.update, given))
    elif term.spec.transform is not None:
        messages.append(arity_problem(f"{term.where}.transform", term.spec.transform, given))
    elif isinstance(measure.metric, ELEMENTWISE_METRICS) and not term.losses:
        pairs = zip(term.outputs, term.labels)
        messages += [
            elementwise_problem(term.where, (o.name, arrays[o]), (n.name, arrays[n])) for o, n in pairs
        ]
    return [Problem("spec", message) for message in messages if message]


def inspect_slots(spec: TaskSpec, slots: Mapping[str, Any]) -> list[Problem]:
    """Check labels against the number of classes that a LabelSpec declares."""
    problems = []
    for name, label in spec.label_specs.items():
        if label.classes is not None and slots.get(name) is not None:
            values = slots[name].asnumpy()
            problems += label_problems(
                f'labels["{name}"]', name, values, label.classes, _ignored(spec, name, None)
            )
    return problems


def _signature(fn: Any, given: Sequence[str]) -> tuple[Callable[..., Any], Sequence[str], Sequence[str]]:
    if isinstance(fn, mx.gluon.HybridBlock) and type(fn).forward is mx.gluon.HybridBlock.forward:
        return fn.hybrid_forward, given, ["F", *fn._reg_params]
    return (fn.forward if isinstance(fn, mx.gluon.Block) else fn), given, []


def _elementwise(term: Term, output: tuple[str, Any], label: tuple[str, Any]) -> list[Problem]:
    if not isinstance(term.spec.fn, ELEMENTWISE):
        return []
    wrong = elementwise_problem(term.where, output, label)
    return [Problem("spec", wrong)] if wrong else []


def _classes(spec: TaskSpec, term: Term, output: tuple[str, Any], label: tuple[str, Any]) -> list[Problem]:
    fn = term.spec.fn
    if not getattr(fn, "_sparse_label", False) or not hasattr(fn, "_axis"):
        return []
    (out_name, out), (name, values) = output, label
    classes = out.shape[fn._axis]
    if values.size * classes != out.size:
        found = f'output "{out_name}" {describe.array(out)} and label "{name}" {describe.array(values)}'
        message = f"{term.where}: {found} differ in size; one class index is needed for each of the output's {out.size // classes} rows"
        return [Problem("spec", message)]
    return label_problems(term.where, name, values.asnumpy(), classes, _ignored(spec, name, fn))


def _ignored(spec: TaskSpec, name: str, fn: Any) -> list[float]:
    label = spec.label_specs.get(name)
    values = [label.ignore if label else None, getattr(fn, "_ignore_label", None)]
    return [value for value in values if value is not None]


def _probe(term: Term, arrays: Mapping[Ref, Any]) -> list[Problem]:
    """Call the loss on detached copies, and see whether its gradient follows the head gradient.

    A loss built on an operator that makes its own gradient (SoftmaxOutput) ignores both its weight and its
    normaliser without a word.
    """
    copies = {ref: arrays[ref].detach() if arrays[ref] is not None else None for ref in term.args}
    variables = [
        copies[ref] for ref in term.args if ref.space == "outputs" and copies[ref].dtype == np.float32
    ]
    for variable in variables:
        variable.attach_grad()
    joint = term.spec.scope == "batch"
    with mx.autograd.record(train_mode=False):
        values = call_term(term, {ref: [copy] for ref, copy in copies.items()} if joint else copies)
    problems = _returned(term, values)
    if problems:
        return problems
    part = values[term.minimized] if not joint or term.spec.returns else values
    heads = list(part) if isinstance(part, (list, tuple)) else [part]
    if not variables or _obeys(heads, variables):
        return []
    message = (
        f"{term.where}: {getattr(term.spec.fn, '__name__', type(term.spec.fn).__name__)} does not obey its weight: a head gradient four times as large "
        "gave the same gradient, so weights and normalisation have no effect; use a loss made of log_softmax and pick, "
        "such as multifit.losses.SegmentationCELoss"
    )
    return [Problem("spec", message)]


def _returned(term: Term, values: Sequence[Any]) -> list[Problem]:
    declared = listed(term.spec.returns)
    joint = term.spec.scope == "batch"
    leaves = [leaf for value in values for leaf in (value if isinstance(value, (list, tuple)) else [value])]
    wrong = [leaf for leaf in leaves if not isinstance(leaf, mx.nd.NDArray)]
    if wrong or not values:
        message = f"{term.where}: returns {describe.arrays(values)}; a loss must return arrays"
    elif declared and len(values) != len(declared):
        message = f"{term.where}: returns {len(values)} parts, {describe.structure(values)}, but returns= names {len(declared)}: {', '.join(declared)}"
    elif (
        not declared and len(values) > 1 and not (joint and all(isinstance(v, mx.nd.NDArray) for v in values))
    ):
        message = f"{term.where}: returns {len(values)} parts, {describe.structure(values)}; name them with returns=[...], and the one that counts with minimize="
    else:
        return []
    return [Problem("spec", message)]


def _obeys(heads: list[Any], variables: list[Any]) -> bool:
    try:
        once, four = (
            mx.autograd.grad(heads, variables, [mx.nd.full(h.shape, scale, ctx=h.context, dtype=h.dtype) for h in heads],
                             retain_graph=True, train_mode=False)
            for scale in (1.0, 4.0)
        )  # fmt: skip
    except mx.base.MXNetError:
        return (
            True  # the loss does not depend on these outputs, or cannot be differentiated: not for us to say
        )
    for a, b in zip(once, four):
        a, b = a.asnumpy(), b.asnumpy()
        if (
            np.isfinite(a).all()
            and np.abs(a).max(initial=0.0) > 0
            and not np.allclose(b, 4 * a, rtol=1e-3, atol=1e-12)
        ):
            return False
    return True
