"""Calls a method of balancing, and names it in its exceptions and in errors about its invalid answers."""

from __future__ import annotations

from typing import Any, Callable, Collection, Optional

import numpy as np

from ..errors import SpecError, counted, quoted, shown, user_code
from .protocol import Balance, GramianMethod, Measured, State

Shape = Callable[[Any], Optional[tuple[int, ...]]]
"""Returns the shape of an array of numbers; None for anything else."""


def shape_of_numbers(value: Any) -> tuple[int, ...] | None:
    """Return the shape of what NumPy reads as numbers."""
    try:
        return np.asarray(value, np.float64).shape
    except (TypeError, ValueError):
        return None


def ask_start(method: Balance, tasks: int) -> State:
    """Return a method's state before the first batch."""
    return _checked_memory(method, "start", _called(method, "start", method.start, tasks))


def ask_weights(
    method: Balance, measured: Measured, state: State, shape: Shape = shape_of_numbers
) -> tuple[Any, State]:
    """Return a method's weights for the K tasks of a batch, of shape (K,), and its new state."""
    answer = _called(method, "weights", method.weights, measured, state)
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise SpecError(
            f"{_where(method, 'weights')} returned {_described(answer)}; it must return two values, the "
            "weights and what it remembers: return weights, state"
        )
    new, state = answer
    answered, wanted = _called(method, "weights", shape, new), (measured.tasks,)
    if answered != wanted:
        computed = "" if measured.F is np else ", computed with measured.F"
        present = "" if measured.gramian is None else " with a gradient in this batch; others are left out"
        raise SpecError(
            f"{_where(method, 'weights')} returned {_described(new, answered)}; it must return an array of "
            f"shape {wanted}{computed}: the weights of the {counted(measured.tasks, 'task')}{present}"
        )
    return new, _checked_memory(method, "weights", state)


def ask_after_update(method: Any, measured: Measured | None, after: Any, state: State) -> State:
    """Return a method's state once it has seen the losses of the same batch after the update."""
    state = _called(method, "after_update", method.after_update, measured, after, state)
    return _checked_memory(method, "after_update", state)


def check_memory(method: Balance, name: str, state: State, started: Collection[str], tasks: int) -> None:
    """Raise SpecError if a method's state has other names than at the start, or arrays without K rows.

    `name` is the function that returned `state`. Such a state would fail in a later batch that lacks a task.
    """
    if state.keys() != set(started):
        raise SpecError(
            f"{_where(method, name)} remembers {quoted(state)}, but at its start {quoted(started)}; start "
            "must return all that it remembers"
        )
    for key, value in state.items():
        if isinstance(value, np.ndarray) and value.ndim and value.shape[:1] != (tasks,):
            raise SpecError(
                f"{_where(method, name)} remembers {key} of shape {value.shape}; the first axis of an array "
                f"must be the {tasks} tasks, because tasks without a gradient are left out along that axis"
            )


def _called(method: Balance, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    with user_code(lambda: _where(method, name)):
        return function(*arguments)


def _checked_memory(method: Balance, name: str, state: Any) -> State:
    if not isinstance(state, dict):
        raise SpecError(
            f"{_where(method, name)} returned {_described(state)} as what it remembers; it must return a "
            "dict of arrays by name, empty if there are none"
        )
    return state


def _where(method: Balance, name: str) -> str:
    """Return the name of the function that the user wrote: in most methods of gradients, that is `solve`."""
    if name == "weights" and getattr(type(method), name, None) is GramianMethod.weights:
        name = "solve"
    return f"balance: {type(method).__name__}.{name}"


def _described(value: Any, shape: tuple[int, ...] | None = None) -> str:
    shape = getattr(value, "shape", None) or shape
    return f"an array of shape {shape}" if shape else shown(value)
