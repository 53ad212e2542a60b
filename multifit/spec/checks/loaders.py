"""Checking whether data can be iterated over as often as a fit needs it."""

import itertools
import sys
from collections.abc import Mapping
from operator import length_hint
from typing import Any

from ...distributed import unwrapped
from ...utils.errors import Problem
from ...utils.text import shown
from . import describe

EMPTY = 'is empty: it yields no batch; give it at least one (check last_batch="discard")'


def one_shot(data: object) -> bool:
    """Return whether a loader can be read only once: an iterator that cannot be reset."""
    data = unwrapped(data)
    if not hasattr(data, "__next__") or callable(getattr(data, "reset", None)):
        return False  # asking any other loader for an iterator might start its workers
    return hasattr(data, "__iter__") and iter(data) is data


def is_endless(data: object) -> bool:
    """Return whether it is known that a loader never ends: one of itertools, or of length ``sys.maxsize``."""
    data = unwrapped(data)
    if isinstance(data, (itertools.cycle, itertools.count, itertools.repeat)):
        return length_hint(data, sys.maxsize) == sys.maxsize
    return batch_count(data) == sys.maxsize


def is_array(data: object) -> bool:
    """Whether data is an array or a frame, in place of batches of arrays."""
    return isinstance(getattr(data, "shape", None), tuple) and hasattr(data, "ndim")


def batch_count(data: Any) -> int | None:
    """Return the number of batches; None if the loader does not know it."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def loader_problems(name: str, data: object, once: bool) -> list[Problem]:
    """Check a loader before it is read; `once` if it will be read only once."""
    wrong = _wrong(unwrapped(data), once)
    return [Problem("data", f"{name} {wrong}")] if wrong else []


def _wrong(data: Any, once: bool) -> str:
    """Return what is wrong with a loader, or ``""``.

    Python would iterate over an object that has only ``__getitem__``, but without an end if every index is
    valid. Besides, most such objects hold samples, which cannot be told from batches.
    """
    kind = type(data).__name__
    if isinstance(data, Mapping):
        return "is a dict, not a loader; only fit, check and evaluate take dicts of loaders"
    if is_array(data):
        way_out = "give multifit.batches(data, label, batch_size=32), or a list of batches"
        return f"is one array, {describe.array(data)}, not a loader of batches; {way_out}"
    if isinstance(data, (str, type)) or not hasattr(data, "__iter__"):
        if isinstance(data, (str, type)) or not hasattr(data, "__getitem__"):
            way_out = "give a DataLoader, a DataIter or a list of batches"
            return f"is {shown(data)}, which yields no batches; {way_out}"
        way_out = "or, if the items are batches, [data[i] for i in range(len(data))]"
        return f"is a data set of single items ({kind}); give a DataLoader of it, {way_out}"
    if batch_count(data) == 0:
        return EMPTY
    if not once and one_shot(data):
        way_out = "give a DataLoader or a list"
        return f"is a {kind}, which can be read only once, but every epoch needs it; {way_out}"
    return ""


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
