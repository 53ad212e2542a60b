"""Values that a loss or a metric takes without an error, but not for what they are.

Most come from Keras, where nets return probabilities, and `from_logits` means the opposite of Gluon's.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import numpy as np

from ...spec.names import Ref
from ...spec.terms import MetricTerm, Term
from ..compat import mx
from ..execution.result import StepResult

_CE, _BCE = mx.gluon.loss.SoftmaxCrossEntropyLoss, mx.gluon.loss.SigmoidBinaryCrossEntropyLoss
_OF_PROBABILITIES = (mx.metric.CrossEntropy, mx.metric.NegativeLogLikelihood, mx.metric.Perplexity)


def doubtful_values(result: StepResult) -> Iterator[str]:
    """Yield a warning for each output or label that its loss or metric hardly means.

    Such a loss trains, but slowly, or with nonsense: that of a net that is always right stays far above 0, or
    it has no lower bound. Waits for the outputs.
    """
    arrays = result.arrays()[0]
    for term in result.spec.terms:
        refs = [*term.outputs[:1], *term.labels[:1]]
        if len(refs) == 2 and all(_has_values(arrays.get(ref)) for ref in refs):
            if type(term.spec.fn) is _CE:
                yield from _softmax(term, term.spec.fn, arrays[refs[0]])
            elif type(term.spec.fn) is _BCE:
                yield from _sigmoid(term, term.spec.fn, arrays)
    for metric in result.spec.metric_terms:
        if type(metric.spec.metric) in _OF_PROBABILITIES and metric.spec.transform is None:
            yield from _probabilities(metric, arrays)


def _has_values(array: Any) -> bool:
    return array is not None and array.size > 0


def _softmax(term: Term, loss: Any, scores: Any) -> Iterator[str]:
    axis, values = loss._axis, scores.asnumpy()
    if not -values.ndim <= axis < values.ndim or values.shape[axis] == 1:
        return
    output = f'{term.where}: the output "{term.outputs[0].name}"'
    if loss._from_logits:
        with np.errstate(over="ignore"):  # infinity is no probability either
            sums = np.exp(values).sum(axis=axis)
        if not np.allclose(sums, 1, atol=0.05):  # a net in bfloat16 is not more precise
            yield (
                f"{output} is not the logarithm of probabilities, which from_logits=True declares, unlike in "
                "Keras; for scores, leave from_logits=True out"
            )
    elif values.min() >= 0 and np.allclose(values.sum(axis=axis), 1, atol=1e-3):
        yield (
            f"{output} adds up to 1 over its classes, as after a softmax, and SoftmaxCrossEntropyLoss "
            "applies softmax itself; let the net return the scores before its softmax"
        )


def _sigmoid(term: Term, loss: Any, arrays: Mapping[Ref, Any]) -> Iterator[str]:
    output, label = term.outputs[0], term.labels[0]
    value = _no_probability(arrays[output])
    if loss._from_sigmoid and value is not None:
        yield (
            f'{term.where}: the output "{output.name}" holds {value:g}, which no sigmoid returns, as '
            "from_sigmoid=True declares; for scores, leave from_sigmoid=True out"
        )
    value = _no_probability(arrays[label])
    if value is not None and len(term.labels) == 1 and not term.present:  # else a weight may hide it
        yield (
            f'{term.where}: the label "{label.name}" holds {value:g}, but SigmoidBinaryCrossEntropyLoss '
            "takes 0 … 1, and has no lower bound for others; check the order of the labels; LogisticLoss "
            "takes -1 and 1"
        )


def _probabilities(term: MetricTerm, arrays: Mapping[Ref, Any]) -> Iterator[str]:
    for output in term.outputs:
        value = _no_probability(arrays[output]) if _has_values(arrays.get(output)) else None
        if value is not None:
            kind = type(term.spec.metric).__name__
            columns = "transform=lambda scores, label: (label, mx.nd.softmax(scores))"
            yield (
                f'{term.where}: the output "{output.name}" holds {value:g}, but {kind} takes probabilities; '
                f"for scores, give {columns}"
            )


def _no_probability(array: Any) -> float | None:
    """Return a value that is below 0 or above 1; None if there is none."""
    values = array.asnumpy()
    wrong = values[(values < 0) | (values > 1)]
    return float(wrong[0]) if wrong.size else None
