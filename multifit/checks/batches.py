"""Binding a batch's arrays to the declared slots."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

from ..errors import Problem, counted, names, nearest, shown, suggest
from . import describe


def bind_slots(
    order: Sequence[str],
    inputs: Sequence[str],
    batch: Sequence[Any] | Mapping[str, Any],
    labels_needed: bool = True,
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the arrays of a flat batch by name, and what does not match.

    `order` names the slots of a whole batch, `inputs` those that the net is called with. A mapping is matched
    by key. Labels are not needed in prediction, where a batch may hold the inputs alone.
    """
    if isinstance(batch, Mapping):
        return _by_key(order, inputs, batch, labels_needed)
    if len(batch) == len(order):
        return dict(zip(order, batch)), []
    if not labels_needed and len(batch) == len(inputs):
        return dict(zip(inputs, batch)), []
    inputs_alone = "" if labels_needed else f" (or the inputs alone: {names(inputs)})"
    message = (
        f"the batch has {counted(len(batch), 'array')}: {describe.arrays(batch)}; "
        f"declared {counted(len(order), 'slot')}: {names(order)}{inputs_alone}; {_fix(batch)}"
    )
    return {}, [Problem("data", message)]


def slot_problems(slots: Mapping[str, Any], batch_axis: int = 0) -> list[Problem]:
    """Check dtypes and sample counts; None stands for an input that is left out."""
    arrays = {name: array for name, array in slots.items() if array is not None}
    messages = [message for name, array in arrays.items() for message in _slot(name, array, batch_axis)]
    if not messages and len({array.shape[batch_axis] for array in arrays.values()}) > 1:
        sizes = ", ".join(f"{name} {describe.array(array)}" for name, array in arrays.items())
        messages.append(
            f"the slots hold different numbers of samples along axis {batch_axis}: {sizes}; make them equal"
        )
    return [Problem("data", message) for message in messages]


def _fix(batch: Sequence[Any]) -> str:
    by_name = "or return the slots by name in batch_fn="
    if any(getattr(item, "shape", None) == () for item in batch):
        return f"a list of numbers counts as one array per number: make it one array, {by_name}"
    if any(isinstance(item, str) for item in batch):
        return f"strings are not arrays: encode them, {by_name}"
    return f"name every array in inputs= and labels= (batch= gives the order), {by_name}"


def _by_key(
    order: Sequence[str], inputs: Sequence[str], batch: Mapping[str, Any], labels_needed: bool
) -> tuple[dict[str, Any], list[Problem]]:
    undeclared = [key for key in batch if key not in order]
    messages = []
    for name in order if labels_needed else inputs:
        if name not in batch:
            near = nearest(name, undeclared)
            undeclared = [key for key in undeclared if key != near]  # or one slip would be two problems
            messages.append(f'the batch has no "{name}"{suggest(name, [near])}; its keys are {names(batch)}')
    if undeclared:
        messages.append(
            f"the batch also has {names(undeclared)}, which is not declared; declared are {names(order)}; "
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
    elif len(array.shape) <= batch_axis:
        yield f"{where}, which has no batch axis {batch_axis}; a batch holds one row for each sample"
