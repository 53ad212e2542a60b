"""Run a method of balancing in the batches of a training, with whatever library the net computes."""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ..distributed import World
from ..utils.errors import SpecError
from ..utils.protocols import Numbers
from ..utils.text import limited, suggest
from .protocol import (
    Balance,
    GramianMethod,
    Measured,
    State,
    ask,
    measured_losses,
    shape_of_numbers,
    weigh_gradients,
    weigh_losses,
)
from .tasks import GradientFigures, Means, Sums, Tasks, measured_rows, tasks_of, weight_figure

if TYPE_CHECKING:
    from ..handlers.state import RunState
    from ..spec import TaskSpec


Self = TypeVar("Self", bound="Balancer")
Comparing = TypeVar("Comparing", bound="GradientBalancer")


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


NOTHING_SHARED = (
    "balance: the tasks share no parameter that is trained, so that their gradients cannot be compared; use "
    "a method of losses, such as DWA or Uncertainty, or leave balance= out"
)


class ChosenParameters:
    """The names of the parameters that match `pattern`, or of all parameters if it is None.

    Raises SpecError if a pattern matches none.
    """

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any], world: World) -> None:
        self._pattern, self._world = pattern, world
        self.names = set(parameters) if pattern is None else _matching(pattern, parameters)

    def reached(self, names: Iterable[str]) -> list[str]:
        """Return the chosen names among the parameters that the samples of any rank have reached.

        `names` are those reached on this rank. Raises SpecError if no chosen parameter was reached: they
        all belong to single tasks, or are frozen.
        """
        every = self._world.gather(sorted(names))
        chosen = sorted(self.names & set().union(*every))
        if not chosen:
            raise SpecError(
                f'balance: on="{self._pattern}" selects no parameter that tasks share and train; '
                'use on="parameters"'
            )
        return chosen


def _matching(pattern: str, parameters: Mapping[str, Any]) -> set[str]:
    """Return the names that a pattern matches; raises SpecError if it is not valid, or matches none."""
    try:
        names = {name for name in parameters if re.fullmatch(pattern, name)}
    except re.error as error:
        raise SpecError(f'balance: on="{pattern}" is not a regular expression: {error}') from None
    if not names:
        near = suggest(pattern, [*parameters, "features", "parameters"])
        raise SpecError(
            f'balance: on="{pattern}" matches no parameter{near}; valid are "features", "parameters" or a '
            "pattern of parameters such as body.*"
        )
    return names


Timer = Callable[[str], AbstractContextManager[Any]]

Products = list[tuple[Sequence[int], Numbers]]
"""Inner products of the gradients of some tasks: the tasks, and a Gramian of these."""


class TaskGradients(Protocol):
    """Computes the inner products of the tasks' gradients, and combines the gradients."""

    def measure(self, batch: Any, tasks: Tasks) -> tuple[Numbers, Products]:
        """Return the losses (K,) and inner products of this rank; this waits for them.

        The inner products of exact gradients of parameters are those of all ranks. All ranks must call this,
        even without samples.
        """

    def combine(self, batch: Any, weights: Numbers) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients."""


class GradientBalancer(Balancer):
    """Runs a method that needs the inner products of the tasks' gradients, of all ranks of `world`.

    A first backward pass goes from the losses to the features where the tasks branch, and gives each task's
    own parameters the gradient of its loss. Then the weighted sum of the tasks' gradients is passed on to
    the shared body. Every batch in which the weights are computed waits for K x K numbers. `parameters` are
    those of net and losses by name.

    The last of the `means` are over the measured batches of an epoch. `of_loss` is the number of the task of
    each loss that is weighed. Raises SpecError if the method cannot weigh the losses of `spec`.
    """

    compares = True
    of_features: Callable[[], TaskGradients]
    of_parameters: Callable[[ChosenParameters, Mapping[str, Any], World], TaskGradients]

    def __init__(
        self,
        method: GramianMethod,
        spec: TaskSpec,
        arrays: Arrays,
        world: World,
        parameters: Mapping[str, Any],
    ) -> None:
        super().__init__(method, spec, arrays)
        on = getattr(method, "on", "parameters")
        # whether parameters' exact gradients are compared, by a backward pass through the body for each task
        self.repeats = on != "features"
        chosen = ChosenParameters(None if on in ("parameters", "features") else on, parameters, world)
        exact = self.of_parameters
        self._gradients = exact(chosen, parameters, world) if self.repeats else self.of_features()
        self._world, self._preference = world, self.tasks.preference(method)
        self._sharing = set[tuple[int, ...]]()  # the tasks whose features are the same array
        # a loss of weight 0 has no gradient, and must not change where the tasks branch
        weighed = [term.key for term in spec.terms if term.spec.weight != 0]
        self.of_loss = {loss: self.tasks.of_loss[loss] for loss in weighed}

    def fork(self: Comparing) -> Comparing:
        """Return a balancer that continues from this one's state without changing it."""
        fork = super().fork()
        fork._gradients = copy.copy(self._gradients)
        return fork

    @abstractmethod
    def differentiate(
        self, result: Any, state: RunState, scale: float = 1.0, timer: Timer = nullcontext
    ) -> None:
        """Compute a batch's gradients; all ranks must call this.

        Shared parameters get the weighted sum of the tasks' gradients, and a task's own parameters the
        gradient of its loss, all multiplied by `scale`. ``timer("balance")`` returns a context manager around
        what follows the first backward pass, if that can be told apart. Raises SpecError if the tasks share
        no parameter.
        """

    def never_met(self) -> str | None:
        """Return a warning if, in the epoch that ends, features of some tasks were never compared."""
        names = self.tasks.names
        shared = {(names[i], names[j]) for tasks in self._sharing for i, j in combinations(tasks, 2)}
        unmet = [pair for pair in self._gradient_figures.never_met() if pair in shared]
        pairs = [f'"{one}" and "{other}"' for one, other in unmet]
        if not pairs:
            return None
        return (
            f"balance: {type(self.method).__name__} compares gradients of features, and in a whole epoch "
            f"those of {', '.join(limited(pairs))} never met, as if no sample had labels of both; "
            'on="parameters" compares them'
        )

    def _new_means(self) -> tuple[Means, ...]:
        self._gradient_figures = GradientFigures(self.tasks.names)
        return *super()._new_means(), self._gradient_figures

    def _combine(self, result: Any, batch: Any, state: RunState) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients.

        `batch` is what the engine's `TaskGradients` take for a `result`.
        """
        present = self._weigh(batch, state) if self._begin(state) else None
        if present is None:
            rows = self._arrays.rows(self._weights, self._arrays.labelled(result, self.tasks))
        else:
            rows = np.stack([self._weights * present, present])
        self.means[0].add(rows)
        self._gradients.combine(batch, self._weights)

    def _weigh(self, batch: Any, state: RunState) -> Numbers | None:
        """Compute the weights; a task without a gradient keeps its last one, for batches without new ones.

        Returns 1 for the tasks with a gradient, else 0; None if a number is not finite: all weights stay.
        """
        losses, gramian = self._measure(batch)
        of_batch = state.epoch, state.step, len(self.tasks.weighed), self._preference
        weights, self._memory = weigh_gradients(
            self.method, losses, gramian, self._weights, self._memory, *of_batch
        )
        if not np.isfinite(gramian.sum() + losses.sum()):
            return None
        present: Numbers = (gramian.diagonal() > 0).astype(np.float64)
        self._weights = np.where(present, weights, self._weights)
        return present

    def _measure(self, batch: Any) -> tuple[Numbers, Numbers]:
        """Return the losses (K,) and the Gramian (K, K) over all devices and ranks; this waits for them.

        The Gramian is added to the figures.
        """
        count = len(self.tasks.names)
        losses, products = self._gradients.measure(batch, self.tasks)
        gramian = np.zeros((count, count))
        for tasks, each in products:
            gramian[... if len(tasks) == count else np.ix_(tasks, tasks)] += each
            if not self.repeats:
                self._sharing.add(tuple(tasks))
        if not self._world.alone:
            if self.repeats and not self._world.first:
                gramian[:] = 0  # each rank has that of all
            sums = self._world.sum(np.append(losses, gramian))
            losses, gramian = sums[:count], sums[count:].reshape(count, count)
        gramian = (gramian + gramian.T) / 2
        if np.isfinite(gramian).all():  # gradients in float16 overflow now and then
            self._gradient_figures.add_gramian(gramian)
        return losses, gramian
