"""The declaration of state that is carried from batch to batch."""

from __future__ import annotations

import numbers
from typing import Any, Iterator, Mapping

from ..errors import quoted, shown, suggest
from .declarations import Declarations

EXAMPLE = 'such as {"hidden": (2, 0, 64)}, with 0 for the number of samples'


def parsed_state(value: Any) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Return the shape of each slot of the state, and what is wrong with the declared `value`."""
    if value is None:
        return {}, []
    if not isinstance(value, Mapping):
        return {}, [f"state: is {shown(value)}; give a dict of shapes by name, {EXAMPLE}"]
    valid = {name: tuple(map(int, shape)) for name, shape in value.items() if _is_shape(name, shape)}
    return valid, [
        f"state: {shown(name)} has the shape {shown(shape)}; give a tuple of whole numbers, {EXAMPLE}"
        for name, shape in value.items()
        if name not in valid
    ]


def state_messages(declarations: Declarations) -> Iterator[str]:
    """Yield which slots of the state are not inputs, are not returned by the net, or are in `batch`."""
    for name in declarations.state:
        for field, valid in (("inputs", declarations.inputs), ("outputs", declarations.output_names)):
            if name not in valid:
                yield (
                    f'state: "{name}" is not one of the {field}{suggest(name, valid)}; the net must take it '
                    f"as an input and return its new value as an output; {field} are {quoted(valid)}"
                )
        if name in declarations.batch:
            yield f'batch: "{name}" is carried from batch to batch; leave it out'


def _is_shape(name: object, shape: Any) -> bool:
    sizes = list(shape) if isinstance(shape, (list, tuple)) else []
    whole = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) and int(n) >= 0 for n in sizes)
    return isinstance(name, str) and whole and sizes.count(0) == 1
