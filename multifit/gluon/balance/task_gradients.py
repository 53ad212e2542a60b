"""Compare the tasks' gradients: with respect to the features where they branch, or to shared parameters."""

from __future__ import annotations

from typing import Protocol, Sequence

import numpy as np

from ...distributed import ALONE, World
from ...protocols import Numbers
from ..execution.result import StepResult
from ..execution.shared_features import SharedFeatures
from .tasks import Tasks


class TaskGradients(Protocol):
    """Computes the inner products of the tasks' gradients, and combines the gradients."""

    repeats: bool  # whether there is a backward pass through the body for each task

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return a batch's losses (K,) and Gramian (K, K) over all devices and ranks; this waits for them.

        All ranks must call this, even without samples.
        """

    def combine(self, features: Sequence[SharedFeatures], weights: Numbers) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients."""

    def fork(self) -> TaskGradients:
        """Return an object that continues from this one's state without changing it."""


class FeatureGradients:
    """Compares the gradients with respect to features; there is one backward pass through the body."""

    repeats = False

    def __init__(self, world: World) -> None:
        self._world = world

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian, each summed over devices and ranks."""
        count, one_device = len(tasks.names), len(result.features) == 1
        gramian = np.zeros((count, count))
        for features in result.features:
            gramians, values = features.measure(result.objectives if one_device else ())
            for of_tasks, products in gramians:
                if len(of_tasks) == count:
                    gramian += products
                else:
                    gramian[np.ix_(of_tasks, of_tasks)] += products
        losses = tasks.losses(result, values) if one_device else tasks.read_losses(result, ALONE)
        return summed(self._world, losses, gramian)

    def combine(self, features: Sequence[SharedFeatures], weights: Numbers) -> None:
        """Pass the weighted sum of the features' gradients back."""
        for each in features:
            each.backward(weights)

    def fork(self) -> FeatureGradients:
        """Return this object, which has no state."""
        return self


def summed(world: World, losses: Numbers, gramian: Numbers) -> tuple[Numbers, Numbers]:
    """Return the sums of the ranks' losses and Gramians."""
    if world.alone:
        return losses, gramian
    count, sums = len(losses), world.sum(np.append(losses, gramian))
    return sums[:count], sums[count:].reshape(count, count)
