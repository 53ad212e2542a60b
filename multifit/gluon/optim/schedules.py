"""Learning rate schedules that ``mx.lr_scheduler`` lacks."""

from __future__ import annotations

import math
from typing import Annotated, Any

from ...arguments import Count, NotNegative, OpenShare, Positive, Valid, bounds, checked
from ...protocols import Schedule
from ..compat import mx

_Divisor = Annotated[float, bounds(least=1)]
_Scheduler = Annotated[
    Any,  # an instance: the class's own base_lr is its default
    Valid(
        "an instance, such as mx.lr_scheduler.CosineScheduler(1000, base_lr=1e-3)",
        lambda value: callable(value) and not isinstance(value, type) and hasattr(value, "base_lr"),
    ),
]


class OneCycle(mx.lr_scheduler.LRScheduler):
    r"""One rise and one long fall of the learning rate, both along half a cosine.

    From ``max_lr / start_divisor`` at update 0 it rises to `max_lr` at update ``warm * steps``, falls to
    ``max_lr / final_divisor`` at update `steps`, and stays there. The idea is L. N. Smith and N. Topin's
    ("Super-Convergence", 2018); the cosines and the defaults are fastai's (``fit_one_cycle``).

    Parameters
    ----------
    max_lr : float
        The highest rate. An optimizer's ``learning_rate`` has no effect on it.
    steps : int
        Number of updates of the whole cycle: epochs times batches per epoch.
    warm : float
        The share of the steps in which the rate rises, above 0 and below 1.
    start_divisor, final_divisor : float
        `max_lr` divided by the first and by the last rate; at least 1.

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
        super().__init__(base_lr=max_lr)
        self.max_lr, self.steps, self.warm = max_lr, steps, warm
        self.start_divisor, self.final_divisor = start_divisor, final_divisor

    def __call__(self, num_update: int) -> float:
        """Return the rate after a number of updates."""
        peak = self.warm * self.steps
        if num_update < peak:
            return _cosine(self.max_lr / self.start_divisor, self.max_lr, num_update / peak)
        share = min(1.0, (num_update - peak) / (self.steps - peak))
        return _cosine(self.max_lr, self.max_lr / self.final_divisor, share)


class Wrapper(mx.lr_scheduler.LRScheduler):
    """A schedule around another one, whose `base_lr` it shares. All of its state is in its attributes."""

    def __init__(self, scheduler: Schedule) -> None:
        # the base class's __init__ is not called, because it would set base_lr
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
    scheduler : LRScheduler
        The schedule after the rise; for a constant rate, ``mx.lr_scheduler.FactorScheduler(10**9,
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


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
