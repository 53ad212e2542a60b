"""Whose gradients are compared: those of the features at which tasks part, or of shared parameters."""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence

import numpy as np

from ...distributed import ALONE, World
from ...protocols import Numbers
from ..execution.parting import Parting
from ..execution.result import StepResult
from .tasks import Tasks


class TaskGradients(Protocol):
    """Finds the inner products of gradients, and combines the gradients."""

    repeats: bool  # whether the body is passed back several times

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the tasks' losses (K,) and Gramian (K, K) in a batch over all devices and ranks; reads them.

        All ranks call this; one may have no sample.
        """

    def combine(self, partings: Sequence[Parting], weights: Numbers) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients."""

    def fork(self) -> TaskGradients:
        """Return what goes on from here without changing this."""


class AddingGradients(TaskGradients, Protocol):
    """Compares gradients that may be added up over several batches too.

    `waits` says whether such were added up and not combined, on any rank.
    """

    waits: bool

    def add(self, result: StepResult, tasks: Tasks, weights: Numbers) -> None:
        """Add the tasks' gradients and losses of a batch to those that wait; reads nothing.

        The parameters have their sum by the `weights` that were the last.
        """

    def measure_added(self, tasks: Tasks, batches: int) -> tuple[Numbers, Numbers]:
        """Return losses and products of what all ranks added; of the means, if `batches` are not 1."""

    def combine_added(self, weights: Numbers) -> Mapping[str, Any]:
        """Return the weighted sums of what was added, by parameter, if the net does not have them by now."""

    def forget(self) -> None:
        """Begin to add anew."""

    def state(self) -> dict[str, Any]:
        """Return what waits, for a checkpoint."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, of either engine."""


class FeatureGradients:
    """Compares the gradients of features; one backward pass through the body."""

    repeats = False

    def __init__(self, world: World) -> None:
        self._world = world

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return losses and products, which are added up over devices and ranks."""
        count, one_device = len(tasks.names), len(result.partings) == 1
        gramian = np.zeros((count, count))
        for parting in result.partings:
            gramians, values = parting.measure(result.objectives if one_device else ())
            for of_tasks, products in gramians:
                if len(of_tasks) == count:
                    gramian += products
                else:
                    gramian[np.ix_(of_tasks, of_tasks)] += products
        losses = tasks.losses(result, values) if one_device else tasks.read_losses(result, ALONE)
        return summed(self._world, losses, gramian)

    def combine(self, partings: Sequence[Parting], weights: Numbers) -> None:
        """Pass the weighted sum of the features' gradients back."""
        for parting in partings:
            parting.backward(weights)

    def fork(self) -> FeatureGradients:
        """Return itself: there is nothing to change."""
        return self


def summed(world: World, losses: Numbers, gramian: Numbers) -> tuple[Numbers, Numbers]:
    """Return the sums of the ranks' losses and Gramians."""
    if world.alone:
        return losses, gramian
    count, sums = len(losses), world.sum(np.append(losses, gramian))
    return sums[:count], sums[count:].reshape(count, count)
