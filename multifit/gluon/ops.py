"""Operators on maps, (N, ...), and on maps of scores, (N, C, ...), one map per class.

MXNet is slow at reducing along an axis that is not the last: ``max`` and ``argmax`` over the classes take
several times as long as comparing the maps one by one. If a loss and a metric in one graph read the same
scores, MXNet computes the expressions that they share only once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import Any

from ..protocols import Tensor

WHOLE: ContextVar[bool] = ContextVar("whole samples", default=False)


@contextmanager
def whole_samples() -> Iterator[None]:
    """Let graphs that are traced in this scope sum a sample at once, for which PyTorch has a fast kernel."""
    token = WHOLE.set(True)
    try:
        yield
    finally:
        WHOLE.reset(token)


def split_maps(F: Any, scores: Tensor, classes: int) -> list[Tensor]:
    """Split (N, C, ...) into C maps (N, ...)."""
    if classes == 1:
        return [F.reshape(scores, (0, -3, -2))]
    return list(F.split(scores, num_outputs=classes, axis=1, squeeze_axis=True))


def largest(F: Any, scores: Tensor, classes: int) -> Tensor:
    """Return the largest score of each position, (N, ...); no gradient flows through it."""
    return F.reshape(_maximum(F, _class_maps(F, scores, classes)), (0, -3, -2))


def sample_sums(F: Any, values: Tensor) -> Tensor:
    """Return the sum of each sample of (N, ...), float32: (N,).

    MXNet computes it as a matrix product in a fifth of the time of its sum over axes.
    """
    if WHOLE.get():
        return F.sum(values, axis=0, exclude=True)
    rows = F.reshape(values, (0, -1))
    ones = F.ones_like(F.slice_axis(rows, axis=0, begin=0, end=1))
    return F.reshape(F.dot(rows, ones, transpose_b=True), (-1,))


def first_largest(F: Any, scores: Tensor, classes: int) -> Tensor:
    """Return the index of the largest score of each position, (N, ...), float32; the first among equals."""
    reached = reaches(F, scores, classes)
    index = F.add_n(*reached) if reached else F.zeros_like(F.BlockGrad(scores))
    return F.reshape(index, (0, -3, -2))


def reaches(F: Any, scores: Tensor, classes: int) -> list[Tensor]:
    """Return for i = 1, …, classes - 1 whether the largest score's index is at least i, (N, 1, ...)."""
    maps = _class_maps(F, scores, classes)
    best = _maximum(F, maps)
    reached: list[Tensor] = []
    for before in maps[:-1]:
        is_later = F.broadcast_greater(best, before)
        reached.append(reached[-1] * is_later if reached else is_later)
    return reached


def _class_maps(F: Any, scores: Tensor, classes: int) -> list[Tensor]:
    """Return the maps (N, 1, ...) without gradient; as slices, because MXNet never shares equal splits."""
    scores = F.BlockGrad(scores)
    return [F.slice_axis(scores, axis=1, begin=i, end=i + 1) for i in range(classes)]


def _maximum(F: Any, maps: list[Tensor]) -> Tensor:
    return reduce(F.maximum, maps)
