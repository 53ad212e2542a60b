"""Binding a batch's arrays to the declared slots."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

from ..errors import Problem, counted, names, nearest, shown, suggest
from . import describe

__all__ = ["bind_slots", "slot_problems"]


def bind_slots(
    order: Sequence[str],
    inputs: Sequence[str],
    found: Sequence[Any] | Mapping[str, Any],
    labels_needed: bool = True,
) -> tuple[dict[str, Any], list[Problem]]:
    """Name the arrays of a batch.

    Parameters
    ----------
    order : sequence of str
        The slots of a whole batch, in order.
    inputs : sequence of str
        The slots that the net is called with.
    found : sequence or mapping of arrays
        The batch, flat; a mapping is matched by key.
    labels_needed : bool
        False for predicting, where a batch may hold the inputs alone.

    Returns
    -------
    dict of str to array, list of Problem
    """
    if isinstance(found, Mapping):
        return _by_key(order, inputs, found, labels_needed)
    if len(found) == len(order):
        return dict(zip(order, found)), []
    if not labels_needed and len(found) == len(inputs):
        return dict(zip(inputs, found)), []
    either = "" if labels_needed else f" (or the inputs alone: {names(inputs)})"
    message = (
        f"the batch has {counted(len(found), 'array')}: {describe.arrays(found)}; "
        f"declared {counted(len(order), 'slot')}: {names(order)}{either}; {_way(found)}"
    )
    return {}, [Problem("data", message)]


def _way(found: Sequence[Any]) -> str:
    by_name = "or return the slots by name in batch_fn="
    if any(getattr(item, "shape", None) == () for item in found):
        return f"lists of numbers are taken apart: make one array of each, {by_name}"
    if any(isinstance(item, str) for item in found):
        return f"strings are no arrays: encode them, {by_name}"
    return f"name every array in inputs= and labels= (batch= gives the order), {by_name}"


def _by_key(
    order: Sequence[str], inputs: Sequence[str], found: Mapping[str, Any], labels_needed: bool
) -> tuple[dict[str, Any], list[Problem]]:
    needed = order if labels_needed else inputs
    spare = [key for key in found if key not in order]
    messages = []
    for name in needed:
        if name not in found:
            near = nearest(name, spare)
            spare = [key for key in spare if key != near]  # what was meant is not told a second time
            messages.append(f'the batch has no "{name}"{suggest(name, [near])}; its keys are {names(found)}')
    if spare:
        messages.append(
            f"the batch also has {names(spare)}, which is not declared; declared are {names(order)}; "
            "declare it as a label, or name it in batch= and in unused="
        )
    return {name: found[name] for name in order if name in found}, [Problem("data", m) for m in messages]


def slot_problems(slots: Mapping[str, Any], batch_axis: int = 0) -> list[Problem]:
    """Check dtypes and sample counts of named arrays; None stands for an input that is left out."""
    arrays = {name: array for name, array in slots.items() if array is not None}
    messages = [wrong for name, array in arrays.items() for wrong in _slot(name, array, batch_axis)]
    if not messages and len({array.shape[batch_axis] for array in arrays.values()}) > 1:
        sizes = ", ".join(f"{name} {describe.array(array)}" for name, array in arrays.items())
        messages.append(
            f"the slots hold different numbers of samples along axis {batch_axis}: {sizes}; make them equal"
        )
    return [Problem("data", message) for message in messages]


def _slot(name: str, array: Any, batch_axis: int) -> Iterator[str]:
    where = f'the slot "{name}" is {describe.array(array)}'
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        found = f'the slot "{name}" holds {shown(array)}'
        yield f"{found}, which is no array; valid are NDArrays and NumPy arrays"
    elif getattr(array.dtype, "kind", "f") not in "fiub":
        way = "encode it, or leave it out with batch_fn="
        yield f"{where}, which a net cannot take; valid are floats, integers and bool: {way}"
    elif len(array.shape) <= batch_axis:
        yield f"{where}, which has no batch axis {batch_axis}; a batch holds one row for each sample"
