"""What a method of balancing is given: the tasks' losses and gradients in one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST = 1e300  # a loss beyond it, or NaN, is not finite


@dataclass(frozen=True)
class Measured:
    """The tasks in one batch, of K tasks in the order in which they were declared.

    Attributes
    ----------
    losses : array of shape (K,)
        Every task's loss, times its declared weight; 1 for a task that is absent. An array of `F`, float64.
    present : array of shape (K,)
        1 for the tasks that take part in the batch, else 0. A task is absent if its loss is exactly 0, as
        where no sample has a label; all are if a loss is not finite.
    gramian : array of shape (K, K), optional
        The inner products of the tasks' gradients, for methods that need them: NumPy, float64, with a
        positive diagonal, as tasks without a gradient are left out.
    epoch, step : int
        The index of the epoch, and the number of batches trained before this one.
    F : module
        The operators of the arrays: NumPy, or an engine's with the same names for what methods use.
    """

    losses: Any
    present: Any
    gramian: Any = None
    epoch: int = 0
    step: int = 0
    F: Any = np

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return int(self.losses.shape[0])

    def total(self, values: Any) -> Any:
        """Return the sum of `values` over the tasks that are present, of shape (1,)."""
        return self.F.sum(values * self.present, axis=0, keepdims=True)


def measured_losses(F: Any, losses: Any, epoch: int = 0, step: int = 0) -> Measured:
    """Find out which tasks are present in a batch, without reading the losses, of shape (K,)."""
    finite = F.min((F.abs(losses) < LARGEST) * 1.0, axis=0, keepdims=True)
    present = (losses != 0) * finite
    return Measured(F.where(present == 1, losses, F.ones_like(losses)), present, None, epoch, step, F)
