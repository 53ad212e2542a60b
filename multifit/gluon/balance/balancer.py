"""Weighs the losses of a step as a method of balancing says."""

from __future__ import annotations

import copy
from typing import Any, Mapping

import numpy as np

from ...balance import Balance, State
from ...balance.measured import Measured, measured_losses
from ...balance.weighing import weigh_losses
from ...distributed import ALONE, World
from ...protocols import Array, Context
from ...spec import TaskSpec
from ...state import RunState
from ..compat import mx
from ..execution.balanced import Balanced
from ..execution.loss_graph import BY_TERM
from ..execution.result import StepResult
from ..metrics.means import Means
from .tasks import tasks_of, weight_figure
from .traced import Function, TracedFunction


class Balancer:
    """Runs a method that needs no gradients: its weights are the head gradients of the backward pass.

    The weights and what the method remembers are kept over all fits, on the first device if the method
    computes there. The losses are those of all ranks of `world`. Raises SpecError if the method cannot weigh
    the losses of `spec`.

    `figures` are the means of the weights over an epoch. `looks_back` says whether :meth:`after_update` must
    be called.
    """

    def __init__(self, method: Balance, spec: TaskSpec, context: Context, world: World = ALONE) -> None:
        self._world = world
        self.method, self.tasks, self._context = method, tasks_of(method, spec), context
        self.figures = Means([weight_figure(name) for name in self.tasks.names])
        self.looks_back = callable(getattr(method, "after_update", None))
        self._count = len(self.tasks.names)
        memory = method.start(self._count).items()
        self._memory: State = {name: self._placed(value) for name, value in memory}
        self._weights, self._is_new = self._placed(np.ones(self._count)), True
        self._measured: dict[str, Any] = {}  # when the weights were computed
        self._traced: dict[str, TracedFunction] = {}
        self._epoch: tuple[int, Any] | None = None  # its index, and its array
        self._matrices: dict[tuple[str, ...], tuple[Array, Array] | None] = {}

    def fork(self) -> Balancer:
        """Return a balancer that goes on from here without changing this one."""
        fork = copy.copy(self)  # arrays are replaced, never changed
        fork.figures = Means(self.figures.names)
        return fork

    @property
    def balanced(self) -> Balanced:
        """What a training stage must keep apart."""
        return Balanced(BY_TERM, (self.figures,))

    def weigh(self, result: StepResult, state: RunState) -> None:
        """Weigh the losses of a batch: sets the head gradients of its objectives."""
        self._measured = {}
        if self._is_new or state.step % self.method.every == 0:
            self._measured = {"losses": self._losses(result), "epoch": self._epoch_array(state.epoch)}
            arrays = {"weights": self._weights}
            self._weights, self._memory = self._run("weights", self._weigh, arrays, state.step)
            self._is_new = False
        weights = self._weights if self.method.on_device else self._array(self._weights)
        self.figures.add(self._weights)
        result.head_gradients = [
            self._head_gradient(weights, objective, losses)
            for objective, losses in zip(result.objectives, result.objective_losses)
        ]

    def combine(self, result: StepResult, state: RunState) -> None:
        """Do nothing: the backward pass has combined the gradients."""

    def after_update(self, again: StepResult) -> None:
        """Let the method see the losses of the same batch `again`, after the parameters have moved."""
        if self._measured:
            self._memory = self._run("after_update", self._look_back, {"after": self._losses(again)})[1]

    def state(self) -> dict[str, Any]:
        """Return the weights and what the method remembers, for a checkpoint."""
        return {"weights": self._weights, "memory": self._memory, "new": self._is_new}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._weights, self._memory, self._is_new = state["weights"], dict(state["memory"]), state["new"]

    def _weigh(self, measured: Measured, weights: Any, memory: State) -> tuple[Any, State]:
        return weigh_losses(self.method, measured, weights, memory)

    def _look_back(self, measured: Measured, after: Any, memory: State) -> tuple[Any, State]:
        method: Any = self.method
        return measured.losses, method.after_update(measured, after, memory)

    def _run(self, name: str, function: Function, arrays: dict[str, Any], step: int = 0) -> tuple[Any, State]:
        """Run a function of the last measurement, of further arrays and of what the method remembers."""
        if self.method.on_device:
            if name not in self._traced:
                self._traced[name] = TracedFunction(function, self._count, list(arrays), self._memory)
            return self._traced[name]({**self._measured, **arrays}, self._memory)
        measured = measured_losses(np, self._count, self._measured["losses"], self._measured["epoch"], step)
        return function(measured, *arrays.values(), self._memory)

    def _losses(self, result: StepResult) -> Any:
        """Return the tasks' losses over all devices, float64: on the first device, or read if need be."""
        if self.method.needs == "nothing":
            return self._placed(np.ones(self._count))
        parts = []
        for objective, keys in zip(result.objectives, result.objective_losses):
            part = objective.astype("float64").as_in_context(self._context)
            matrices = self._matrices_of(keys)
            parts.append(part if matrices is None else mx.nd.dot(matrices[0], part))
        losses = mx.nd.add_n(*parts) if parts else self._array(np.zeros(self._count))
        if self.method.on_device and self._world.alone:
            return losses
        return self._placed(self._world.sum(losses.asnumpy()))

    def _head_gradient(self, weights: Array, objective: Array, losses: tuple[str, ...]) -> Array:
        matrices = self._matrices_of(losses)
        weights = weights if matrices is None else mx.nd.dot(matrices[1], weights)
        return weights.as_in_context(objective.context).astype(objective.dtype)

    def _matrices_of(self, losses: tuple[str, ...]) -> tuple[Array, Array] | None:
        """Return what adds up losses by task, and what repeats the tasks' weights by loss."""
        if losses not in self._matrices:
            sums = self.tasks.sums(losses)
            self._matrices[losses] = None if sums is None else (self._array(sums), self._array(sums.T))
        return self._matrices[losses]

    def _epoch_array(self, epoch: int) -> Any:
        """Return the index of the epoch, K times; the same array in each batch of the epoch."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._placed(np.full(self._count, float(epoch)))
        return self._epoch[1]

    def _array(self, values: Any) -> Array:
        return mx.nd.array(values, ctx=self._context, dtype="float64")

    def _placed(self, value: Any) -> Any:
        """Return an array where the method computes."""
        return self._array(value) if self.method.on_device else value
