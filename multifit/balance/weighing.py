"""Asks a method for weights, and handles absent tasks and numbers that are not finite for all methods."""

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from ..utils.errors import SpecError, user_code
from ..utils.protocols import Numbers
from ..utils.text import counted, shown
from .protocol import Balance, GramianMethod, Measured, State

SMOOTHED = "smoothed weights"  # what is remembered for the option `smooth`, beside what the method remembers

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
        returned = shape(weights)
    if returned != (measured.tasks,):
        described = f"an array of shape {returned}" if returned else shown(weights)
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


def weigh_losses(
    method: Balance,
    measured: Measured,
    weights: Any,
    state: State,
    shape: Shape = shape_of_numbers,
    weighed: int | None = None,
) -> tuple[Any, State]:
    """Return the weights for the losses of a batch, and the method's new state, without waiting for values.

    If a loss is not finite, the weights stay those of the previous batch, `weights`, and the state stays what
    it was. A task that is absent has a weight of 0. `shape` returns the shape of an array. `weighed` is the
    number of tasks that can be present, by default all.
    """
    F = measured.F
    new, state = ask_weights(method, measured, state, shape)
    if getattr(method, "averages", False):
        new = new * measured.total(F.ones_like(measured.present)) / (weighed or measured.tasks)
    any_present = measured.repeated(F.max(measured.present, axis=0, keepdims=True))
    return F.where(measured.present == 1, new, weights * (1 - any_present)), state


def weigh_gradients(
    method: Any,
    losses: Numbers,
    gramian: Numbers,
    weights: Numbers,
    state: State,
    epoch: int = 0,
    step: int = 0,
    weighed: int | None = None,
    preference: Numbers | None = None,
) -> tuple[Numbers, State]:
    """Return the weights for the losses (K,) and Gramian (K, K) of a batch, and the method's new state.

    Tasks whose gradient is 0 are left out, and have a weight of 0. If a number is not finite, or all
    gradients are 0, the weights and the state stay what they were. `weighed` is the number of tasks that can
    have a gradient, by default all. `preference` (K,) is how much each task counts.
    """
    squares = gramian.diagonal().tolist()
    if not (isfinite(gramian.sum() + losses.sum()) and max(squares) > 0):
        return weights, state
    options = getattr(method, "normalize", False), getattr(method, "smooth", 0)
    if min(squares) > 0 and preference is None and not any(options):  # the usual case, with fewer arrays
        ones = np.array([1.0] * len(squares))
        measured = Measured(len(ones), losses, ones, epoch * ones, step, gramian)
        return _asked(method, measured, state)
    has_gradient = gramian.diagonal() > 0
    inner = gramian[np.ix_(has_gradient, has_gradient)]
    scale = _scale(np.sqrt(inner.diagonal()), options[0])
    inner = inner / np.outer(scale, scale)
    memory = {name: value for name, value in state.items() if name != SMOOTHED}
    of_those = {name: value[has_gradient] if _has_rows(value) else value for name, value in memory.items()}
    tasks, ones = len(inner), np.ones(len(inner))
    preferred = 1.0 if preference is None else preference[has_gradient]
    measured = Measured(tasks, losses[has_gradient], ones, epoch * ones, step, inner, preference=preferred)
    new, changed = _asked(method, measured, of_those)
    changed = {name: _scattered(memory[name], has_gradient, value) for name, value in changed.items()}
    if getattr(method, "averages", False):
        new = new * tasks / (weighed or len(has_gradient))
    if options[1]:
        average = state.get(SMOOTHED, np.full(len(has_gradient), np.nan))[has_gradient]
        new = np.where(np.isnan(average), new, options[1] * average + (1 - options[1]) * new)
        changed[SMOOTHED] = _scattered(state.get(SMOOTHED, np.nan), has_gradient, new)
    weights = np.zeros(len(has_gradient))
    weights[has_gradient] = new / scale
    return weights, changed


def _scale(lengths: Numbers, normalize: bool | str) -> Numbers:
    """Return by what gradients are divided."""
    if not normalize:
        return np.ones(len(lengths))
    common = {"largest": lengths.max(), "mean": lengths.mean()}
    return np.asarray(lengths / common.get(str(normalize), 1.0))


def _asked(method: Any, measured: Measured, state: State) -> tuple[Numbers, State]:
    new, changed = ask_weights(method, measured, state)
    return np.asarray(new, np.float64), changed


def _has_rows(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0


def _scattered(before: Any, has_gradient: Numbers, value: Any) -> Any:
    if not _has_rows(value):
        return value
    if not _has_rows(before):  # the number from which all tasks started
        before = np.full((len(has_gradient), *value.shape[1:]), before, value.dtype)
    after = before.copy()
    after[has_gradient] = value
    return after
