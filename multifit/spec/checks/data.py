"""Checks of loaders and of the batches that they yield, whose arrays are bound to the declared slots."""

import itertools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np

from ...distributed import unwrapped
from ...utils.errors import Problem
from ...utils.protocols import Shape
from ...utils.text import counted, nearest, quoted, shown, suggest
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


def bind_slots(
    order: Sequence[str],
    inputs: Sequence[str],
    batch: Sequence[Any] | Mapping[str, Any],
    labels_needed: bool = True,
    state: Collection[str] = (),
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the arrays of a flat batch by name, and what does not match.

    `order` names the slots of a whole batch, `inputs` those that the net is called with. A mapping is matched
    by key. Labels are not needed in prediction, where a batch may hold the inputs alone. `state` are slots
    that come from the previous batch.
    """
    if isinstance(batch, Mapping):
        return _by_key(order, inputs, batch, labels_needed, state)
    if len(batch) == len(order):
        return dict(zip(order, batch)), []
    if not labels_needed and len(batch) == len(inputs):
        return dict(zip(inputs, batch)), []
    inputs_alone = "" if labels_needed else f" (or the inputs alone: {quoted(inputs)})"
    message = (
        f"the batch has {counted(len(batch), 'array')}: {describe.arrays(batch)}; "
        f"declared {counted(len(order), 'slot')}: {quoted(order)}{inputs_alone}; {_fix(batch, len(order))}"
    )
    if labels_needed and len(inputs) <= len(batch) < len(order) and order[-1] not in inputs:
        message += f"; {_lacking(order[-1])}"
    return {}, [Problem("data", message)]


def slot_problems(slots: Mapping[str, Any], batch_axis: int) -> list[Problem]:
    """Check dtypes, masks and numbers of samples; None stands for an input that is left out."""
    arrays = {name: array for name, array in slots.items() if array is not None}
    messages = [message for name, array in arrays.items() for message in _slot(name, array, batch_axis)]
    if not messages and len({array.shape[batch_axis] for array in arrays.values()}) > 1:
        sizes = ", ".join(f"{name} {describe.array(array)}" for name, array in arrays.items())
        messages.append(
            f"the slots hold different numbers of samples along axis {batch_axis}: {sizes}; make them equal"
        )
    if not messages and not any(array.shape[batch_axis] for array in arrays.values()):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        found = shapes or "None in every slot"
        messages.append(f"the batch holds no sample: {found}; leave empty batches out")
    return [Problem("data", message) for message in messages]


def is_masked(array: Any) -> bool:
    """Return whether some elements of a NumPy array are masked; False for records, which have other masks."""
    return isinstance(array, np.ma.MaskedArray) and array.dtype.names is None and bool(np.any(array.mask))


def form_problems(slots: Mapping[str, Any], inputs: Sequence[str], first: dict[str, Any]) -> list[Problem]:
    """Check that slots have the form of the first batch, whose arrays are described in `first`.

    Axes may have other lengths, but an array must keep its number of axes, None must stay None, and an input
    of whole numbers must stay one. Labels may have additional axes of length 1, as most losses reshape them.
    """
    messages = []
    for name, array in slots.items():
        shape = None if array is None else tuple(array.shape)
        is_whole = name in inputs and array is not None and "int" in str(array.dtype)  # of any library
        first_shape, was_whole, described = first.setdefault(name, (shape, is_whole, describe.array(array)))
        if is_whole != was_whole or not _have_same_axes(first_shape, shape, name in inputs):
            messages.append(
                f'the slot "{name}" is {describe.array(array)}, but was {described} in the first batch; give '
                "the same number of axes and the same kind of numbers in every batch, or None in all of them"
            )
    return [Problem("data", message) for message in messages]


def batch_axis_problems(slots: Mapping[str, Any], known: Mapping[str, Shape]) -> list[Problem]:
    """Check that no slot has the shape of one sample in the batches before, whose shapes are `known`."""
    messages = [
        f'the slot "{name}" is {describe.array(array)}, a sample of the batches before, which were '
        f"{known[name]}: it lacks the batch axis; give one sample x as x[None], a batch of shape "
        f"{(1, *array.shape)}"
        for name, array in slots.items()
        if array is not None and array.shape and known.get(name, ())[1:] == tuple(array.shape)
    ]
    return [Problem("data", message) for message in messages]


def _have_same_axes(one: Shape | None, two: Shape | None, is_input: bool) -> bool:
    if one is None or two is None:
        return one is two
    short, long = sorted((one, two), key=len)
    return len(short) == len(long) or (not is_input and set(long[len(short) :]) == {1})


def _lacking(label: str) -> str:
    """Return what a user can do if batches lack a label."""
    return (
        f'if samples have no "{label}", fill it with NaN and declare LabelSpec("{label}", missing="nan")'
        ", give a dict with a loader for each task, or, to evaluate without it, evaluate=TaskSpec(...)"
    )


def _fix(batch: Sequence[Any], declared: int) -> str:
    by_name = "or return the slots by name in batch_fn="
    if any(getattr(item, "shape", None) == () for item in batch):
        return f"a list of numbers counts as one array per number: make it one array, {by_name}"
    if any(isinstance(item, str) for item in batch):
        return f"strings are not arrays: encode them, {by_name}"
    if len(batch) == 1 and hasattr(batch[0], "shape"):
        return (
            "if this array is the whole data, give multifit.batches(data, label, batch_size=32), "
            f"else name every array in inputs= and labels=, {by_name}"
        )
    fix = f"name every array in inputs= and labels= (batch= gives the order), {by_name}"
    is_split = declared > 1 and len(batch) > declared and len(batch) % declared == 0
    return f"{fix}; if these are the parts of several devices, declare batch_fn=Shards" if is_split else fix


def _by_key(
    order: Sequence[str],
    inputs: Sequence[str],
    batch: Mapping[str, Any],
    labels_needed: bool,
    state: Collection[str],
) -> tuple[dict[str, Any], list[Problem]]:
    messages = [
        f'the batch has "{name}", which is declared in state= and comes from the previous batch; leave it out'
        for name in state
        if name in batch
    ]
    undeclared = [key for key in batch if key not in order and key not in state]
    for name in order if labels_needed else inputs:
        if name not in batch:
            near = nearest(name, undeclared)
            undeclared = [key for key in undeclared if key != near]  # or one typo would be two problems
            way_out = "" if near or name in inputs else f"; {_lacking(name)}"
            found = f'the batch has no "{name}"{suggest(name, [near])}; its keys are {quoted(batch)}'
            messages.append(found + way_out)
    if undeclared:
        messages.append(
            f"the batch also has {quoted(undeclared)}, which is not declared; declared are {quoted(order)}; "
            "declare it as a label, or name it in batch= and in unused="
        )
    return {name: batch[name] for name in order if name in batch}, [Problem("data", m) for m in messages]


def _slot(name: str, array: Any, batch_axis: int) -> Iterator[str]:
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        yield (
            f'the slot "{name}" holds {shown(array)}, which is not an array; '
            "valid are NDArrays and NumPy arrays"
        )
        return
    where = f'the slot "{name}" is {describe.array(array)}'
    if getattr(array.dtype, "kind", "f") not in "fiub":
        fix = "encode it, or leave it out with batch_fn="
        yield f"{where}, which a net cannot take; valid are floats, integers and bool: {fix}"
    elif is_masked(array):
        fill = f'fill it, as with array.filled(-1), and declare a label as LabelSpec("{name}", missing=-1)'
        yield f"{where}, some of it masked, and masks are lost on the way to a device; {fill}"
    elif len(array.shape) <= batch_axis:
        yield f"{where}, which has no batch axis {batch_axis}; a batch holds one row for each sample"
