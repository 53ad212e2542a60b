"""Checking the sizes of an output and a label that a loss compares element by element."""

from __future__ import annotations

from math import prod

from . import describe

__all__ = ["elementwise_problem"]


def elementwise_problem(
    where: str, output: tuple[str, describe.ArrayLike], label: tuple[str, describe.ArrayLike]
) -> str | None:
    """Return what is wrong with comparing an output with a label, each (name, array), or None.

    Gluon reshapes the label like the output, so ``(8,)`` matches ``(8, 1)``. Another size fails deep inside,
    and a size that matches only with samples mixed up, such as ``(4, 1)`` and ``(1, 4)``, never fails.
    """
    (output_name, predicted), (label_name, true) = output, label
    sizes = (
        f'output "{output_name}" {describe.array(predicted)} and label "{label_name}" {describe.array(true)}'
    )
    if prod(predicted.shape) != prod(true.shape):
        fix = "they are compared element by element: fix the net's last layer or the label"
        return f"{where}: {sizes} differ in size; {fix}"
    if predicted.shape[:1] != true.shape[:1]:
        fix = "which mixes samples: put the batch axis first in both"
        return f"{where}: {sizes} match only by reshaping across the batch axis, {fix}"
    return None
