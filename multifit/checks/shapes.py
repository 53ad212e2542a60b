"""Whether the sizes of an output and a label can match in a loss that compares them element by element."""

from __future__ import annotations

from math import prod
from typing import Any

from . import describe

__all__ = ["elementwise_problem"]


def elementwise_problem(where: str, output: tuple[str, Any], label: tuple[str, Any]) -> str | None:
    """Return what is wrong with comparing ``(name, array)`` with ``(name, array)``, or None.

    Gluon reshapes the label like the output, so ``(8,)`` fits ``(8, 1)``; what has another size fails deep
    inside, and what fits only with samples mixed up, such as ``(4, 1)`` and ``(1, 4)``, never fails.
    """
    (out_name, out), (label_name, lab) = output, label
    sizes = f'output "{out_name}" {describe.array(out)} and label "{label_name}" {describe.array(lab)}'
    if prod(out.shape) != prod(lab.shape):
        way = "they are compared element by element: mend the net's last layer or the label"
        return f"{where}: {sizes} differ in size; {way}"
    if out.shape[:1] != lab.shape[:1]:
        way = "which mixes samples: put the batch axis first in both"
        return f"{where}: {sizes} match only by reshaping across the batch axis, {way}"
    return None
