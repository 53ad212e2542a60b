"""Losses that apply softmax to what a softmax returned, as in nets that come from Keras."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np

from ..compat import mx
from ..execution.result import StepResult


def softmax_twice(result: StepResult) -> Iterator[str]:
    """Yield a warning for each softmax cross entropy whose scores are the probabilities of a softmax already.

    It trains, but slowly: the loss of a net that is always right stays far above 0. Waits for the outputs.
    """
    arrays = result.arrays()[0]
    for term in result.spec.terms:
        loss: Any = term.spec.fn
        if type(loss) is not mx.gluon.loss.SoftmaxCrossEntropyLoss or loss._from_logits:
            continue
        scores = arrays.get(term.outputs[0])
        if scores is None or scores.size == 0 or scores.shape[loss._axis] == 1:
            continue
        values = scores.asnumpy()
        if values.min() >= 0 and np.allclose(values.sum(axis=loss._axis), 1, atol=1e-3):
            yield (
                f'{term.where}: the output "{term.outputs[0].name}" adds up to 1 over its classes, as after '
                "a softmax, and SoftmaxCrossEntropyLoss applies softmax itself; let the net return the scores"
                " before its softmax"
            )
