"""Checking what losses take and return, against what their terms declare."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ...utils.errors import Problem, SpecError
from ...utils.protocols import Numbers
from ...utils.text import counted
from .. import TaskSpec
from ..names import listed
from ..plan import function_name
from ..terms import Term
from . import describe

NO_GRADIENT = (
    "returns numbers that autograd has not computed from the outputs, so they train nothing; compute them "
    "from the outputs, without {}, or give weight=0 to only measure the loss"
)

Gradients = Sequence[tuple[Numbers, Numbers]]
"""Gradients of a loss for incoming gradients of 1 and of 4, by output."""


def absent_problems(spec: TaskSpec, slots: Mapping[str, Any]) -> list[Problem]:
    """Return the slots that are None, though a loss or metric of the batch takes them."""
    takers = [item for item in spec.takers if all(slots.get(name) is not None for name in item.optional)]
    read = {ref.name for item in takers for ref in item.labels}
    fix = '; if samples may lack this label, declare LabelSpec("{}", missing=...)'
    return [
        Problem(
            "data",
            f'the slot "{name}" is None, but losses or metrics take it; the batch must hold an array'
            f"{fix.format(name) * (name in spec.labels)}",
        )
        for name, slot in slots.items()
        if slot is None and name in read
    ]


def weights_problems(spec: TaskSpec, least: Callable[[str], float | None]) -> list[Problem]:
    """Return the slots of samples' weights whose ``least(name)``, the smallest of a batch, is below 0."""
    smallest = {name: least(name) for name in (term.spec.sample_weight for term in spec.terms) if name}
    return [
        Problem("data", f'sample_weight: the slot "{name}" holds {value:g}; weights must be at least 0')
        for name, value in smallest.items()
        if value is not None and value < 0
    ]


def parts_problem(
    term: Term, values: Sequence[Any], kind: type, array: str, dtypes: Collection[Any], cast: str
) -> str | None:
    """Return what is wrong with the number, the type and the dtypes of a loss's parts, or None.

    They must be of type `kind`, which is `array` in words, and have one of the `dtypes`; `cast` names the one
    that they should have, and how.
    """
    declared, returned = listed(term.spec.returns), describe.structure(list(values))
    if not values or not all(isinstance(value, kind) for value in values):
        return f"returns {returned[1:-1] or 'nothing'}; a loss must return {array}, or several"
    if declared and len(values) != len(declared):
        parts = f"returns= names {len(declared)}: {', '.join(declared)}"
        return (
            f"returns {counted(len(values), 'part')}, {returned}, but {parts}; name each part that it returns"
        )
    if not declared and len(values) > 1:
        way_out = "name them with returns=[...], and the one that counts with minimize="
        return f"returns {len(values)} parts, {returned}; {way_out}"
    if not all(value.dtype in dtypes for value in values):
        return f"returns {returned[1:-1]}; a loss must return {cast}"
    return None


def class_weights_problem(term: Term, classes: int | None) -> str | None:
    """Return what is wrong with a loss's class weights, given its number of classes, None if it has none."""
    weights, wrong = term.spec.class_weights, ""
    if classes is None:
        kind = type(term.spec.fn).__name__
        wrong = f"need class indices as labels, which {kind} does not take; use sample_weight="
    elif isinstance(weights, tuple) and len(weights) != classes:
        wrong = f"are {len(weights)} numbers for {counted(classes, 'class', 'classes')}"
    elif isinstance(weights, Mapping) and max(weights) >= classes:
        wrong = f"name the class {max(weights)}; classes are 0 … {classes - 1}"
    return f"{term.where}: class_weights {wrong}" if wrong else None


def has_values(parts: Sequence[Any], masks: Sequence[Any]) -> bool:
    """Whether all parts of a loss have a value for each value of its labels, and samples have several.

    `masks` say which values of the labels are present.
    """
    samples, sizes = len(masks[0]), {math.prod(mask.shape) for mask in masks}
    size = max(sizes)
    return (
        size > samples
        and sizes <= {samples, size}
        and all(tuple(each.shape[:1]) == (samples,) and math.prod(each.shape) == size for each in parts)
    )


def check_weights(term: Term, values: Any, weight: Any) -> None:
    """Raise SpecError unless there is a weight for each of a loss's values, or for each sample."""
    sizes = len(weight), math.prod(values.shape)
    if values.shape[:1] != weight.shape[:1] or math.prod(weight.shape) not in sizes:
        raise SpecError(
            f"{term.where}: its weights are {describe.array(weight)}, and it returns "
            f"{describe.array(values)}; return a value for each weight, or give a weight for each sample"
        )


def check_rows(term: Term, values: Any, samples: int, way_out: str = "") -> None:
    """Raise SpecError unless a loss whose label may be missing returns something for each sample."""
    if tuple(values.shape[:1]) != (samples,):
        raise SpecError(
            f"{term.where}: its label may be missing, and it returns {describe.array(values)} for "
            f"{samples} samples; return a value for each sample, so that some can be left out{way_out}"
        )


def are_scaled(gradients: Gradients, factor: float) -> bool:
    """Whether an incoming gradient of 4 gives a multiple of what 1 gives; numbers that are not finite may."""
    finite = [(one, four) for one, four in gradients if np.isfinite(one).all()]
    return all(np.allclose(four, factor * one, rtol=1e-3, atol=1e-12) for one, four in finite)


def weight_problem(loss: Any, gradients: Gradients, way_out: str) -> str | None:
    """Return what is wrong if a loss ignores the gradient that it receives, and so its weight; else None."""
    if are_scaled(gradients, 4):
        return None
    same = "the same gradient" if are_scaled(gradients, 1) else "one that is not four times as large"
    return (
        f"{function_name(loss)} ignores its weight: an incoming gradient four times as large gave {same}, so "
        f"weights and normalisation have no effect; {way_out}"
    )
