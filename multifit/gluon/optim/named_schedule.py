"""Name the trainer in errors of its schedule: if the schedule raises, or returns something invalid."""

from __future__ import annotations

from contextlib import contextmanager
from math import inf
from typing import Any, Iterator

import numpy as np

from ...arguments import is_finite_number
from ...errors import TrainerError, shown
from ...protocols import Schedule
from ..compat import mx
from ..user_code import user_code
from .schedules import Wrapper


@contextmanager
def named_schedule(trainer: str, optimizer: mx.optimizer.Optimizer) -> Iterator[None]:
    """Name a trainer in the errors of its schedule, while the optimizer calls the schedule in the block.

    There are no additional calls of the schedule, and the optimizer calls it before it updates the first
    parameter. Raises what the schedule raises, with a note, and TrainerError if it returns something other
    than a finite number of at least 0.
    """
    schedule = optimizer.lr_scheduler
    if schedule is None:
        yield
        return
    named = optimizer.lr_scheduler = _Named(schedule, f'trainers["{trainer}"].lr_scheduler')
    try:
        yield
    except Exception as error:
        if error is not named.error:
            raise
    finally:
        if optimizer.lr_scheduler is named:  # unless another schedule was set meanwhile
            optimizer.lr_scheduler = schedule
    if named.error is not None:  # even if it was raised in a kvstore, which ignores errors
        with user_code(lambda: named.call):
            raise named.error


class _Named(Wrapper):
    """A schedule that stores the first error that it raised, and the call that raised it."""

    def __init__(self, scheduler: Schedule, name: str) -> None:
        super().__init__(scheduler)
        self._name = self.call = name
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped schedule."""
        return getattr(vars(self)["scheduler"], name)

    def __call__(self, num_update: int) -> float:
        """Return the rate after a number of updates."""
        try:
            rate: Any = self.scheduler(num_update)
            return rate if type(rate) is float and 0 <= rate < inf else self._read(rate, num_update)
        except Exception as error:
            if self.error is None:
                self.error, self.call = error, f"{self._name}({num_update})"
            raise

    def _read(self, rate: Any, num_update: int) -> float:
        number = rate.item() if isinstance(rate, np.ndarray) and rate.ndim == 0 else rate
        if not (is_finite_number(number) and number >= 0):
            call, valid = f"{self._name}({num_update})", "a finite number of at least 0"
            raise TrainerError(f"{call} returned {shown(rate)}; it must return {valid}")
        return float(number)
