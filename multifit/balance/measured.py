"""What a method of balancing gets: the tasks' losses and gradients in one batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LARGEST = 1e300  # a loss beyond it, or NaN, is not finite


class Measured(NamedTuple):
    """The losses and gradients of K tasks in one batch, in the order in which the tasks were declared.

    Attributes
    ----------
    tasks : int
        K.
    losses : array of shape (K,)
        Every task's loss, times its declared weight; 1 for a task that is absent.
    present : array of shape (K,)
        1 for the tasks that take part in the batch, else 0. A task is absent if its loss is exactly 0, such
        as when no sample has a label. If any loss is not finite, all tasks are absent.
    epoch : array of shape (K,)
        The index of the epoch, K times.
    step : int
        The number of batches trained before this one; not known on a device.
    gramian : array of shape (K, K), optional
        The inner products of the tasks' gradients, for methods that need them. Its diagonal is positive, as
        tasks without a gradient are left out.
    F : module
        The operators for the arrays, which are float64: NumPy or, on a device, an engine's module with
        operators of the same names. On a device, all arithmetic must be between arrays of shape (K,), or with
        numbers.
    """

    tasks: int
    losses: Any
    present: Any
    epoch: Any
    step: int = 0
    gramian: Any = None
    F: Any = np

    def total(self, values: Any) -> Any:
        """Return the sum of `values` over the tasks that are present, K times."""
        return self.repeated(self.F.sum(values * self.present, axis=0, keepdims=True))

    def repeated(self, value: Any) -> Any:
        """Return an array of shape (1,) as one of shape (K,)."""
        return self.F.broadcast_to(value, (self.tasks,))


def measured_losses(F: Any, tasks: int, losses: Any, epoch: Any, step: int = 0) -> Measured:
    """Return the losses (K,) of a batch with the tasks that are present, without waiting for the values."""
    finite = F.broadcast_to(F.min((F.abs(losses) < LARGEST) * 1.0, axis=0, keepdims=True), (tasks,))
    present = (losses != 0) * finite
    return Measured(tasks, F.where(present == 1, losses, F.ones_like(losses)), present, epoch, step, F=F)
