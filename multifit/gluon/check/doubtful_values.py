"""Warn of values that a net, a loss or a metric accepts without an error, but misinterprets.

Most of these mistakes come from Keras, where nets return probabilities, and `from_logits` means the opposite
of Gluon's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...spec.checks.values import (
    are_logarithms,
    channel_doubts,
    loss_doubts,
    no_share,
    share_doubts,
    softmax_doubts,
)
from ...spec.terms import MetricTerm, Ref
from ..compat import mx
from ..metrics.host import as_metric
from ..step.blocks import blocks_of
from ..step.stage import StepResult

_LOSSES = mx.gluon.loss
_CE, _BCE, _KL = _LOSSES.SoftmaxCrossEntropyLoss, _LOSSES.SigmoidBinaryCrossEntropyLoss, _LOSSES.KLDivLoss
_OF_PROBABILITIES = (mx.metric.CrossEntropy, mx.metric.NegativeLogLikelihood, mx.metric.Perplexity)
_OF_SHARES = {
    _BCE: "check the order of the labels; LogisticLoss takes -1 and 1",
    _KL: "for scores, let the net return their softmax",
}


def doubtful_values(result: StepResult) -> Iterator[str]:
    """Yield a warning for each output or label whose values its loss or metric was hardly meant for.

    Waits for the outputs.
    """
    arrays = result.arrays()[0]
    yield from loss_doubts(result.spec.terms, arrays, _of_output, _of_label)
    for metric in result.spec.metric_terms:
        if type(as_metric(metric)) in _OF_PROBABILITIES and metric.spec.transform is None:
            yield from _probabilities(metric, arrays)


def _of_output(loss: Any, output: Any) -> Iterator[str]:
    kind = type(loss)  # a subclass may compute anything
    if kind is _BCE and loss._from_sigmoid and (value := no_share(output.asnumpy())) is not None:
        yield (
            f"holds {value:g}, which no sigmoid returns, as from_sigmoid=True declares; for scores, leave "
            "from_sigmoid=True out"
        )
    elif kind is _CE and output.shape[loss._axis] > 1 and not loss._from_logits:
        yield from softmax_doubts(kind.__name__, output.asnumpy(), loss._axis)
    elif kind is _CE and output.shape[loss._axis] > 1:
        yield from _no_logarithms(output, loss._axis, "leave from_logits=True out")
    elif kind is _KL and loss._from_logits and -output.ndim <= loss._axis < output.ndim:  # it does not use it
        yield from _no_logarithms(output, loss._axis, "give KLDivLoss(from_logits=False)")


def _no_logarithms(output: Any, axis: int, way_out: str) -> Iterator[str]:
    if not are_logarithms(output.asnumpy(), axis):
        yield (
            "is not the logarithm of probabilities, which from_logits=True means in Gluon, unlike in Keras; "
            f"for scores, {way_out}"
        )


def _of_label(loss: Any, label: Any) -> Iterator[str]:
    if type(loss) in _OF_SHARES:
        yield from share_doubts(type(loss).__name__, label.asnumpy(), _OF_SHARES[type(loss)])


def _probabilities(term: MetricTerm, arrays: Mapping[Ref, Any]) -> Iterator[str]:
    for output in term.outputs:
        array = arrays.get(output)
        value = None if array is None else no_share(array.asnumpy())
        if value is not None:
            yield (
                f'{term.where}: the output "{output.name}" holds {value:g}, but '
                f"{type(as_metric(term)).__name__} takes probabilities; for scores, give "
                "transform=lambda scores, label: (label, mx.nd.softmax(scores))"
            )


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
