"""Whether something can be iterated over as often as a fit does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import Problem

__all__ = ["loader_problems", "one_shot"]


def one_shot(data: Any) -> bool:
    """Whether a loader can be read only once: an iterator that cannot be reset."""
    return hasattr(data, "__iter__") and iter(data) is data and not callable(getattr(data, "reset", None))


def loader_problems(what: str, data: Any, once: bool) -> list[Problem]:
    """Check a loader before anything is read.

    Parameters
    ----------
    what : str
        How messages name it: ``train_data``.
    data : object
        What was given.
    once : bool
        Whether it will be read only once.
    """
    if isinstance(data, Mapping):
        message = f"{what} is a dict; one loader per task is not supported yet: give one loader whose batches hold all slots"
    elif not hasattr(data, "__iter__"):
        message = f"{what} is {type(data).__name__}, which cannot be iterated over; give a DataLoader, a DataIter or any re-iterable of batches"
    elif hasattr(data, "__len__") and len(data) == 0:
        message = f'{what} is empty: it yields no batch; give it at least one (mind last_batch="discard")'
    elif not once and one_shot(data):
        message = f"{what} is {type(data).__name__}, which can be read only once, but is needed for every epoch; give a DataLoader or a list"
    else:
        return []
    return [Problem("data", message)]
