"""Weigh the tasks' gradients with a method of balancing."""

from __future__ import annotations

import copy
from typing import Any, Mapping, cast

import numpy as np

from ...balance import GramianMethod
from ...balance.answers import ask_start, check_memory
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
from .task_gradients import AddingGradients
from .tasks import tasks_of, weight_figure

MOMENT = "the gradients of the tasks"


class GradientBalancer:
    """Runs a method that needs the inner products of the tasks' gradients.

    A first backward pass goes from the losses to the features where the tasks branch, and gives each task's
    own parameters the gradient of its loss. Then the weighted sum of the tasks' gradients is passed on to
    the shared body. Every batch in which the weights are computed waits for K x K numbers. `parameters` are
    the net's parameters by structural name.

    `gradient_figures` are means over the measured batches of an epoch. `added` is the number of batches that
    wait for :meth:`settle`, on any rank. If gradients of parameters are added up over batches, ``every=`` of
    the method counts updates instead of batches. The weights and what the method remembers are kept over all
    fits. Losses and inner products are those of all ranks of `world`. Raises SpecError if the method cannot
    weigh the losses of `spec`.
    """

    def __init__(
        self,
        method: GramianMethod,
        spec: TaskSpec,
        world: World,
        parameters: Mapping[str, Any],
        arrays: Arrays,
    ) -> None:
        self._world, self._arrays = world, arrays
        on = getattr(method, "on", "features")
        self._gradients = self._arrays.task_gradients(on, parameters, world)
        self.method, self.tasks = method, tasks_of(method, spec)
        # a loss of weight 0 has no gradient, and must not change where the graph is cut
        self._weighed = [term.key for term in spec.terms if term.spec.weight != 0]
        self._count = len(self.tasks.names)
        self._weights, self._memory, self._is_new = np.ones(self._count), ask_start(method, self._count), True
        self._there = np.ones(self._count)  # the tasks that had a gradient when the weights were computed
        check_memory(method, "start", self._memory, self._memory, self._count)
        self.added, self._updates = 0, 0
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
        """Give the shared parameters the weighted sum of the tasks' gradients.

        If gradients of parameters are added up over several batches, :meth:`settle` computes the weights.
        """
        adding = self._adding
        if adding is not None:
            features = result.features
            sums = any(each.adds for each in features), any(each.pending for each in features)
            adds, pending = self._world.meet(MOMENT, *sums).any(axis=0)
            if adds:
                self._add(adding, result, pending)
                return
            self._forget(adding)
        there: Any = None
        if self._is_new or state.step % self.method.every == 0:
            there = self._weigh(*self.measure(result), state.epoch, state.step)
        if there is None:
            there = tasks_with_labels(result, self.tasks)
        self._weight_means.add(weight_rows(self._weights, there))
        self._gradients.combine(result.features, self._weights)

    def settle(self, state: RunState, batches: int) -> Mapping[str, Any]:
        """Weigh the gradients that were added up, after the last :meth:`combine` before an update.

        The losses and gradients are divided by `batches`, as in the update; it is 0 if the trainer waits, or
        if this process has no samples. Returns the combined gradients by parameter, if the net does not have
        them yet.
        """
        gradients, combined = cast(AddingGradients, self._gradients), dict[str, Any]()
        batches = int(self._world.meet(MOMENT, batches).max())
        if not batches:
            return combined
        if gradients.waits:
            measured = self._counted(*gradients.measure_added(self.tasks, batches))
            self._weigh(*measured, state.epoch, self._updates)
            combined.update(gradients.combine_added(self._weights))
        self._weight_means.add(weight_rows(self._weights, self._there))
        self.added, self._updates = 0, self._updates + 1
        return combined

    def _weigh(self, losses: Numbers, gramian: Numbers, epoch: int, step: int) -> Numbers | None:
        """Compute the weights; a task without a gradient keeps its last one, for batches without new ones.

        Returns 1 for the tasks with a gradient, else 0; None if a number is not finite: all weights stay.
        """
        state = self._weights, self._memory, epoch, step
        weights, self._memory = weigh_gradients(self.method, losses, gramian, *state)
        self._is_new = False
        if not np.isfinite(gramian.sum() + losses.sum()):
            return None
        self._there = (gramian.diagonal() > 0).astype(np.float64)
        self._weights = np.where(self._there, weights, self._weights)
        return self._there

    @property
    def _adding(self) -> AddingGradients | None:
        """The object that can add up gradients over batches; None if those of features are compared."""
        return cast(AddingGradients, self._gradients) if self._gradients.repeats else None

    def _add(self, gradients: AddingGradients, result: StepResult, pending: bool) -> None:
        """Add the gradients of a batch: task by task if the next update gets new weights, else combined.

        `pending` says whether gradients of earlier batches wait for an update.
        """
        if not pending:
            self._forget(gradients)
        is_due = self._is_new or self._updates % self.method.every == 0
        if gradients.waits or (is_due and not self.added):
            gradients.add(result, self.tasks, self._weights)
        else:
            gradients.combine(result.features, self._weights)
        self.added += 1

    def _forget(self, gradients: AddingGradients) -> None:
        """Forget the gradients added before: they were used or discarded."""
        gradients.forget()
        self.added = 0

    def state(self) -> dict[str, Any]:
        """Return the weights and what the method remembers, for a checkpoint."""
        added = {"batches": self.added, "updates": self._updates}
        if self._adding is not None:
            added.update(self._adding.state())
        weighed = {"weights": self._weights, "there": self._there, "memory": self._memory}
        return {**weighed, "new": self._is_new, "added": added}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._weights, self._memory, self._is_new = state["weights"], dict(state["memory"]), state["new"]
        self._there = state.get("there", np.ones(self._count))  # older checkpoints have none
        if "added" not in state:  # neither have they
            return
        self.added, self._updates = state["added"]["batches"], state["added"]["updates"]
        if self._adding is not None:
            self._adding.load(state["added"])

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
