"""Learning rates by the number of updates, as ``mx.lr_scheduler`` has them, and those that it lacks."""

from __future__ import annotations

import math
from typing import Any

from ...arguments import finite_number, whole_number
from ...errors import shown
from ..compat import mx

__all__ = ["OneCycle", "ScaledSchedule", "WarmUp"]


class OneCycle(mx.lr_scheduler.LRScheduler):
    r"""One rise and one long fall of the learning rate, both along half a cosine.

    From ``max_lr / start_divisor`` at update 0 it rises to `max_lr` at update ``warm * steps``, falls to
    ``max_lr / final_divisor`` at update `steps`, and stays there. The idea is L. N. Smith and N. Topin's
    ("Super-Convergence", 2018); the cosines and the defaults are fastai's (``fit_one_cycle``).

    Parameters
    ----------
    max_lr : float
        The highest rate. A ``learning_rate`` among an optimizer's options has no effect on it.
    steps : int
        Number of updates of the whole cycle: epochs times batches per epoch.
    warm : float
        The rise's share of the steps, above 0 and below 1.
    start_divisor, final_divisor : float
        By how much the first and the last rate are lower than `max_lr`; at least 1.

    Raises
    ------
    ValueError
        An argument is not valid.
    """

    def __init__(
        self,
        max_lr: float,
        steps: int,
        warm: float = 0.25,
        start_divisor: float = 25.0,
        final_divisor: float = 1e5,
    ) -> None:
        self.max_lr = finite_number("OneCycle: max_lr", max_lr, above=0)
        super().__init__(base_lr=self.max_lr)
        self.steps = whole_number("OneCycle: steps", steps)
        self.warm = finite_number("OneCycle: warm", warm, above=0, below=1)
        self.start_divisor = finite_number("OneCycle: start_divisor", start_divisor, least=1)
        self.final_divisor = finite_number("OneCycle: final_divisor", final_divisor, least=1)

    def __call__(self, num_update: int) -> float:
        """Return the rate of an update."""
        peak = self.warm * self.steps
        if num_update < peak:
            return _cosine(self.max_lr / self.start_divisor, self.max_lr, num_update / peak)
        share = min(1.0, (num_update - peak) / (self.steps - peak))
        return _cosine(self.max_lr, self.max_lr / self.final_divisor, share)


class _Around(mx.lr_scheduler.LRScheduler):
    """A scheduler around another one, whose `base_lr` it shares; all that it keeps are its attributes."""

    def __init__(self, scheduler: Any) -> None:
        # not the base class's: it would set the other one's base_lr
        kind = type(self).__name__.lstrip("_")
        if not callable(scheduler) or isinstance(scheduler, type) or not hasattr(scheduler, "base_lr"):
            way = "give an instance, such as mx.lr_scheduler.CosineScheduler(1000, base_lr=1e-3)"
            raise ValueError(f"{kind}: scheduler is {shown(scheduler)}; {way}")
        self.scheduler = scheduler

    @property
    def base_lr(self) -> float:
        """The wrapped scheduler's."""
        return self.scheduler.base_lr

    @base_lr.setter
    def base_lr(self, rate: float) -> None:
        self.scheduler.base_lr = rate


class WarmUp(_Around):
    """A linear rise to the first rate of any scheduler, which begins once the rise is over.

    Unlike ``warmup_steps`` of MXNet's own schedulers this leaves the wrapped schedule whole: its update 0 is
    the update number `steps` here.

    Parameters
    ----------
    scheduler : LRScheduler
        What follows; ``mx.lr_scheduler.FactorScheduler(10**9, base_lr=1e-3)`` for a constant rate.
    steps : int
        Number of updates of the rise.
    start : float
        The rate at update 0, of which an optimizer sees the next one first.

    Raises
    ------
    ValueError
        An argument is not valid.
    """

    def __init__(self, scheduler: Any, steps: int, start: float = 0.0) -> None:
        super().__init__(scheduler)
        self.steps = whole_number("WarmUp: steps", steps)
        self.start = finite_number("WarmUp: start", start, least=0)

    def __call__(self, num_update: int) -> float:
        """Return the rate of an update."""
        if num_update >= self.steps:
            return self.scheduler(num_update - self.steps)
        return self.start + (self.scheduler(0) - self.start) * num_update / self.steps


class ScaledSchedule(_Around):
    """A scheduler whose rates are another one's, times a factor that can be set while it runs.

    Parameters
    ----------
    scheduler : LRScheduler
        The schedule that goes on.
    """

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.factor = 1.0
        self.rate = 0.0  # what was set last …
        self.since = -1  # … at which update,
        self.holds = False  # and whether it holds until the schedule leaves 0

    def set(self, rate: float, num_update: int) -> None:
        """Let the rate of update `num_update` be exactly `rate`, and scale all later ones alike.

        Where the schedule is at 0 there is nothing to scale: `rate` then holds until it leaves 0, and its
        rates are what they would have been.
        """
        own = self.scheduler(num_update)
        self.rate, self.since, self.holds = rate, num_update, own == 0
        if own:
            self.factor = rate / own

    def __call__(self, num_update: int) -> float:
        """Return the rate of an update."""
        own = self.scheduler(num_update)
        self.holds = self.holds and own == 0
        if self.holds or num_update == self.since:
            return self.rate
        return own * self.factor


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
