"""Binding a batch's arrays to the declared slots."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ..errors import Problem, names, suggest
from . import describe

__all__ = ["bind_slots", "slot_problems"]

FLOATS = "float16, float32, float64, an integer type or bool"


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
    plural = "array" if len(found) == 1 else "arrays"
    message = (
        f"the batch has {len(found)} {plural}: {describe.arrays(found)}; declared are {len(order)} slots: {names(order)}"
        f"{either}; declare every slot in inputs= and labels= (batch= gives their order, batch_fn= takes any other form)"
    )
    return {}, [Problem("data", message)]


def _by_key(
    order: Sequence[str], inputs: Sequence[str], found: Mapping[str, Any], labels_needed: bool
) -> tuple[dict[str, Any], list[Problem]]:
    needed = order if labels_needed else inputs
    messages = [
        f'the batch has no "{name}"{suggest(name, [key for key in found if key not in order])}; it has {names(map(str, found))}'
        for name in needed
        if name not in found
    ]
    extra = [str(key) for key in found if key not in order]
    if extra:
        messages.append(
            f"the batch also has {names(extra)}, which are not declared; declared are {names(order)}; "
            "declare them as labels, or name them in batch= and in unused="
        )
    return {name: found[name] for name in order if name in found}, [
        Problem("data", text) for text in messages
    ]


def slot_problems(slots: Mapping[str, Any], batch_axis: int = 0) -> list[Problem]:
    """Check dtypes and sample counts of named arrays; None stands for an input that is left out."""
    messages = []
    arrays = {name: array for name, array in slots.items() if array is not None}
    for name, array in arrays.items():
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            messages.append(
                f'the slot "{name}" holds {array!r:.60}, which is no array; valid are NDArrays and NumPy arrays'
            )
        elif getattr(array.dtype, "kind", "f") not in "fiub":
            messages.append(
                f'the slot "{name}" is {describe.array(array)}, which a net cannot take; valid are {FLOATS}: '
                "encode it, or leave it out with batch_fn="
            )
        elif len(array.shape) <= batch_axis:
            messages.append(
                f'the slot "{name}" is {describe.array(array)}, which has no batch axis {batch_axis}'
            )
    if not messages and len({array.shape[batch_axis] for array in arrays.values()}) > 1:
        sizes = ", ".join(f"{name} {describe.array(array)}" for name, array in arrays.items())
        messages.append(
            f"the slots hold different numbers of samples along axis {batch_axis}: {sizes}; make them equal"
        )
    return [Problem("data", message) for message in messages]
