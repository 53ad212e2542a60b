"""Check what handlers' hooks return in place of what they were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..checks import describe
from ..errors import HandlerError, counted, quoted, shown, suggest
from .dispatcher import HandlerMethod
from .handler_validation import handler_name


def replaced(method: HandlerMethod, arrays: Mapping[str, Any], replacements: Any) -> Mapping[str, Any]:
    """Return `arrays` with a hook's replacements, which must have the same names."""
    hook = _name(method)
    if replacements is None:
        return arrays
    if not isinstance(replacements, Mapping):
        raise HandlerError(
            f"{hook} returned {type(replacements).__name__}; return a dict of the arrays to replace, or None"
        )
    for name in replacements:
        if name not in arrays:
            near = suggest(str(name), arrays)
            raise HandlerError(f'{hook} returned "{name}"{near}; valid are {quoted(arrays)}')
    kinds = tuple({type(array) for array in arrays.values() if array is not None})
    for name, array in replacements.items():
        if array is not None and not isinstance(array, kinds):
            given = next(each for each in arrays.values() if each is not None)
            raise HandlerError(
                f'{hook} returned "{name}" as {type(array).__module__}.{type(array).__name__}; return '
                f"{type(given).__name__}s, as the handler is given"
            )
    return {**arrays, **replacements}


def check_types(method: HandlerMethod, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise HandlerError unless each output has the same dtype as before."""
    for name, array in after.items():
        given = before[name]
        if array is not given and getattr(array, "dtype", None) != getattr(given, "dtype", None):
            raise HandlerError(
                f'{_name(method)} returned "{name}" as {describe.array(array)}, and the output is '
                f"{describe.array(given)}; return arrays of the same dtype"
            )


def check_samples(
    method: HandlerMethod, before: Mapping[str, Any], after: Mapping[str, Any], batch_axis: int
) -> None:
    """Raise HandlerError unless each slot that is not None has as many samples as the slots before."""
    samples = next(array.shape[batch_axis] for array in before.values() if array is not None)
    for name, array in after.items():
        if array is before[name] or array is None:
            continue
        if getattr(array, "shape", ())[batch_axis : batch_axis + 1] != (samples,):
            raise HandlerError(
                f'{_name(method)} returned "{name}" as {describe.array(array)}, '
                f"but the slots hold {counted(samples, 'sample')} along axis {batch_axis}; return arrays of "
                "that many samples, and leave others out in the loader"
            )


def check_objectives(method: HandlerMethod, given: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Raise HandlerError unless the objectives have the type and shape of those that were given."""
    if given and not arrays:
        raise HandlerError(
            f"{_name(method)} returned no objectives, so that nothing would be trained; return None to "
            "leave them as they are, or leave the batch out in the loader"
        )
    for array in arrays if given else ():
        is_array = isinstance(array, type(given[0]))
        if not is_array or getattr(array, "shape", ()) != getattr(given[0], "shape", ()):
            found = describe.array(array) if is_array else shown(array)
            raise HandlerError(
                f"{_name(method)} returned {found} among the objectives; return a list of arrays of "
                "shape (1,), computed from what the handler is given or from parameters: a constant "
                "would change nothing"
            )


def _name(method: HandlerMethod) -> str:
    return f"{handler_name(method.handler)}.{method.event}"
