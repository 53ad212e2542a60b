"""Checks of what the net and the losses return, against what is declared."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ...utils.errors import Problem, SpecError
from ...utils.protocols import Numbers
from ...utils.text import counted, nearest, quoted, suggest
from .. import TaskSpec
from ..plan import function_name
from ..terms import Term, Tree, leaves, listed
from . import describe

Path = tuple[Any, ...]  # indices and keys that lead from the net's result to one array


def bind_outputs(
    declared: Tree, result: Any, where: str = "the net"
) -> tuple[dict[str, Path], list[Problem]]:
    """Return the path of every declared output in what the net returned, and what does not match.

    Lists and tuples are the same here, as hybridizing turns one into the other. A mapping is matched by key:
    the name, or the part after its last ``/``. ``...`` at the end of any level ignores the rest.
    """
    binding = _Binding(where)
    if not binding.bind(declared, result, ()):
        binding.messages = [_mismatch(declared, result, where)]
    return binding.paths, [Problem("spec", message) for message in binding.messages]


def at_path(result: Any, path: Path) -> Any:
    """Return the item of a net's result that a path from :func:`bind_outputs` leads to."""
    for step in path:
        result = result[step]
    return result


class _Binding:
    """Paths and messages, collected level by level."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.paths: dict[str, Path] = {}
        self.messages: list[str] = []

    def bind(self, declared: Tree, result: Any, path: Path) -> bool:
        """Bind one level; return whether its structure is as declared."""
        items = [item for item in declared if item is not Ellipsis]
        if isinstance(result, Mapping):
            self._bind_keys(declared, result, path)
            return True
        if not isinstance(result, (list, tuple)):
            is_single = result is not None and len(items) == 1 and isinstance(items[0], str)
            if is_single:
                self.paths[items[0]] = path
            return is_single
        if len(items) > len(result) or (len(items) < len(result) and Ellipsis not in declared):
            return False
        return all(self._bind_item(item, result[i], (*path, i)) for i, item in enumerate(items))

    def _bind_item(self, item: Any, result: Any, path: Path) -> bool:
        if isinstance(item, tuple):
            return self.bind(item, result, path)
        if result is None or isinstance(result, (list, tuple, Mapping)):
            return False
        self.paths[item] = path
        return True

    def _bind_keys(self, declared: Tree, result: Mapping[str, Any], path: Path) -> None:
        used = set()
        for _, name in leaves(declared):
            key = next((key for key in (name, str(name).rpartition("/")[2]) if key in result), None)
            used.add(key)
            if key is not None:
                self.paths[name] = (*path, key)
            elif name is not Ellipsis:
                used.add(nearest(name, result))  # or one typo would be two problems
                self.messages.append(
                    f'outputs: {self.where} returns no "{name}"{suggest(name, result)}; '
                    f"it returns {quoted(result)}"
                )
        undeclared = [key for key in result if key not in used]
        if undeclared and Ellipsis not in declared:
            self.messages.append(
                f"outputs: {self.where} also returns {quoted(undeclared)}, which is not declared; "
                "name it (and list it in unused=), or end outputs with ... to ignore the rest"
            )


def _mismatch(declared: Tree, result: Any, where: str) -> str:
    items = [name for _, name in leaves(declared)]
    count = len(items) - (Ellipsis in items)
    returned_items = [leaf for _, leaf in leaves(result)]
    arrays = [leaf for leaf in returned_items if leaf is not None]
    fix = "nest the names as the net nests its outputs"
    if len(arrays) < len(returned_items):
        fix = (
            "None cannot be an output: return arrays alone, or pick them, with forward=lambda net, slots: "
            "[each for each in net(slots[...]) if each is not None]"
        )
        if all(each is not None for each in returned_items[:count]):
            fix = "None cannot be an output: leave it out, or end outputs with ... to ignore the rest"
    elif len(arrays) != count:
        fix = "name as many, in the same order and nesting"
    if len(arrays) > count:
        fix += ", or end outputs with ... to ignore the rest"
    if "evaluat" in where:
        fix += "; a net that returns something else when evaluating needs evaluate=TaskSpec(...)"
    shown = ", ".join("..." if name is Ellipsis else str(name) for name in items)
    nothing = " and None" if len(arrays) < len(returned_items) else ""
    returned = f"{counted(len(arrays), 'array')}{nothing}: {describe.structure(result)}"
    return f"outputs: {count} declared ({shown}), {where} returns {returned}; {fix}"


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
