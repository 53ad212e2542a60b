"""Checking whether data can be iterated over as often as a fit does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..distributed import unwrapped
from ..errors import Problem, shown


def one_shot(data: object) -> bool:
    """Return whether a loader can be read only once: an iterator that cannot be reset."""
    data = unwrapped(data)
    if not hasattr(data, "__next__") or callable(getattr(data, "reset", None)):
        return False  # asking any other loader for an iterator might start its workers
    return hasattr(data, "__iter__") and iter(data) is data


def loader_problems(name: str, data: object, once: bool) -> list[Problem]:
    """Check a loader before it is read; `once` if it will be read only once."""
    data = unwrapped(data)
    if isinstance(data, Mapping):
        wrong = "is a dict; only fit, check and evaluate take a loader for each task"
    elif isinstance(data, (str, type)) or not hasattr(data, "__iter__") or getattr(data, "shape", None) == ():
        wrong = _no_loader(data)
    elif batch_count(data) == 0:
        wrong = 'is empty: it yields no batch; give it at least one (check last_batch="discard")'
    elif not once and one_shot(data):
        wrong = (
            f"is a {type(data).__name__}, which can be read only once, but every epoch needs it; "
            "give a DataLoader or a list"
        )
    else:
        return []
    return [Problem("data", f"{name} {wrong}")]


def _no_loader(data: Any) -> str:
    """Return what is wrong with data over which nobody iterates.

    Python would iterate over an object that has only ``__getitem__``, without an end if that takes any index;
    and nothing tells batches from samples, which most such objects hold.
    """
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "shape")
    if not indexed or isinstance(data, (str, type)):
        way_out = "give a DataLoader, a DataIter or a list of batches"
        return f"is {shown(data)}, which yields no batches; {way_out}"
    return (
        f"is a data set of single items ({type(data).__name__}); give a DataLoader of it, "
        "or, if the items are batches, [data[i] for i in range(len(data))]"
    )


def batch_count(data: Any) -> int | None:
    """Return the number of batches; None if the loader does not know it."""
    try:
        return len(data)
    except (TypeError, ValueError, OverflowError):  # no __len__, or one that is of no use
        return None
