"""Weigh the losses of a step with a method of balancing."""

from __future__ import annotations

import copy
from typing import Any, Mapping, Union

from ...balance import Balance
from ...distributed import World
from ...protocols import Context
from ...spec import TaskSpec
from ...state import RunState
from ..execution.loss_graph import BY_TERM
from ..execution.loss_separation import LossSeparation
from ..execution.result import StepResult
from ..metrics.accumulators import Accumulator
from ..metrics.means import Means
from .arrays import Arrays
from .device_method import DeviceMethod
from .host_method import HostMethod
from .tasks import tasks_of, weight_figure


class Balancer:
    """Runs a method that needs no gradients: its weights are the head gradients of the backward pass.

    The weights and what the method remembers are kept over all fits, on the first device if the method
    computes on the device. In a batch for which no weights are computed, each task has its last one. The
    losses are those of all ranks of `world`. `arrays` are the arrays of the engine. Raises SpecError if the
    method cannot weigh the losses of `spec`.

    `figures` are the means over an epoch of each task's weight in the batches in which the task takes part.
    `looks_back` says whether :meth:`after_update` must be called.
    """

    def __init__(
        self,
        method: Balance,
        spec: TaskSpec,
        context: Context,
        world: World,
        arrays: Arrays,
    ) -> None:
        self.method, self.tasks = method, tasks_of(method, spec)
        sums = arrays.sums if method.on_device else Accumulator
        self.figures = Means([weight_figure(name) for name in self.tasks.names], sums)
        self.looks_back = callable(getattr(method, "after_update", None))
        self._runs: Union[DeviceMethod, HostMethod] = (
            DeviceMethod(method, self.tasks, context, world, arrays)
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
