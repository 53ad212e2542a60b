"""Warn of values that a net, a loss or a metric accepts without an error, but misinterprets.

Most of these mistakes come from Keras, where nets return probabilities, and `from_logits` means the opposite
of Gluon's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...checks import channel_doubts
from ...spec.names import OUTPUTS, Ref
from ...spec.terms import MetricTerm, Term
from ..compat import mx
from ..metrics.host import as_metric
from ..step.blocks import blocks_of
from ..step.result import StepResult

_LOSSES = mx.gluon.loss
_OF_PROBABILITIES = (mx.metric.CrossEntropy, mx.metric.NegativeLogLikelihood, mx.metric.Perplexity)

Values = Mapping[Ref, "np.ndarray[Any, Any]"]


def doubtful_values(result: StepResult) -> Iterator[str]:
    """Yield a warning for each output or label whose values its loss or metric was hardly meant for.

    Such a loss trains, but slowly or on nonsense: even if the net is always right, the loss stays far above
    0, or it has no lower bound. Waits for the outputs.
    """
    arrays = result.arrays()[0]
    for term in result.spec.terms:
        check = _CHECKS.get(type(term.spec.fn))
        taken = {
            ref: arrays[ref] for ref in term.args[:2] if arrays.get(ref) is not None and arrays[ref].size
        }
        if check is not None and len(taken) == 2:
            values = {ref: array.asnumpy() for ref, array in taken.items()}
            yield from (f"{term.where}: {message}" for message in check(term, term.spec.fn, values))
    for metric in result.spec.metric_terms:
        if type(as_metric(metric)) in _OF_PROBABILITIES and metric.spec.transform is None:
            yield from _probabilities(metric, arrays)


def _softmax(term: Term, loss: Any, values: Values) -> Iterator[str]:
    scores = values[term.args[0]]
    if scores.shape[loss._axis] == 1:
        return
    if loss._from_logits:
        yield from _no_logarithms(term, loss, values, "for scores, leave from_logits=True out")
    elif scores.min() >= 0 and np.allclose(scores.sum(axis=loss._axis), 1, atol=1e-3):
        yield (
            f"{_named(term.args[0])} adds up to 1 over its classes, as after a softmax, and "
            "SoftmaxCrossEntropyLoss applies softmax itself; let the net return the scores before its softmax"
        )


def _sigmoid(term: Term, loss: Any, values: Values) -> Iterator[str]:
    output, label = term.args[:2]
    value = _no_probability(values[output])
    if loss._from_sigmoid and value is not None:
        yield (
            f"{_named(output)} holds {value:g}, which no sigmoid returns, as from_sigmoid=True declares; for "
            "scores, leave from_sigmoid=True out"
        )
    value = _no_probability(values[label])
    if value is not None and len(term.args) == 2 and not term.present:  # else a weight may hide it
        yield (
            f"{_named(label)} holds {value:g}, but SigmoidBinaryCrossEntropyLoss takes 0 … 1, and has no "
            "lower bound for others; check the order of the labels; LogisticLoss takes -1 and 1"
        )


def _divergence(term: Term, loss: Any, values: Values) -> Iterator[str]:
    axes = values[term.args[0]].ndim
    if loss._from_logits and -axes <= loss._axis < axes:  # it does not use the axis itself
        yield from _no_logarithms(term, loss, values, "for scores, give KLDivLoss(from_logits=False)")
    value = _no_probability(values[term.args[1]])
    if value is not None and not term.present:
        yield (
            f"{_named(term.args[1])} holds {value:g}, but KLDivLoss takes probabilities for its targets; for "
            "scores, let the net return their softmax"
        )


def _no_logarithms(term: Term, loss: Any, values: Values, way_out: str) -> Iterator[str]:
    with np.errstate(over="ignore"):  # infinity is no probability either
        sums = np.exp(values[term.args[0]]).sum(axis=loss._axis)
    if not np.allclose(sums, 1, atol=0.05):  # a net in bfloat16 is not more precise
        yield (
            f"{_named(term.args[0])} is not the logarithm of probabilities, which from_logits=True means in "
            f"Gluon, unlike in Keras; {way_out}"
        )


_CHECKS = {
    _LOSSES.SoftmaxCrossEntropyLoss: _softmax,
    _LOSSES.SigmoidBinaryCrossEntropyLoss: _sigmoid,
    _LOSSES.KLDivLoss: _divergence,
}


def _probabilities(term: MetricTerm, arrays: Mapping[Ref, Any]) -> Iterator[str]:
    for output in term.outputs:
        array = arrays.get(output)
        value = None if array is None else _no_probability(array.asnumpy())
        if value is not None:
            kind = type(as_metric(term)).__name__
            columns = "transform=lambda scores, label: (label, mx.nd.softmax(scores))"
            yield (
                f"{term.where}: {_named(output)} holds {value:g}, but {kind} takes probabilities; for "
                f"scores, give {columns}"
            )


def _named(ref: Ref) -> str:
    return f'the {"output" if ref.space == OUTPUTS else "label"} "{ref.name}"'


def _no_probability(values: np.ndarray[Any, Any]) -> float | None:
    """Return a value that is below 0 or above 1; None if there is none."""
    wrong = values[(values < 0) | (values > 1)]
    return float(wrong[0]) if wrong.size else None


def channels_last(result: StepResult, net: Any) -> Iterator[str]:
    """Yield a warning for each input whose rows a convolution seems to have taken for channels."""
    convolutions = [block for block in blocks_of(net).values() if isinstance(block, mx.gluon.nn.Conv2D)]
    channels = {
        conv.weight.shape[1] * conv._kwargs["num_group"]
        for conv in convolutions
        if conv._kwargs["layout"] == "NCHW"
    }
    slots: Any = result.batch.slots[0]
    return channel_doubts({name: slots.get(name) for name in result.spec.inputs}, channels)
