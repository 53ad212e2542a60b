"""Values that a net or a loss accepts without an error, but misinterprets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from ...utils.protocols import Numbers
from ..names import SINGULAR, Ref
from ..terms import Term

Doubts = Callable[[Any, Any], Iterator[str]]
"""Yields what is doubtful of an array that a loss takes: ``doubts(loss, array)``."""


def loss_doubts(
    terms: Iterable[Term], arrays: Mapping[Ref, Any], of_output: Doubts, of_label: Doubts
) -> Iterator[str]:
    """Yield a warning for each output or label whose values a loss was hardly meant for.

    Such a loss trains, but slowly or on nonsense: even if the net is always right, the loss stays far above
    0, or it has no lower bound. Labels that a mask or a weight may hide are left out.
    """
    for term in terms:
        taken = [ref for ref in term.args[:2] if arrays.get(ref) is not None and prod(arrays[ref].shape)]
        if len(taken) == 2:
            hides = term.present or len(term.args) > 2 or term.weights is not None
            for ref, doubts in zip(taken, (of_output,) if hides else (of_output, of_label)):
                where = f'{term.where}: the {SINGULAR[ref.space]} "{ref.name}"'
                yield from (f"{where} {message}" for message in doubts(term.spec.fn, arrays[ref]))


def softmax_doubts(loss: str, scores: Numbers, axis: int) -> Iterator[str]:
    """Doubt scores that look like a softmax along an axis, which the loss applies itself."""
    if scores.shape[axis] > 1 and scores.min() >= 0 and np.allclose(scores.sum(axis), 1, atol=1e-2):
        yield (
            f"adds up to 1 over its classes, as after a softmax, and {loss} applies softmax itself; "
            "let the net return the scores before its softmax"
        )


def share_doubts(loss: str, labels: Numbers, way_out: str) -> Iterator[str]:
    """Doubt labels below 0 or above 1."""
    if (value := no_share(labels)) is not None:
        yield f"holds {value:g}, but {loss} takes 0 … 1, and has no lower bound for others; {way_out}"


def no_share(values: Numbers) -> float | None:
    """Return a value that is below 0 or above 1; None if there is none."""
    wrong = values[(values < 0) | (values > 1)]
    return float(wrong[0]) if wrong.size else None


def are_logarithms(values: Numbers, axis: int) -> bool:
    """Whether values are the logarithms of probabilities along an axis."""
    with np.errstate(over="ignore"):  # infinity is no probability either
        return bool(np.allclose(np.exp(values).sum(axis), 1, atol=0.05))  # bfloat16 is not more precise
