"""Label values that a loss would silently truncate or clip."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import Problem
from . import describe

__all__ = ["label_problems"]


def label_problems(where: str, name: str, values: Any, classes: int, ignore: Any = None) -> list[Problem]:
    """Check that labels are class indices.

    Parameters
    ----------
    where : str
        Who takes them, for the message.
    name : str
        The slot.
    values : numpy.ndarray
        Labels of a batch, any shape.
    classes : int
        The number of classes; valid labels are ``0 … classes - 1``.
    ignore : number or sequence of numbers, optional
        Values that stand for "no label".
    """
    kept = values[~np.isin(values, np.atleast_1d(ignore))] if ignore is not None else values
    fractional = kept[~np.isfinite(kept) | (kept != np.floor(kept))] if kept.dtype.kind == "f" else kept[:0]
    if fractional.size:
        wrong = f"{fractional.flat[0]:g} is no class index and would be truncated"
        way = "use a regression loss, sparse_label=False for probabilities, or whole numbers"
    elif kept.size and kept.min() < 0:
        wrong = f"{kept.min():g} would be clipped to class 0"
        way = f'declare it: LabelSpec("{name}", ignore={kept.min():g}) with a loss that ignores it, or remove it'
    elif kept.size and kept.max() >= classes:
        wrong = f"{kept.max():g} would be clipped to class {classes - 1}"
        way = "give the output as many classes, or mend the labels"
    else:
        return []
    return [
        Problem(
            "spec",
            f'{where}: the label "{name}" {describe.array(values)} holds values outside 0 … {classes - 1}: {wrong}; {way}',
        )
    ]
