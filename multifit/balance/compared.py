"""Weighs the gradients of tasks, whatever library computes them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ..distributed import World
from ..errors import SpecError, limited, suggest
from ..protocols import Numbers
from ..state import RunState
from .answers import ask
from .means import Means, Sums
from .protocol import GramianMethod
from .tasks import GradientFigures, Tasks, tasks_of, weight_figure
from .weighing import weigh_gradients

if TYPE_CHECKING:
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

    def reached(self, own: Iterable[str]) -> list[str]:
        """Return the chosen names among the parameters that the samples of any rank have reached.

        `own` are the names reached on this rank. Raises SpecError if no chosen parameter was reached: they
        all belong to single tasks, or are frozen.
        """
        every = self._world.gather(sorted(own))
        names = sorted(self.names & set().union(*every))
        if not names:
            raise SpecError(
                f'balance: on="{self._pattern}" selects no parameter that tasks share and train; '
                'use on="parameters"'
            )
        return names


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


class TaskGradients(Protocol):
    """Computes the inner products of the tasks' gradients, and combines the gradients."""

    def measure(self, batch: Any, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return a batch's losses (K,) and Gramian (K, K) over all devices and ranks; this waits for them.

        All ranks must call this, even without samples.
        """

    def combine(self, batch: Any, weights: Numbers) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients."""


def summed(world: World, losses: Numbers, gramian: Numbers) -> tuple[Numbers, Numbers]:
    """Return the sums of the ranks' losses and Gramians."""
    if world.alone:
        return losses, gramian
    count, sums = len(losses), world.sum(np.append(losses, gramian))
    return sums[:count], sums[count:].reshape(count, count)


Self = TypeVar("Self", bound="GradientBalancer")


class GradientBalancer:
    """Runs a method that needs the inner products of the tasks' gradients.

    A first backward pass goes from the losses to the features where the tasks branch, and gives each task's
    own parameters the gradient of its loss. Then the weighted sum of the tasks' gradients is passed on to
    the shared body. Every batch in which the weights are computed waits for K x K numbers. `gradients`
    computes with a library; ``labelled(batch, tasks, weights)`` returns rows to add to the means of the
    weights, which `new_sums` adds up.

    `gradient_figures` are means over the measured batches of an epoch. The weights and what the method
    remembers are kept over all fits. Raises SpecError if the method cannot weigh the losses of `spec`.
    """

    def __init__(
        self,
        method: GramianMethod,
        spec: TaskSpec,
        gradients: TaskGradients,
        labelled: Callable[[Any, Tasks, Numbers], Any],
        new_sums: Callable[[], Sums] | None = None,
    ) -> None:
        self._gradients, self._labelled, self._new_sums = gradients, labelled, new_sums
        self.method, self.tasks = method, tasks_of(method, spec)
        self._preference = self.tasks.preference(method)
        # a loss of weight 0 has no gradient, and must not change where the tasks branch
        self._weighed = [term.key for term in spec.terms if term.spec.weight != 0]
        self._weights = self.tasks.first_weights(method)
        self._memory = ask(method, "start", len(self.tasks.names))
        self._is_new = True
        self._new_figures()

    def fork(self: Self) -> Self:
        """Return a balancer that continues from this one's state without changing it."""
        fork = copy.copy(self)  # arrays are replaced, never changed
        fork._gradients = copy.copy(self._gradients)
        fork._new_figures()
        return fork

    @property
    def means(self) -> tuple[Means, ...]:
        """The figures: of the weights, and of the gradients."""
        return self._weight_means, self.gradient_figures

    def combine(self, batch: Any, state: RunState) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients."""
        there: Any = None
        if self._is_new or state.step % self.method.every == 0:
            there = self._weigh(*self.measure(batch), state.epoch, state.step)
        if there is None:
            self._weight_means.add(self._labelled(batch, self.tasks, self._weights))
        else:
            self._weight_means.add(np.stack([self._weights * there, there]))
        self._gradients.combine(batch, self._weights)

    def _weigh(self, losses: Numbers, gramian: Numbers, epoch: int, step: int) -> Numbers | None:
        """Compute the weights; a task without a gradient keeps its last one, for batches without new ones.

        Returns 1 for the tasks with a gradient, else 0; None if a number is not finite: all weights stay.
        """
        state = self._weights, self._memory, epoch, step, len(self.tasks.weighed), self._preference
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

    def measure(self, batch: Any) -> tuple[Numbers, Numbers]:
        """Return the losses (K,) and the Gramian (K, K) over all devices and ranks; this waits for them.

        The Gramian is added to the figures.
        """
        losses, gramian = self._gradients.measure(batch, self.tasks)
        gramian = (gramian + gramian.T) / 2
        if np.isfinite(gramian).all():  # gradients in float16 overflow now and then
            self.gradient_figures.add_gramian(gramian)
        return losses, gramian

    def never_met(self) -> str | None:
        """Return a warning if, in the epoch that ends, features of some tasks were never compared."""
        sharing, names = getattr(self._gradients, "sharing", ()), self.tasks.names
        shared = {(names[i], names[j]) for tasks in sharing for i, j in combinations(tasks, 2)}
        unmet = [pair for pair in self.gradient_figures.never_met() if pair in shared]
        pairs = [f'"{one}" and "{other}"' for one, other in unmet]
        if not pairs:
            return None
        return (
            f"balance: {type(self.method).__name__} compares gradients of features, and in a whole epoch "
            f"those of {', '.join(limited(pairs))} never met, as if no sample had labels of both; "
            'on="parameters" compares them'
        )

    def _new_figures(self) -> None:
        names = self.tasks.names
        self._weight_means = Means([weight_figure(name) for name in names], self._new_sums)
        self.gradient_figures = GradientFigures(names)
