"""Learning rate schedules that ``mx.lr_scheduler`` lacks."""

import copy
import math
import types
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
        The highest rate. A ``learning_rate`` in a TrainerSpec's `optimizer_params` replaces it.
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
        self.base_lr_orig, self.steps, self.warm = max_lr, steps, warm
        self.start_divisor, self.final_divisor = start_divisor, final_divisor

    def __call__(self, num_update: int) -> float:
        """Return the rate after a number of updates."""
        highest, peak = self.base_lr_orig, self.warm * self.steps
        if num_update < peak:
            return _cosine(highest / self.start_divisor, highest, num_update / peak)
        share = min(1.0, (num_update - peak) / (self.steps - peak))
        return _cosine(highest, highest / self.final_divisor, share)


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


class _FunctionSchedule(mx.lr_scheduler.LRScheduler):
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
