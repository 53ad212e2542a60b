"""Checking whether data can be iterated over as often as a fit needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..distributed import unwrapped
from ..errors import Problem, shown, user_code
from . import describe

EMPTY = 'is empty: it yields no batch; give it at least one (check last_batch="discard")'


def one_shot(data: object) -> bool:
    """Return whether a loader can be read only once: an iterator that cannot be reset."""
    data = unwrapped(data)
    if not hasattr(data, "__next__") or callable(getattr(data, "reset", None)):
        return False  # asking any other loader for an iterator might start its workers
    return hasattr(data, "__iter__") and iter(data) is data


def loader_problems(name: str, data: object, once: bool) -> list[Problem]:
    """Check a loader before it is read; `once` if it will be read only once."""
    wrong = _wrong(unwrapped(data), once)
    return [Problem("data", f"{name} {wrong}")] if wrong else []


def is_array(data: object) -> bool:
    """Whether data is an array or a frame, in place of batches of arrays."""
    return isinstance(getattr(data, "shape", None), tuple) and hasattr(data, "ndim")


def _wrong(data: object, once: bool) -> str:
    """Return what is wrong with a loader, or ``""``."""
    if isinstance(data, Mapping):
        return "is a dict; only fit, check and evaluate take a loader for each task"
    if is_array(data):
        way_out = "give DataLoader(ArrayDataset(data, label), batch_size=32), or a list of batches"
        return f"is one array, {describe.array(data)}, not a loader of batches; {way_out}"
    if isinstance(data, (str, type)) or not hasattr(data, "__iter__"):
        return _no_loader(data)
    if batch_count(data) == 0:
        return EMPTY
    if not once and one_shot(data):
        kind = type(data).__name__
        return (
            f"is a {kind}, which can be read only once, but every epoch needs it; give a DataLoader or a list"
        )
    return ""


def _no_loader(data: Any) -> str:
    """Return what is wrong with data that has no ``__iter__``.

    Python would iterate over an object that has only ``__getitem__``, but without an end if every index is
    valid. Besides, most such objects hold samples, which cannot be told from batches.
    """
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not indexed or isinstance(data, (str, type)):
        way_out = "give a DataLoader, a DataIter or a list of batches"
        return f"is {shown(data)}, which yields no batches; {way_out}"
    return (
        f"is a data set of single items ({type(data).__name__}); give a DataLoader of it, "
        "or, if the items are batches, [data[i] for i in range(len(data))]"
    )


def batch_count(data: Any) -> int | None:
    """Return the number of batches; None if the loader does not know it.

    Raises what its ``__len__`` raises, unless that also means that the length is unknown.
    """
    try:
        with user_code(lambda: f"{type(data).__name__}.__len__; a batch_size must be above 0"):
            return len(data)
    except (TypeError, ValueError, OverflowError, NotImplementedError):  # no length, or not a valid one
        return None


def no_batch_problems(what: str, epoch: int = 0, read: bool = False) -> list[Problem]:
    """Return the problem of a loader, named `what` in messages, that yielded nothing.

    `epoch` counts from 0; `read` says whether the loader yielded batches in an earlier epoch.
    """
    message = f"{what} {EMPTY}"
    if read:
        message = (
            f"{what} yields no batch in epoch {epoch + 1}, though it did before: it can be read only once; "
            "give a DataLoader, a list, or a DataIter with reset()"
        )
    return [Problem("data", message)]
