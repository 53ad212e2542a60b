"""Schedules of learning rates, for ``TrainerSpec(lr_scheduler=...)``, and of losses' weights.

A schedule of a rate is called with the number of updates, as MXNet's are, and has an attribute `base_lr`. It
runs with every engine.

A schedule of a weight, for ``LossSpec(weight=...)``, is a function of the :class:`~multifit.RunState`. It has
no state of its own, so a resumed run continues it without saving or loading anything.
"""

import copy
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from .handlers.state import RunState
from .utils.arguments import (
    Count,
    FromZero,
    NotNegative,
    OpenShare,
    Positive,
    Valid,
    bounds,
    checked,
    checked_value,
)
from .utils.protocols import Schedule

__all__ = ["OneCycle", "WarmUp", "piecewise", "ramp"]

_Weights = Annotated[
    Mapping[int, float],
    Valid(
        "a dict with epoch 0, such as {{0: 0.1, 5: 1.0}}: 0.1 for five epochs, then 1",
        lambda value: 0 in value,
    ),
]
_Divisor = Annotated[float, bounds(least=1)]
_Scheduler = Annotated[
    Any,  # an instance: the class's own base_lr is its default
    Valid(
        "an instance with a base_lr, such as OneCycle(0.01, 1000)",
        lambda value: callable(value) and not isinstance(value, type) and hasattr(value, "base_lr"),
    ),
]


class OneCycle:
    r"""One rise and one long fall of the learning rate, both along half a cosine.

    From ``max_lr / start_divisor`` at update 0 it rises to `max_lr` at update ``warm * steps``, falls to
    ``max_lr / final_divisor`` at update `steps`, and stays there. The idea is L. N. Smith and N. Topin's
    ("Super-Convergence", 2018); the cosines and the defaults are fastai's (``fit_one_cycle``).

    Parameters
    ----------
    max_lr : float
        The highest rate. A ``learning_rate`` in a TrainerSpec's `optimizer_params` replaces it.
    steps : int
        Number of updates of the whole cycle: epochs times batches per epoch.
    warm : float
        The share of the steps in which the rate rises, above 0 and below 1.
    start_divisor : float
        `max_lr` divided by the first rate; at least 1.
    final_divisor : float
        `max_lr` divided by the last rate; at least 1.

    Raises
    ------
    ValueError
        An argument is not valid.
    """

    @checked
    def __init__(
        self,
        max_lr: Positive,
        steps: Count,
        warm: OpenShare = 0.25,
        start_divisor: _Divisor = 25.0,
        final_divisor: _Divisor = 1e5,
    ) -> None:
        self.base_lr = max_lr  # which optimizers set
        self.base_lr_orig, self.steps, self.warm = max_lr, steps, warm
        self.start_divisor, self.final_divisor = start_divisor, final_divisor

    def __call__(self, num_update: int) -> float:
        """Return the rate after a number of updates."""
        highest, peak = self.base_lr_orig, self.warm * self.steps
        if num_update < peak:
            return _cosine(highest / self.start_divisor, highest, num_update / peak)
        share = min(1.0, (num_update - peak) / (self.steps - peak))
        return _cosine(highest, highest / self.final_divisor, share)


class Wrapper:
    """A schedule around another one, whose `base_lr` it shares. All of its state is in its attributes."""

    def __init__(self, scheduler: Schedule) -> None:
        self.scheduler = scheduler

    @property
    def base_lr(self) -> float:
        """The base rate of the wrapped schedule."""
        return self.scheduler.base_lr

    @base_lr.setter
    def base_lr(self, rate: float) -> None:
        self.scheduler.base_lr = rate


class WarmUp(Wrapper):
    """A linear rise to the first rate of any schedule, which starts when the rise is over.

    Unlike ``warmup_steps`` of MXNet's own schedules, this delays the wrapped schedule, which is at its update
    0 at update `steps`.

    Parameters
    ----------
    scheduler : OneCycle, LRScheduler of MXNet or any callable with an attribute `base_lr`
        The schedule after the rise. With MXNet, for a constant rate, ``mx.lr_scheduler.FactorScheduler(10**9,
        base_lr=1e-3)``.
    steps : int
        Number of updates of the rise.
    start : float
        The rate at update 0. The first rate that an optimizer uses is that of update 1.

    Raises
    ------
    ValueError
        An argument is not valid.
    """

    @checked
    def __init__(self, scheduler: _Scheduler, steps: Count, start: NotNegative = 0.0) -> None:
        super().__init__(scheduler)
        self.steps, self.start = steps, start

    def __call__(self, num_update: int) -> float:
        """Return the rate after a number of updates."""
        if num_update >= self.steps:
            return self.scheduler(num_update - self.steps)
        return self.start + (self.scheduler(0) - self.start) * num_update / self.steps


@checked
def ramp(
    start: NotNegative, end: NotNegative, epochs: Count | None = None, steps: Count | None = None
) -> Callable[[RunState], float]:
    """Return a weight that changes linearly from `start` to `end` and then stays there.

    Parameters
    ----------
    start, end : float
        The weight in the first epoch or batch of the run, and after the ramp. At least 0.
    epochs, steps : int
        The length of the ramp; pass exactly one of them. With ``epochs=5``, the sixth epoch is the first at
        `end`. With `steps`, the weight changes with each batch.

    Returns
    -------
    callable
        A function of the `RunState`.

    Raises
    ------
    ValueError
        An argument is not valid.
    """
    unit, length = ("epochs", epochs) if steps is None else ("steps", steps)
    if length is None or None not in (epochs, steps):
        raise ValueError(f"ramp was given epochs={epochs} and steps={steps}; give exactly one of them")
    return _Ramp(start, end, unit, length)


@checked
def piecewise(weights: _Weights) -> Callable[[RunState], float]:
    """Return a weight that changes at some epochs and is constant in between.

    Parameters
    ----------
    weights : mapping of int to float
        The weights by the epoch from which they apply, counted from 0 as in ``RunState.epoch``. Epoch 0 is
        required: ``piecewise({0: 0.1, 5: 1.0})`` is 0.1 for five epochs, and 1 from then on.

    Returns
    -------
    callable
        A function of the `RunState`.

    Raises
    ------
    ValueError
        Epoch 0 is missing, or an epoch or weight is not valid.
    """
    pairs = [
        (
            checked_value("piecewise: an epoch of weights", epoch, FromZero),
            checked_value(f"piecewise: weights[{epoch}]", weight, NotNegative),
        )
        for epoch, weight in weights.items()
    ]
    return _Piecewise(tuple(sorted(pairs)))


@dataclass(frozen=True, repr=False)
class _Ramp:
    __name__ = "ramp"  # shown in a TaskSpec's summary
    start: float
    end: float
    unit: str
    length: int

    def __call__(self, state: RunState) -> float:
        done = state.epoch if self.unit == "epochs" else state.step
        if done >= self.length:
            return self.end  # exactly, without rounding
        return self.start + (self.end - self.start) * done / self.length

    def __repr__(self) -> str:
        return f"ramp({self.start:g}, {self.end:g}, {self.unit}={self.length})"


@dataclass(frozen=True, repr=False)
class _Piecewise:
    __name__ = "piecewise"
    pairs: tuple[tuple[int, float], ...]

    def __call__(self, state: RunState) -> float:
        return next(weight for epoch, weight in reversed(self.pairs) if epoch <= state.epoch)

    def __repr__(self) -> str:
        return f"piecewise({{{', '.join(f'{epoch}: {weight:g}' for epoch, weight in self.pairs)}}})"


# ---- what engines do with schedules of rates


class ScaledSchedule(Wrapper):
    """Another schedule, scaled by a factor that can be changed while it runs."""

    def __init__(self, scheduler: Schedule) -> None:
        super().__init__(scheduler)
        self.factor = 1.0
        self.rate = 0.0  # the rate that was set last
        self.since = -1  # the update at which it was set
        self.holds = False  # whether `rate` holds until the wrapped schedule leaves 0

    def set(self, rate: float, num_update: int) -> None:
        """Set the rate of update `num_update` to exactly `rate`, and scale all later ones accordingly.

        A rate of 0 cannot be scaled: if the wrapped schedule is at 0, `rate` holds until it leaves 0. Its
        later rates are then scaled as before.
        """
        unscaled = self.scheduler(num_update)
        self.rate, self.since, self.holds = rate, num_update, unscaled == 0
        if unscaled:
            self.factor = rate / unscaled

    def __call__(self, num_update: int) -> float:
        """Return the rate after a number of updates."""
        unscaled = self.scheduler(num_update)
        self.holds = self.holds and unscaled == 0
        if self.holds or num_update == self.since:
            return self.rate
        return unscaled * self.factor


class _FunctionSchedule:
    """A function as a schedule, with its rates in proportion to `base_lr`."""

    def __init__(self, function: Any, base_lr: float) -> None:
        self.function, self.base_lr = function, base_lr

    def __call__(self, num_update: int) -> float:
        """Return the rate after a number of updates."""
        return float(self.function(num_update) * self.base_lr / self.function.base_lr)


def with_base_rate(schedule: Any, rate: float | None) -> Any:
    """Return a copy of a schedule, as if it had been created with `rate` as its ``base_lr``.

    With None, it keeps its own. A function cannot be copied, and may not read its ``base_lr``: its rates are
    multiplied.
    """
    new = copy.deepcopy(schedule)
    return new if rate is None else _rebased(new, rate)


def _rebased(schedule: Any, rate: float) -> Any:
    if isinstance(schedule, types.FunctionType):
        return _FunctionSchedule(schedule, rate)
    if isinstance(schedule, Wrapper):
        schedule.scheduler = _rebased(schedule.scheduler, rate)
        return schedule
    schedule.base_lr = rate
    for name in ("base_lr_orig", "warmup_final_lr"):  # what MXNet's schedules computed from base_lr
        if hasattr(schedule, name):
            setattr(schedule, name, rate)
    return schedule


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
