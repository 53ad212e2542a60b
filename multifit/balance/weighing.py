"""Asks a method for weights, and handles absent tasks and numbers that are not finite for all methods."""

from math import isfinite
from typing import Any

import numpy as np

from ..protocols import Numbers
from .answers import Shape, ask_weights, shape_of_numbers
from .protocol import Balance, Measured, State


def weigh_losses(
    method: Balance,
    measured: Measured,
    weights: Any,
    state: State,
    shape: Shape = shape_of_numbers,
    counted: int | None = None,
) -> tuple[Any, State]:
    """Return the weights for the losses of a batch, and the method's new state, without waiting for values.

    If a loss is not finite, the weights stay those of the previous batch, `weights`, and the state stays what
    it was. A task that is absent has a weight of 0. `shape` returns the shape of an array. `counted` is the
    number of tasks that can be present, by default all.
    """
    F = measured.F
    new, state = ask_weights(method, measured, state, shape)
    if getattr(method, "averages", False):
        new = new * measured.total(F.ones_like(measured.present)) / (counted or measured.tasks)
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
    counted: int | None = None,
    preference: Numbers | None = None,
) -> tuple[Numbers, State]:
    """Return the weights for the losses (K,) and Gramian (K, K) of a batch, and the method's new state.

    Tasks whose gradient is 0 are left out, and have a weight of 0. If a number is not finite, or all
    gradients are 0, the weights and the state stay what they were. `counted` is the number of tasks that can
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
    there = gramian.diagonal() > 0
    inner = gramian[np.ix_(there, there)]
    scale = _scale(np.sqrt(inner.diagonal()), options[0])
    inner = inner / np.outer(scale, scale)
    kept = {name: value for name, value in state.items() if name != SMOOTHED}
    of_those = {name: value[there] if _has_rows(value) else value for name, value in kept.items()}
    tasks, ones = len(inner), np.ones(len(inner))
    preferred = 1.0 if preference is None else preference[there]
    measured = Measured(tasks, losses[there], ones, epoch * ones, step, inner, preference=preferred)
    new, changed = _asked(method, measured, of_those)
    changed = {name: _scattered(kept[name], there, value) for name, value in changed.items()}
    if getattr(method, "averages", False):
        new = new * tasks / (counted or len(there))
    if options[1]:
        average = state.get(SMOOTHED, np.full(len(there), np.nan))[there]
        new = np.where(np.isnan(average), new, options[1] * average + (1 - options[1]) * new)
        changed[SMOOTHED] = _scattered(state.get(SMOOTHED, np.nan), there, new)
    weights = np.zeros(len(there))
    weights[there] = new / scale
    return weights, changed


SMOOTHED = "smoothed weights"  # what is remembered for the option `smooth`, beside what the method remembers


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


def _scattered(before: Any, there: Numbers, value: Any) -> Any:
    if not _has_rows(value):
        return value
    if not _has_rows(before):  # the number from which all tasks started
        before = np.full((len(there), *value.shape[1:]), before, value.dtype)
    after = before.copy()
    after[there] = value
    return after
