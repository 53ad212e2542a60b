"""Calls a method of balancing, and names it in its exceptions; its weights must have the right shape."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import SpecError, counted, shown, user_code
from .protocol import Balance, GramianMethod, Measured, State

Shape = Callable[[Any], tuple[int, ...] | None]
"""Returns the shape of an array of numbers; None for anything else."""


def shape_of_numbers(value: Any) -> tuple[int, ...] | None:
    """Return the shape of what NumPy reads as numbers."""
    try:
        return np.asarray(value, np.float64).shape
    except (TypeError, ValueError):
        return None


def ask(method: Any, name: str, *arguments: Any) -> Any:
    """Call a function of a method, such as ``start``."""
    with user_code(lambda: _where(method, name)):
        return getattr(method, name)(*arguments)


def ask_weights(
    method: Balance, measured: Measured, state: State, shape: Shape = shape_of_numbers
) -> tuple[Any, State]:
    """Return a method's weights for the K tasks of a batch, of shape (K,), and its new state."""
    with user_code(lambda: _where(method, "weights")):
        weights, state = method.weights(measured, state)
        found = shape(weights)
    if found != (measured.tasks,):
        described = f"an array of shape {found}" if found else shown(weights)
        computed = "" if measured.F is np else ", computed with measured.F"
        present = "" if measured.gramian is None else " with a gradient in this batch; others are left out"
        raise SpecError(
            f"{_where(method, 'weights')} returned {described}; it must return an array of shape "
            f"{(measured.tasks,)}{computed}: the weights of the {counted(measured.tasks, 'task')}{present}"
        )
    return weights, state


def _where(method: Balance, name: str) -> str:
    """Return the name of the function that the user wrote: in most methods of gradients, that is `solve`."""
    if name == "weights" and getattr(type(method), name, None) is GramianMethod.weights:
        name = "solve"
    return f"balance: {type(method).__name__}.{name}"
