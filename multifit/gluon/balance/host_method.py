"""Run a method of balancing in NumPy, and keep what it remembers."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from ...balance import Balance
from ...balance.answers import ask, ask_weights
from ...balance.protocol import Measured, measured_losses
from ...balance.weighing import weigh_losses
from ...distributed import World
from ...protocols import Array, Numbers
from ...state import RunState
from ..execution.result import StepResult
from .presence import tasks_with_labels, weight_rows
from .tasks import Tasks


class HostMethod:
    """Runs a method on the losses of each batch, which are read if it needs them.

    `figures` are the rows to add to the means of the weights, for the last batch.
    """

    def __init__(self, method: Balance, tasks: Tasks, world: World) -> None:
        self._method, self._tasks, self._world = method, tasks, world
        self._ones = np.ones(len(tasks.names))
        self._weights, self._memory = self._ones, ask(method, "start", len(tasks.names))
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
        weights, self._memory = weigh_losses(self._method, measured, self._weights, self._memory)
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
