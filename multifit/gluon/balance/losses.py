"""Weighs the losses of tasks, on the host."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ...balance import Balance
from ...balance.answers import ask, ask_weights
from ...balance.means import Means
from ...balance.protocol import Measured, measured_losses
from ...balance.tasks import Tasks, tasks_of, weight_figure
from ...balance.weighing import weigh_losses
from ...distributed import World
from ...protocols import Array, Context, Numbers
from ...spec import TaskSpec
from ...state import RunState
from ..metrics.sums import Accumulator
from ..step.loss_graph import BY_TERM
from ..step.loss_separation import LossSeparation
from ..step.result import StepResult
from .on_device import DeviceMethod
from .present import tasks_with_labels, weight_rows


class Balancer:
    """Runs a method that needs no gradients: its weights are the head gradients of the backward pass.

    The weights and what the method remembers are kept over all fits, on the first device if the method
    computes on the device. In a batch for which no weights are computed, each task has its last one. The
    losses are those of all ranks of `world`. Raises SpecError if the method cannot weigh the losses
    of `spec`.

    `figures` are the means over an epoch of each task's weight in the batches in which the task takes part.
    `looks_back` says whether :meth:`after_update` must be called.
    """

    def __init__(self, method: Balance, spec: TaskSpec, context: Context, world: World) -> None:
        self.method, self.tasks = method, tasks_of(method, spec)
        sums = partial(Accumulator, context) if method.on_device else Accumulator
        self.figures = Means([weight_figure(name) for name in self.tasks.names], sums)
        self.looks_back = callable(getattr(method, "after_update", None))
        self._runs: DeviceMethod | HostMethod = (
            DeviceMethod(method, self.tasks, context, world)
            if method.on_device
            else HostMethod(method, self.tasks, world)
        )
        self._is_new, self._is_due = True, False

    def fork(self) -> Balancer:
        """Return a balancer that continues from this one's state without changing it."""
        fork = copy.copy(self)
        fork._runs = copy.copy(self._runs)  # arrays are replaced, never changed
        fork.figures = Means(self.figures.names, self.figures.new_sums)
        return fork

    @property
    def separation(self) -> LossSeparation:
        """How a training stage must compute the objective."""
        return LossSeparation(BY_TERM, (self.figures,))

    def weigh(self, result: StepResult, state: RunState) -> None:
        """Weigh the losses of a batch: sets the head gradients of its objectives."""
        self._is_due = self._is_new or state.step % self.method.every == 0
        self._is_new = False
        if self._is_due:
            result.head_gradients = self._runs.weigh(result, state)
        else:
            result.head_gradients = self._runs.keep(result)
        self.figures.add(self._runs.figures)

    def after_update(self, again: StepResult) -> None:
        """Give the method the losses of the same batch, `again`, computed after the update."""
        if self._is_due:
            self._runs.look_back(again)

    def state(self) -> dict[str, Any]:
        """Return the weights and what the method remembers, for a checkpoint."""
        return {"memory": self._runs.state(), "new": self._is_new}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._runs.load(state["memory"])
        self._is_new = state["new"]


class HostMethod:
    """Runs a method on the losses of each batch, which are read if it needs them.

    `figures` are the rows to add to the means of the weights, for the last batch.
    """

    def __init__(self, method: Balance, tasks: Tasks, world: World) -> None:
        self._method, self._tasks, self._world = method, tasks, world
        self._ones = np.ones(len(tasks.names))
        self._weights = tasks.first_weights(method)
        self._memory = ask(method, "start", len(tasks.names))
        self._measured: Measured | None = None
        self.figures: Numbers | Array = np.zeros((2, len(self._ones)))

    def weigh(self, result: StepResult, state: RunState) -> list[Array]:
        """Compute new weights; return the head gradients of a batch's objectives."""
        count, ones = len(self._tasks.names), self._ones
        epochs = ones * state.epoch
        if self._method.needs == "nothing":
            self._measured = Measured(count, ones, ones, epochs, state.step)
            weights, self._memory = ask_weights(self._method, self._measured, self._memory)
            self._weights = np.asarray(weights)
            return self.keep(result)
        losses = self._tasks.read_losses(result, self._world)
        measured = self._measured = measured_losses(np, count, losses, epochs, state.step)
        weights, self._memory = weigh_losses(
            self._method, measured, self._weights, self._memory, counted=len(self._tasks.weighed)
        )
        self._weights = np.where(measured.present == 1, weights, self._weights)
        self.figures = weight_rows(weights, (losses != 0).astype(np.float64))
        return self._heads(result, weights)

    def keep(self, result: StepResult) -> list[Array]:
        """Return the head gradients of a batch's objectives, with each task's last weight."""
        self.figures = weight_rows(self._weights, tasks_with_labels(result, self._tasks))
        return self._heads(result, self._weights)

    def _heads(self, result: StepResult, weights: Numbers) -> list[Array]:
        places = self._tasks.places(result.objective_losses)
        return result.like_objectives([weights[list(place)] for place in places])

    def look_back(self, again: StepResult) -> None:
        """Give the method the losses of the same batch, computed after the update."""
        losses = self._tasks.read_losses(again, self._world)
        self._memory = ask(self._method, "after_update", self._measured, losses, self._memory)

    def state(self) -> dict[str, Any]:
        """Return the weights and what the method remembers, for a checkpoint."""
        return {"weights": self._weights, "memory": self._memory}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._weights, self._memory = state["weights"], dict(state["memory"])
