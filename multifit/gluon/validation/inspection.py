"""What one batch shows about losses and metrics, before anything is updated."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import numpy as np

from ...checks import arity_problem, describe, elementwise_problem, label_problems
from ...errors import Problem, counted
from ...protocols import Array, Metric
from ...spec import TaskSpec
from ...spec.names import OUTPUTS, SLOTS, Ref
from ...spec.terms import MetricTerm, Term
from ..compat import mx
from ..losses import SegmentationCELoss, SequenceCELoss
from ..metrics.stage_metric import StageMetric
from ..user_code import user_code
from .loss_gradient import check_loss_gradient

_LOSSES, _METRICS = mx.gluon.loss, mx.metric
ELEMENTWISE = (
    _LOSSES.L1Loss, _LOSSES.L2Loss, _LOSSES.SigmoidBinaryCrossEntropyLoss, _LOSSES.HuberLoss,
    _LOSSES.HingeLoss, _LOSSES.SquaredHingeLoss, _LOSSES.LogisticLoss, _LOSSES.KLDivLoss,
    _LOSSES.PoissonNLLLoss,
)  # fmt: skip
ELEMENTWISE_METRICS = (_METRICS.MSE, _METRICS.RMSE, _METRICS.MAE)
# These compare each output with a label; `Loss` alone takes no labels.
PAIRING = (
    _METRICS.Accuracy, _METRICS.TopKAccuracy, _METRICS.F1, _METRICS.MCC, _METRICS.CrossEntropy, _METRICS.PCC,
    _METRICS.Perplexity, _METRICS.PearsonCorrelation, *ELEMENTWISE_METRICS,
)  # fmt: skip

Named = tuple[str, Any]


def check_call(term: Term) -> list[Problem]:
    """Check how many arguments a loss takes."""
    if term.spec.fn is None:
        return []
    message = arity_problem(term.where, *_signature(term.spec.fn, [str(ref) for ref in term.args]))
    return [Problem("spec", message)] if message else []


def inspect_slots(spec: TaskSpec, devices: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Check each device's labels: that none is missing, and that they are among the declared classes."""
    first = devices[0]
    read = {ref.name for item in spec.takers for ref in item.args if ref.space == SLOTS}
    problems = [
        Problem(
            "data", f'the slot "{name}" is None, but losses or metrics take it; the batch must hold an array'
        )
        for name in first
        if first[name] is None and name in read
    ]
    for name, label in spec.label_specs.items():
        if label.classes is not None and first.get(name) is not None:
            ignored = [] if label.ignore is None else [label.ignore]
            values = np.concatenate([slots[name].asnumpy() for slots in devices])
            problems += label_problems(f'labels["{name}"]', name, values, label.classes, ignored)
    return problems


def inspect_term(
    spec: TaskSpec,
    term: Term,
    arrays: Mapping[Ref, Any],
    devices: Sequence[Mapping[str, Any]],
    own_gradients: set[str],
) -> list[Problem]:
    """Check shapes, label values, the loss's result, and that its gradient follows its weight.

    `arrays` are the first device's outputs and slots, `devices` the slots of all.
    """
    outputs = [(ref.name, arrays[ref]) for ref in term.args if ref.space == OUTPUTS]
    slots = [(ref.name, arrays[ref]) for ref in term.args if ref.space != OUTPUTS]
    with user_code(lambda: "the net's forward pass"):
        for _, output in outputs:
            output.wait_to_read()  # errors of the engine are raised here, where their place is known
    problems = _not_real(term, outputs)
    if outputs and slots and not problems:
        problems = _elementwise(term, outputs[0], slots[0])
        problems = problems or _classes(spec, term, outputs[0], slots, devices)
    return problems or check_loss_gradient(term, arrays, own_gradients)


def inspect_metric(stage_metric: StageMetric, arrays: Mapping[Ref, Any]) -> list[Problem]:
    """Check the number of a metric's arguments, and their sizes where it would broadcast."""
    term, metric = stage_metric.term, stage_metric.metric
    arguments = [str(ref) for ref in term.args] + list(term.losses)
    messages: list[str | None] = []
    if term.spec.transform is not None:
        messages = [arity_problem(f"{term.where}.transform", term.spec.transform, arguments)]
    elif not stage_metric.takes_preds:
        messages = [arity_problem(f"{term.where}.update", metric.update, arguments)]
    elif isinstance(metric, PAIRING) and len(term.outputs) + len(term.losses) != len(term.labels):
        messages = [_unpaired(term, metric)]
    elif type(metric) is _METRICS.Accuracy and not term.losses:
        messages = [
            _one_class(term, arrays[o], arrays[n], metric.axis) for o, n in zip(term.outputs, term.labels)
        ]
    elif isinstance(metric, ELEMENTWISE_METRICS) and not term.losses:
        for output, label in zip(term.outputs, term.labels):
            pair = (output.name, arrays[output]), (label.name, arrays[label])
            messages.append(elementwise_problem(term.where, *pair))
    elif not isinstance(term.spec.metric, _METRICS.EvalMetric) and not hasattr(term.spec.metric, "update"):
        messages = [
            arity_problem(term.where, term.spec.metric, ["labels", "outputs"], fix="take both, in that order")
        ]
    return [Problem("spec", message) for message in messages if message]


def _unpaired(term: MetricTerm, metric: Metric) -> str:
    outputs = counted(len(term.outputs) + len(term.losses), "output")
    labels, kind = counted(len(term.labels), "label"), type(metric).__name__
    message = f"takes {outputs} and {labels}, but {kind} compares each output with a label"
    return f"{term.where}: {message}; name as many of both"


def _one_class(term: MetricTerm, output: Array, label: Array, axis: int) -> str | None:
    if len(output.shape) != len(label.shape) + 1 or output.shape[axis] != 1:
        return None
    message = f"the output {describe.array(output)} has one class along axis {axis}, so every prediction is 0"
    return f"{term.where}: {message}; multifit.metrics.BinaryAccuracy measures logits of two classes"


def _signature(fn: Any, arguments: Sequence[str]) -> tuple[Callable[..., Any], Sequence[str], Sequence[str]]:
    if isinstance(fn, mx.gluon.HybridBlock) and type(fn).forward is mx.gluon.HybridBlock.forward:
        return fn.hybrid_forward, arguments, ["F", *fn._reg_params]
    return (fn.forward if isinstance(fn, mx.gluon.Block) else fn), arguments, []


def _not_real(term: Term, outputs: Sequence[Named]) -> list[Problem]:
    """Check that Gluon's losses get real numbers: on integers the engine fails, and may not recover."""
    stock = isinstance(term.spec.fn, mx.gluon.loss.Loss)
    return [
        Problem(
            "spec", f'{term.where}: the output "{name}" is {describe.array(array)}; a loss needs real numbers'
        )
        for name, array in outputs
        if stock and np.dtype(array.dtype).kind != "f"
    ]


def _elementwise(term: Term, output: Named, label: Named) -> list[Problem]:
    if not isinstance(term.spec.fn, ELEMENTWISE):
        return []
    message = elementwise_problem(term.where, output, label)
    return [Problem("spec", message)] if message else []


def _classes(
    spec: TaskSpec, term: Term, output: Named, slots: Sequence[Named], devices: Sequence[Mapping[str, Any]]
) -> list[Problem]:
    axis = _class_axis(term.spec.fn)
    if axis is None:
        return []
    (out_name, out), (name, label) = output, slots[0]
    classes = out.shape[axis]
    if label.size * classes != out.size:
        arrays = f'output "{out_name}" {describe.array(out)} and label "{name}" {describe.array(label)}'
        rows = f"{out.size // classes} rows of {classes} classes"
        message = f"{term.where}: {arrays} do not fit; the output's {rows} need one class index each"
        return [Problem("spec", message)]
    others = [other for other, _ in slots[1:]]
    values = [_counting(each[name].asnumpy(), [each[n].asnumpy() for n in others]) for each in devices]
    return label_problems(term.where, name, np.concatenate(values), classes, _ignored(spec, term, name))


def _class_axis(fn: Any) -> int | None:
    """Return the class axis of a loss that takes class indices and would clip them; None for other losses."""
    if isinstance(fn, SegmentationCELoss):
        return fn._axis
    if not getattr(fn, "_sparse_label", False):
        return None
    if isinstance(fn, SequenceCELoss):
        return -1 if fn._classes_last else 1
    return fn._axis if isinstance(fn, mx.gluon.loss.SoftmaxCrossEntropyLoss) else None


def _counting(values: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Return the labels, with 0 where they do not count: where a weight is 0, or past a sequence's length."""
    for other in others:
        if other.size == values.size:
            values = np.where(other.reshape(values.shape) == 0, 0, values)
        elif values.ndim > 1 and other.shape == values.shape[:1]:
            steps = np.arange(values.shape[1]).reshape(1, -1, *[1] * (values.ndim - 2))
            values = np.where(steps < other.reshape(-1, *[1] * (values.ndim - 1)), values, 0)
    return values


def _ignored(spec: TaskSpec, term: Term, name: str) -> list[float]:
    """Return the values that stand for "no label"; a LabelSpec alone does not make a loss ignore them."""
    by_loss = getattr(term.spec.fn, "_ignore_label", None)
    label = spec.label_specs.get(name)
    masked = len(term.args) > 2 and label is not None and label.ignore is not None
    return ([] if by_loss is None else [by_loss]) + ([label.ignore] if masked and label else [])
