"""Operators on maps of scores, (N, C, ...), one map per class.

MXNet reduces along an axis that is not the last slowly: ``max`` and ``argmax`` over the classes take several
times as long as comparing the maps one by one. Where a loss and a metric look at the same scores, mxnet
finds the expressions that they have in common, and computes them once.
"""

from __future__ import annotations

from typing import Any

__all__ = ["first_largest", "largest", "reaches", "split_maps"]


def split_maps(F: Any, scores: Any, classes: int) -> list[Any]:
    """Split (N, C, ...) into C maps (N, ...)."""
    if classes == 1:
        return [F.reshape(scores, (0, -3, -2))]
    return list(F.split(scores, num_outputs=classes, axis=1, squeeze_axis=True))


def largest(F: Any, scores: Any, classes: int) -> Any:
    """Return the largest score of each position, (N, ...); no gradient flows through it."""
    return F.reshape(_best(F, _fixed(F, scores, classes)), (0, -3, -2))


def first_largest(F: Any, scores: Any, classes: int) -> Any:
    """Return the index of the largest score of each position, (N, ...), float32; the first of equal ones."""
    reached = reaches(F, scores, classes)
    index = F.add_n(*reached) if reached else F.zeros_like(F.BlockGrad(scores))
    return F.reshape(index, (0, -3, -2))


def reaches(F: Any, scores: Any, classes: int) -> list[Any]:
    """Return for 1, 2, …, classes - 1 whether the largest score's index reaches it: (N, 1, ...), float32."""
    maps = _fixed(F, scores, classes)
    best = _best(F, maps)
    found: list[Any] = []
    for before in maps[:-1]:
        elsewhere = F.broadcast_greater(best, before)
        found.append(found[-1] * elsewhere if found else elsewhere)
    return found


def _fixed(F: Any, scores: Any, classes: int) -> list[Any]:
    """Split into maps (N, 1, ...) without gradient; by slices, since mxnet never shares what is split."""
    scores = F.BlockGrad(scores)
    return [F.slice_axis(scores, axis=1, begin=i, end=i + 1) for i in range(classes)]


def _best(F: Any, maps: list[Any]) -> Any:
    first, *others = maps
    for other in others:
        first = F.maximum(first, other)
    return first
