"""Runs a method of balancing in the batches of a training, with whatever library the net computes."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..utils.protocols import Numbers
from .means import Means, Sums, measured_rows, weight_figure
from .protocol import Balance, Measured, State, measured_losses
from .tasks import Tasks, tasks_of
from .weighing import ask, shape_of_numbers, weigh_losses

if TYPE_CHECKING:
    from ..handlers.state import RunState
    from ..spec import TaskSpec

Self = TypeVar("Self", bound="Balancer")


class Arrays(ABC):
    """What an engine supplies to balancers; weights are computed in NumPy, unless it has other operators `F`.

    `shape` returns the shape of an array that was computed with `F`, and None for anything else.
    """

    F: Any = np
    shape = staticmethod(shape_of_numbers)

    @abstractmethod
    def labelled(self, result: Any, tasks: Tasks) -> Any:
        """Return 1 for each task that has a loss with labels in a batch of any rank, else 0, as float64 (K,).

        A loss of weight 0 does not count. If labels were counted on a device, the array is on that device.
        """

    @abstractmethod
    def losses(self, result: Any, tasks: Tasks) -> Any:
        """Return the tasks' losses over all devices and ranks, where `F` computes, as float64 (K,)."""

    @abstractmethod
    def multiply(self, result: Any, tasks: Tasks, weights: Any) -> None:
        """Multiply the losses of a batch by the weights of their tasks, for the backward pass."""

    def rows(self, weights: Any, present: Any) -> Any:
        """Return the rows to add to the means of the weights; `present` is 1 for tasks that count, else 0."""
        return measured_rows(weights, present)

    @abstractmethod
    def new_sums(self) -> Sums:
        """Return what adds up rows on a device, for the means of the weights."""

    def put(self, value: Any) -> Any:
        """Return an array of NumPy where `F` computes, and a number as it is."""
        return value

    def read(self, value: Any) -> Any:
        """Return an array as one of NumPy."""
        return value


class Balancer:
    """What all balancers have in common: the tasks, the weights, what the method remembers, and figures.

    The weights and what the method remembers are kept over all fits. In a batch for which no weights are
    computed, each task has its last one. Raises SpecError if the method cannot weigh the losses of `spec`.

    Attributes
    ----------
    tasks : Tasks
        The tasks, in the order of their weights.
    means : tuple of Means
        The figures of an epoch: first each task's weight, in the batches in which the task takes part.
    compares : bool
        Whether gradients are compared, and `differentiate` replaces the backward pass; otherwise, `weigh`
        comes before it.
    looks_back : bool
        Whether `after_update` must be called with the result of the same batch after the update.
    """

    compares = looks_back = False

    def __init__(self, method: Any, spec: TaskSpec, arrays: Arrays) -> None:
        self.method, self.tasks, self._arrays = method, tasks_of(method, spec), arrays
        start = ask(method, "start", len(self.tasks.names))
        self._set(self.tasks.first_weights(method), start)
        self._is_new = True
        self.means = self._new_means()

    def fork(self: Self) -> Self:
        """Return a balancer that continues from this one's state without changing it."""
        fork = copy.copy(self)  # arrays are replaced, never changed
        fork.means = fork._new_means()
        return fork

    def state(self) -> dict[str, Any]:
        """Return the weights and what the method remembers, for a checkpoint: NumPy arrays."""
        memory = {name: self._arrays.read(each) for name, each in self._memory.items()}
        return {"weights": self._arrays.read(self._weights), "memory": memory, "new": self._is_new}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._set(state["weights"], state["memory"])
        self._is_new = state["new"]

    def never_met(self) -> str | None:
        """Return a warning if, in the epoch that ends, gradients of some tasks were never compared."""
        return None

    def _set(self, weights: Numbers, memory: State) -> None:
        self._weights = self._arrays.put(weights)
        self._memory = {name: self._arrays.put(each) for name, each in memory.items()}

    def _new_means(self) -> tuple[Means, ...]:
        return (Means([weight_figure(name) for name in self.tasks.names], self._arrays.new_sums),)

    def _begin(self, state: RunState) -> bool:
        """Return whether the weights are computed in the batch that begins."""
        is_due = self._is_new or state.step % self.method.every == 0
        self._is_new = False
        return is_due


class LossBalancer(Balancer):
    """Runs a method that needs no gradients; the losses are those of all ranks."""

    method: Balance

    def __init__(self, method: Balance, spec: TaskSpec, arrays: Arrays) -> None:
        super().__init__(method, spec, arrays)
        self.looks_back = callable(getattr(method, "after_update", None))
        self._ones = arrays.put(np.ones(len(self.tasks.names)))
        self._is_due = False
        self._measured: Measured | None = None

    def weigh(self, result: Any, state: RunState) -> None:
        """Weigh the losses of a batch for the backward pass that follows."""
        self._is_due = self._begin(state)
        if self._is_due:
            weights, present = self._new_weights(result, state)
        else:
            weights, present = self._weights, self._arrays.labelled(result, self.tasks)
        self.means[0].add(self._arrays.rows(weights, present))
        self._arrays.multiply(result, self.tasks, weights)

    def _new_weights(self, result: Any, state: RunState) -> tuple[Any, Any]:
        """Return weights, and 1 for each task that takes part in the batch, else 0."""
        method, tasks, F = self.method, self.tasks, self._arrays.F
        is_blind = method.needs == "nothing" and not method.on_device  # then all tasks count as present
        labelled = None if method.needs == "losses" else self._arrays.labelled(result, tasks)
        losses = self._arrays.losses(result, tasks) if labelled is None else labelled
        losses = self._ones if is_blind else losses
        count, epochs = len(tasks.names), self._ones * state.epoch
        measured = self._measured = measured_losses(F, count, losses, epochs, state.step)
        weights, self._memory = weigh_losses(
            method,
            measured,
            self._weights,
            self._memory,
            self._arrays.shape,
            count if is_blind else len(tasks.weighed),
        )
        self._weights = F.where(measured.present == 1, weights, self._weights)
        return weights, labelled if is_blind else (losses != 0) * self._ones

    def after_update(self, again: Any) -> None:
        """Give the method the losses of the same batch, `again`, computed after the update."""
        if self._is_due:
            losses = self._arrays.losses(again, self.tasks)
            self._memory = ask(self.method, "after_update", self._measured, losses, self._memory)
