"""Asks a method for weights, and handles absent tasks and numbers that are not finite for all methods."""

from math import isfinite
from typing import Any

import numpy as np

from ..protocols import Numbers
from .answers import Shape, ask_weights, shape_of_numbers
from .protocol import Balance, Measured, State


def weigh_losses(
    method: Balance, measured: Measured, weights: Any, state: State, shape: Shape = shape_of_numbers
) -> tuple[Any, State]:
    """Return the weights for the losses of a batch, and the method's new state, without waiting for values.

    If a loss is not finite, the weights stay those of the previous batch, `weights`, and the state stays what
    it was. A task that is absent has a weight of 0. `shape` returns the shape of an array.
    """
    F = measured.F
    new, state = ask_weights(method, measured, state, shape)
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
) -> tuple[Numbers, State]:
    """Return the weights for the losses (K,) and Gramian (K, K) of a batch, and the method's new state.

    Tasks whose gradient is 0 are left out, and have a weight of 0. If a number is not finite, or all
    gradients are 0, the weights and the state stay what they were.
    """
    squares = gramian.diagonal().tolist()
    if not (isfinite(gramian.sum() + losses.sum()) and max(squares) > 0):
        return weights, state
    if min(squares) > 0 and not getattr(method, "normalize", False):  # the usual case, with fewer arrays
        ones = np.array([1.0] * len(squares))
        measured = Measured(len(ones), losses, ones, epoch * ones, step, gramian)
        return _asked(method, measured, state)
    return _weigh_present(method, losses, gramian, gramian.diagonal() > 0, state, epoch, step)


def _weigh_present(
    method: Any, losses: Numbers, gramian: Numbers, there: Numbers, state: State, epoch: int, step: int
) -> tuple[Numbers, State]:
    """Ask for the weights of the tasks that have a gradient.

    The gradients are normalized if the method wants that.
    """
    inner = gramian[np.ix_(there, there)]
    scale = np.sqrt(inner.diagonal()) if getattr(method, "normalize", False) else np.ones(len(inner))
    inner = inner / np.outer(scale, scale)
    of_those = {name: value[there] if _has_rows(value) else value for name, value in state.items()}
    tasks, ones = len(inner), np.ones(len(inner))
    measured = Measured(tasks, losses[there], ones, epoch * ones, step, inner)
    new, changed = _asked(method, measured, of_those)
    weights = np.zeros(len(there))
    weights[there] = new / scale
    return weights, {name: _scattered(state[name], there, value) for name, value in changed.items()}


def _asked(method: Any, measured: Measured, state: State) -> tuple[Numbers, State]:
    new, changed = ask_weights(method, measured, state)
    return np.asarray(new, np.float64), changed


def _has_rows(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0


def _scattered(before: Any, there: Numbers, value: Any) -> Any:
    if not _has_rows(value):
        return value
    if not _has_rows(before):  # the number from which all tasks started
        before = np.full((len(there), *value.shape[1:]), before, value.dtype)
    after = before.copy()
    after[there] = value
    return after
