"""Weighs the gradients of tasks, whatever library computes them."""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ..distributed import World
from ..utils.errors import SpecError
from ..utils.protocols import Numbers
from ..utils.text import limited, suggest
from .balancer import Arrays, Balancer
from .means import GradientFigures, Means
from .protocol import GramianMethod
from .tasks import Tasks
from .weighing import weigh_gradients

if TYPE_CHECKING:
    from ..handlers.state import RunState
    from ..spec import TaskSpec

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


Self = TypeVar("Self", bound="GradientBalancer")


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

    def fork(self: Self) -> Self:
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
