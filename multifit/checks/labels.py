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
    valid = f"classes are 0 … {classes - 1}"
    if fractional.size:
        wrong = f"{fractional.flat[0]:g}, which is no class index and would be truncated; {valid}"
        way = "give whole numbers, or use a loss for real values (sparse_label=False takes probabilities)"
    elif kept.size and kept.min() < 0:
        wrong = f"{kept.min():g}, which would be taken for class 0; {valid}"
        way = f'if it stands for "no label", use a loss that ignores it, and LabelSpec("{name}", ignore=...)'
    elif kept.size and kept.max() >= classes:
        wrong = f"{kept.max():g}, which would be taken for class {classes - 1}; {valid}"
        way = "give the output as many classes as there are, or mend the labels"
    else:
        return []
    return [Problem("spec", f'{where}: the label "{name}" {describe.array(values)} holds {wrong}: {way}')]
