"""Weigh the tasks' gradients with a method of balancing."""

from __future__ import annotations

import copy
from typing import Any, Mapping

import numpy as np

from ...balance import GramianMethod
from ...balance.answers import ask
from ...balance.weighing import weigh_gradients
from ...distributed import World
from ...protocols import Numbers
from ...spec import TaskSpec
from ...state import RunState
from ..execution.loss_graph import APART
from ..execution.loss_separation import LossSeparation
from ..execution.result import StepResult
from ..metrics.means import Means
from .arrays import Arrays
from .gradient_figures import GradientFigures
from .presence import tasks_with_labels, weight_rows
from .tasks import tasks_of, weight_figure


class GradientBalancer:
    """Runs a method that needs the inner products of the tasks' gradients.

    A first backward pass goes from the losses to the features where the tasks branch, and gives each task's
    own parameters the gradient of its loss. Then the weighted sum of the tasks' gradients is passed on to
    the shared body. Every batch in which the weights are computed waits for K x K numbers. `parameters` are
    the net's parameters by structural name.

    `gradient_figures` are means over the measured batches of an epoch. The weights and what the method
    remembers are kept over all fits. Losses and inner products are those of all ranks of `world`. Raises
    SpecError if the method cannot weigh the losses of `spec`.
    """

    def __init__(
        self,
        method: GramianMethod,
        spec: TaskSpec,
        world: World,
        parameters: Mapping[str, Any],
        arrays: Arrays,
    ) -> None:
        self._arrays = arrays
        on = getattr(method, "on", "features")
        self._gradients = self._arrays.task_gradients(on, parameters, world)
        self.method, self.tasks = method, tasks_of(method, spec)
        # a loss of weight 0 has no gradient, and must not change where the graph is cut
        self._weighed = [term.key for term in spec.terms if term.spec.weight != 0]
        self._count = len(self.tasks.names)
        self._weights, self._memory, self._is_new = (
            np.ones(self._count),
            ask(method, "start", self._count),
            True,
        )
        self._new_figures()

    def fork(self) -> GradientBalancer:
        """Return a balancer that continues from this one's state without changing it."""
        fork = copy.copy(self)  # arrays are replaced, never changed
        fork._gradients = self._gradients.fork()
        fork._new_figures()
        return fork

    @property
    def separation(self) -> LossSeparation:
        """How a training stage must compute the objective."""
        means = (self._weight_means, self.gradient_figures)
        tasks = {loss: self.tasks.of_loss[loss] for loss in self._weighed}
        return LossSeparation(APART, means, tasks, self._gradients.repeats, self._arrays.exact_dropout)

    def combine(self, result: StepResult, state: RunState) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients."""
        there: Any = None
        if self._is_new or state.step % self.method.every == 0:
            there = self._weigh(*self.measure(result), state.epoch, state.step)
        if there is None:
            there = tasks_with_labels(result, self.tasks)
        self._weight_means.add(weight_rows(self._weights, there))
        self._gradients.combine(result.features, self._weights)

    def _weigh(self, losses: Numbers, gramian: Numbers, epoch: int, step: int) -> Numbers | None:
        """Compute the weights; a task without a gradient keeps its last one, for batches without new ones.

        Returns 1 for the tasks with a gradient, else 0; None if a number is not finite: all weights stay.
        """
        state = self._weights, self._memory, epoch, step
        weights, self._memory = weigh_gradients(self.method, losses, gramian, *state)
        self._is_new = False
        if not np.isfinite(gramian.sum() + losses.sum()):
            return None
        there: Numbers = (gramian.diagonal() > 0).astype(np.float64)
        self._weights = np.where(there, weights, self._weights)
        return there

    def state(self) -> dict[str, Any]:
        """Return the weights and what the method remembers, for a checkpoint."""
        return {"weights": self._weights, "memory": self._memory, "new": self._is_new}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._weights, self._memory, self._is_new = state["weights"], dict(state["memory"]), state["new"]

    def measure(self, result: StepResult) -> tuple[Numbers, Numbers]:
        """Return the losses (K,) and the Gramian (K, K) over all devices and ranks; this waits for them.

        The Gramian is added to the figures.
        """
        return self._counted(*self._gradients.measure(result, self.tasks))

    def _counted(self, losses: Numbers, gramian: Numbers) -> tuple[Numbers, Numbers]:
        gramian = (gramian + gramian.T) / 2
        if np.isfinite(gramian).all():  # gradients in float16 overflow now and then
            self.gradient_figures.add_gramian(gramian)
        return losses, gramian

    def _new_figures(self) -> None:
        names = self.tasks.names
        self._weight_means = Means([weight_figure(name) for name in names])
        self.gradient_figures = GradientFigures(names)
