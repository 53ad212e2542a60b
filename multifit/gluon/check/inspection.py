"""Check losses and metrics on one batch, before anything is updated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from ...engines.metric_figures import function_arity_problem
from ...engines.prediction import joined
from ...engines.scikit import shape_problem
from ...spec import TaskSpec
from ...spec.checks import describe, results
from ...spec.checks.values import (
    axis_problem,
    elementwise_problem,
    label_problems,
    not_finite_problem,
    partly_missing_problem,
)
from ...spec.parsing import label_of
from ...spec.terms import MetricTerm, Ref, Taker, Term, by_reference
from ...utils.errors import Problem, SpecError
from ...utils.protocols import Array, Metric
from ...utils.signatures import arity_problem
from ...utils.text import counted, last_line
from ..compat import mx
from ..data.batch import Batch
from ..losses import ELEMENTWISE, SegmentationCELoss, SequenceCELoss, class_axis, is_kind
from ..metrics.catalogue import READING, updates_as, value_axis
from ..metrics.classification import BinaryAccuracy
from ..metrics.host import copy_metric, is_function, present_arrays, update_metric
from ..metrics.labels import LabelRule, count_in_part
from ..metrics.stage_metric import StageMetric
from ..step.loss_calls import call_loss
from ..user_code import wait_for

_CE = mx.gluon.loss.SoftmaxCrossEntropyLoss
_METRICS = mx.metric
ELEMENTWISE_METRICS = (_METRICS.MSE, _METRICS.RMSE, _METRICS.MAE, BinaryAccuracy)
# These compare each output with a label; of MXNet's metrics, only `Loss` takes no labels.
PAIRING = (
    _METRICS.Accuracy, _METRICS.TopKAccuracy, _METRICS.F1, _METRICS.MCC, _METRICS.CrossEntropy, _METRICS.PCC,
    _METRICS.NegativeLogLikelihood, _METRICS.Perplexity, _METRICS.PearsonCorrelation, *ELEMENTWISE_METRICS,
)  # fmt: skip
ALONG_AXIS_1 = (_METRICS.F1, _METRICS.MCC, _METRICS.PCC)  # these expect the classes along axis 1
# these take class indices, of which there are fewer than scores
TAKING_INDICES = (
    _METRICS.TopKAccuracy, _METRICS.F1, _METRICS.MCC, _METRICS.CrossEntropy, _METRICS.NegativeLogLikelihood,
    _METRICS.Perplexity,
)  # fmt: skip

# modules whose losses have a gradient, which scales with their weight
TRUSTED = ("mxnet.gluon.loss", SegmentationCELoss.__module__)
NO_GRADIENT = results.NO_GRADIENT.format("asnumpy(), detach() or autograd.pause()")
# of losses that ignore their weight
WAY_OUT = (
    "train it with weight=1 if it returns the loss itself, or use one made of log_softmax and pick, such as "
    "multifit.losses.SegmentationCELoss"
)

Named = tuple[str, Any]


def check_call(term: Term) -> list[Problem]:
    """Check how many arguments a loss takes."""
    if term.spec.fn is None:
        return []
    message = arity_problem(term.where, *_signature(term.spec.fn, [str(ref) for ref in term.args]))
    return [Problem("spec", message)] if message else []


def inspect_slots(spec: TaskSpec, devices: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Check that no slot that a loss or metric takes is None, and that no weight of a sample is negative."""

    def least(name: str) -> float | None:
        weights: list[Any] = [slots[name] for slots in devices if slots.get(name) is not None]
        return min((array.asnumpy().min(initial=0) for array in weights), default=None)

    return results.absent_problems(spec, devices[0]) + results.weights_problems(spec, least)


def inspect_labels(rules: Sequence[LabelRule], batch: Batch) -> list[Problem]:
    """Check the values of all devices' inputs and labels."""
    problems: list[Problem] = []
    for rule in rules:
        if rule.classes is None:
            problems += _not_finite(rule, batch)
            continue
        pieces, same = [], replace(rule, output=None)  # with the first device's number of classes
        for arrays in (by_reference({}, slots) for slots in batch.slots):
            values, wrong = arrays[rule.label].asnumpy(), same.violations(mx.nd, arrays).asnumpy()
            pieces.append(np.where(wrong != 0, values, np.zeros_like(values)))
        whole = joined(pieces, batch.sizes, batch.axis)
        labels = whole if isinstance(whole, list) else [whole]  # pieces of different lengths stay a list
        per_array = (label_problems(rule.where, rule.label.name, values, rule.classes) for values in labels)
        problems += next(filter(None, per_array), [])
    return problems


def inspect_presence(taker: Taker, batch: Batch) -> list[Problem]:
    """Check that no sample lacks only a part of a label, for a loss or a metric that takes whole samples."""
    problems = []
    for ref in taker.present:
        masks: list[Any] = [slots[ref.name] for slots in batch.slots]
        if count := sum(map(count_in_part, masks)):
            problems.append(partly_missing_problem(taker.where, label_of(ref).name, "", count))
    return problems


def _not_finite(rule: LabelRule, batch: Batch) -> list[Problem]:
    """Check that a slot's numbers are finite; the arrays are read only if some are not."""
    devices = [by_reference({}, slots) for slots in batch.slots]
    if not any(rule.count(mx.nd, arrays).asscalar() for arrays in devices):
        return []
    pieces = [arrays[rule.label].asnumpy() for arrays in devices]
    indices = [np.nonzero(~np.isfinite(piece)) for piece in pieces]
    starts = accumulate(batch.sizes, initial=0)
    samples = sorted({start + int(at) for start, each in zip(starts, indices) for at in each[batch.axis]})
    wrong = np.concatenate([piece[each] for piece, each in zip(pieces, indices)])
    return [not_finite_problem(rule.where, wrong, samples)]


def inspect_term(
    term: Term, arrays: Mapping[Ref, Any], labels_fit: bool, training: bool
) -> tuple[list[Problem], bool]:
    """Check shapes on one device's arrays and, if the labels are valid, the loss's result and gradient.

    Returns the problems, and whether the loss ignores the gradient that it receives.
    """
    outputs = [(ref.name, arrays[ref]) for ref in term.outputs]
    slots = [(ref.name, arrays[ref]) for ref in term.labels]
    problems = _not_real(term, outputs)
    if outputs and slots and not problems:
        pair = outputs[0], slots[0]
        problems = _elementwise(term, *pair) or _classes(term, *pair) or _class_weights(term, outputs[0][1])
    if problems or not labels_fit:
        return problems, False
    message, ignores_gradient = _check_result(term, arrays, training)
    return [] if message is None else [Problem("spec", f"{term.where}: {message}")], ignores_gradient


def inspect_metric(stage_metric: StageMetric, arrays: Mapping[Ref, Any]) -> list[Problem]:
    """Check the number of a metric's arguments, and whether a stock metric can compare them."""
    term, metric = stage_metric.term, stage_metric.metric
    arguments = [str(ref) for ref in term.args] + list(term.losses)
    messages: list[str | None] = []
    if term.spec.transform is not None:
        messages = [arity_problem(f"{term.where}.transform", term.spec.transform, arguments)]
    elif not stage_metric.takes_preds:
        messages = [arity_problem(f"{term.where}.update", metric.update, arguments)]
    elif isinstance(metric, PAIRING) and len(term.outputs) + len(term.losses) != len(term.labels):
        outputs = f"{counted(len(term.outputs) + len(term.losses), 'output')} and"
        fix = f"{type(metric).__name__} compares each output with a label; name as many of both"
        messages = [f"{term.where}: takes {outputs} {counted(len(term.labels), 'label')}, but {fix}"]
    elif isinstance(metric, PAIRING) and not term.losses:
        messages = list(_comparing(term, metric, arrays))
    elif is_function(metric):
        weights = int(term.spec.sample_weight is not None)
        messages = [function_arity_problem(term)]
        if (len(term.outputs), len(term.labels), len(term.losses)) == (1, 1 + weights, 0):
            pair = [(ref.name, arrays[ref]) for ref in (term.outputs[0], term.labels[0])]
            messages.append(shape_problem(term.where, metric.function, *pair))
    return [Problem("spec", message) for message in messages if message]


def _comparing(term: MetricTerm, metric: Metric, arrays: Mapping[Ref, Any]) -> Iterator[str | None]:
    """Check a stock metric that compares outputs with labels; if shapes fit, update a copy of the metric."""
    messages: list[str | None] = []
    for output, label in zip(term.outputs, term.labels):
        scores, classes = arrays[output], arrays[label]
        are_alike = scores.shape == classes.shape
        if isinstance(metric, ELEMENTWISE_METRICS):
            messages.append(elementwise_problem(term.where, (output.name, scores), (label.name, classes)))
        elif are_alike and updates_as(metric, *TAKING_INDICES):
            messages.append(
                _one_class(term, scores, metric, 1) or _one_shape(term, metric, output, label, scores)
            )
        elif not (are_alike and updates_as(metric, *READING)):
            axis = 1 if type(metric) in ALONG_AXIS_1 else getattr(metric, "axis", None)
            if axis is not None:
                messages.append(
                    axis_problem(term.where, metric, output.name, scores, axis)
                    or _one_class(term, scores, metric, axis)
                )
    yield from messages
    known = {} if any(messages) else _known(term, metric, arrays)
    if updates_as(metric, *PAIRING) and known:
        outputs, labels = (
            [known[ref] for ref in refs if ref in known] for refs in (term.outputs, term.labels)
        )
        try:
            update_metric(term.where, copy_metric(metric), labels, outputs)
        except SpecError as error:
            yield str(error.problems[0])
        except Exception as error:  # whatever the metric's own arithmetic raises
            compared = f"{describe.arrays(outputs)} with {describe.arrays(labels)}"
            yield f"{term.where}: {type(metric).__name__} cannot compare {compared}: {last_line(error)}"


def _known(term: MetricTerm, metric: Metric, arrays: Mapping[Ref, Any]) -> Mapping[Ref, Any]:
    """Return the arrays that a metric would be updated with: without what is missing."""
    if not term.present:
        return arrays
    present = present_arrays(term, value_axis(term, metric, arrays), arrays, {})
    return {} if present is None else present[0]


def _one_shape(term: MetricTerm, metric: Metric, output: Ref, label: Ref, scores: Array) -> str:
    names = f'output "{output.name}" and label "{label.name}" are both {describe.array(scores)}'
    takes = f"{type(metric).__name__} takes one class index for the scores of each sample"
    way_out = "transform=lambda scores, label: (label.argmax(axis=1), scores)"
    return f"{term.where}: {names}, and {takes}; if labels are one-hot, give {way_out}"


def _one_class(term: MetricTerm, output: Array, metric: Metric, axis: int) -> str | None:
    """Check that there are at least two classes for a metric that takes the class of the largest score."""
    kind, is_row = type(metric), len(output.shape) == 1
    if not (is_row or output.shape[axis] == 1) or not (kind is _METRICS.Accuracy or kind in ALONG_AXIS_1):
        return None
    along = "" if is_row else f" along axis {axis}"
    found = f"the output {describe.array(output)} has one class{along}"
    message = f"{term.where}: {found}, so every prediction is 0"
    binary = "multifit.metrics.BinaryAccuracy measures logits of two classes"
    if kind is _METRICS.Accuracy:
        return f"{message}; {binary}"
    both = "stack(-logit, logit, axis=1)" if is_row else "concat(-logit, logit)"
    columns = f"transform=lambda logit, label: (label, mx.nd.{both})"
    return f"{message}; give {kind.__name__} a score for each class, for logits by {columns}"


def _signature(fn: Any, arguments: Sequence[str]) -> tuple[Callable[..., Any], Sequence[str], Sequence[str]]:
    if isinstance(fn, mx.gluon.HybridBlock) and type(fn).forward is mx.gluon.HybridBlock.forward:
        return fn.hybrid_forward, arguments, ["F", *fn._reg_params]
    return (fn.forward if isinstance(fn, mx.gluon.Block) else fn), arguments, []


def _not_real(term: Term, outputs: Sequence[Named]) -> list[Problem]:
    """Check that Gluon's losses get real numbers: with integers MXNet fails, and may not recover."""
    stock = isinstance(term.spec.fn, mx.gluon.loss.Loss)
    return [
        Problem(
            "spec", f'{term.where}: the output "{name}" is {describe.array(array)}; a loss needs real numbers'
        )
        for name, array in outputs
        if stock and np.dtype(array.dtype).kind != "f"
    ]


def _elementwise(term: Term, output: Named, label: Named) -> list[Problem]:
    fn: Any = term.spec.fn
    message = None
    if isinstance(fn, ELEMENTWISE):
        message = elementwise_problem(term.where, output, label)
    elif type(fn) is _CE and not fn._sparse_label and output[1].size != label[1].size:
        fix = "give a probability for each class, or class indices and sparse_label=True"
        message = elementwise_problem(term.where, output, label, fix)
    return [Problem("spec", message)] if message else []


def _classes(term: Term, output: Named, label: Named) -> list[Problem]:
    axis = class_axis(term.spec.fn)
    if axis is None:
        return []
    (output_name, out), (label_name, values) = output, label
    message = axis_problem(term.where, term.spec.fn, output_name, out, axis)
    if message is None and values.size * out.shape[axis] != out.size:
        arrays = (
            f'output "{output_name}" {describe.array(out)} and label "{label_name}" {describe.array(values)}'
        )
        rows = f"{out.size // max(out.shape[axis], 1)} rows of {out.shape[axis]} classes"
        message = f"{term.where}: {arrays} do not fit; the output's {rows} need one class index each"
    return [Problem("spec", message)] if message else []


def _class_weights(term: Term, output: Array) -> list[Problem]:
    """Check that a loss with class weights takes class indices, and the classes of these weights."""
    fn, weights, axis = term.spec.fn, term.spec.class_weights, class_axis(term.spec.fn)
    binary = 2 if is_kind(fn, mx.gluon.loss.SigmoidBinaryCrossEntropyLoss) else None
    classes = binary if axis is None else output.shape[axis]
    if weights is None or (classes is None and not is_kind(fn, _CE, SequenceCELoss, *ELEMENTWISE)):
        return []
    message = results.class_weights_problem(term, classes)
    return [Problem("spec", message)] if message else []


def _check_result(term: Term, arrays: Mapping[Ref, Any], training: bool) -> tuple[str | None, bool]:
    """Check the result of a loss, and that its gradient scales with its weight, on copies of its arguments.

    A loss built on an operator with its own gradient (SoftmaxOutput) silently ignores its weight and its
    normalizer. With a weight of 1 that is no problem, but returned as True: a step then scales the gradient
    that the loss returns. When `training`, a loss without a gradient is a problem, unless the loss is 0,
    because there may be nothing to learn in the batch. No parameter and no gradient of the net is changed.
    """
    copies = {ref: None if arrays[ref] is None else arrays[ref].detach() for ref in term.refs}
    outputs = [copies[ref] for ref in term.outputs]
    trusted = type(term.spec.fn).__module__ in TRUSTED
    variables = [a for a in outputs if not trusted and a is not None and np.dtype(a.dtype).kind == "f"]
    for variable in variables:
        variable.attach_grad()
    with mx.autograd.record(train_mode=False) if variables else mx.autograd.pause(train_mode=False):
        values = call_loss(term, copies)
    is_double = any(np.dtype(array.dtype) == "float64" for array in outputs if array is not None)
    dtype = "float64" if is_double else "float32"
    cast, dtypes = f'{dtype}: cast it, with astype("{dtype}")', {np.float32, np.dtype(dtype).type}
    message = results.parts_problem(term, values, mx.nd.NDArray, "an array", dtypes, cast)
    if message is None:
        minimized = [values[term.minimized]]
        wait_for(minimized, lambda: term.where, *((str(ref), copy) for ref, copy in copies.items()))
        if variables and training and _is_constant(term, copies, *minimized):
            message = NO_GRADIENT
        elif variables:
            return _weight_problem(term, minimized, variables)
    return message, False


def is_recorded(array: mx.nd.NDArray) -> bool:
    """Whether autograd knows the origin of an array: it is a variable, or was computed from one."""
    try:
        mx.autograd.get_symbol(array)
    except mx.base.MXNetError:
        return False
    return True


def _is_constant(term: Term, copies: Mapping[Ref, Any], loss: Array) -> bool:
    """Whether a loss with a weight is not 0, but was not computed from its outputs by autograd."""
    if term.spec.weight == 0 or is_recorded(loss) or not loss.asnumpy().any():
        return False
    with mx.autograd.record():  # some losses have a gradient in training mode only
        return not is_recorded(call_loss(term, copies)[term.minimized])


def _weight_problem(term: Term, values: list[Array], variables: list[Array]) -> tuple[str | None, bool]:
    def gradients(scale: float) -> list[Array]:
        incoming = [mx.nd.full(each.shape, scale, ctx=each.context, dtype=each.dtype) for each in values]
        return mx.autograd.grad(values, variables, incoming, retain_graph=True, train_mode=False)

    try:
        ones, fours = gradients(1), gradients(4)
    except mx.base.MXNetError:
        return None, False  # unknown: it does not depend on these outputs, or cannot be differentiated
    pairs = [(one.asnumpy(), four.asnumpy()) for one, four in zip(ones, fours)]
    message = results.weight_problem(term.spec.fn, pairs, WAY_OUT)
    is_plain = term.spec.weight == 1 and term.counts_samples and term.weights is None
    if message is not None and is_plain and results.are_scaled(pairs, 1):
        return None, True
    return message, False
