"""Weighs the gradients of tasks."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Protocol

import numpy as np

from ...balance import GramianMethod
from ...balance.answers import ask
from ...balance.means import Means, Sums
from ...balance.tasks import GradientFigures, Tasks, tasks_of, weight_figure
from ...balance.weighing import weigh_gradients
from ...distributed import ALONE, World
from ...errors import SpecError, limited, suggest
from ...protocols import Array, Context, Numbers
from ...spec import TaskSpec
from ...state import RunState
from ..compat import mx
from ..data.arrays import new_array
from ..distributed.collectives import all_reduce
from ..execution.loss_graph import APART
from ..execution.loss_separation import LossSeparation
from ..execution.parameter_rows import ParameterRows
from ..execution.result import StepResult
from ..execution.split_graph import SharedFeatures, measuring
from ..metrics.sums import Accumulator
from .present import tasks_with_labels, weight_rows

Operator = Callable[..., Any]
"""A function of arrays; returns a list of arrays, or a single array."""

PLANNED = (("static_alloc", True), ("static_shape", True), ("forward_bulk_size", 1000))


class Arrays(Protocol):
    """The arrays of an engine."""

    def new(self, values: Any) -> Any:
        """Return numbers as a float64 array on the device where methods compute."""

    def saved(self, array: Any) -> Array:
        """Return an array as an NDArray, for a checkpoint."""

    def operator(self, symbol: Any) -> Operator:
        """Return a function that computes a symbol's outputs from arrays, in the order of its inputs."""

    def sums(self) -> Sums:
        """Return an object that adds up arrays without waiting for them."""

    def task_gradients(self, on: str, parameters: Mapping[str, Any], world: World) -> TaskGradients:
        """Return an object that compares and combines the tasks' gradients of all ranks.

        `on` is the option of a method: "features", "parameters", or a pattern of parameter names.
        """


class MXNetArrays:
    """NDArrays, on the device of `context`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def new(self, values: Any) -> Array:
        """Return numbers as an NDArray."""
        return new_array(values, self._context, "float64")

    def saved(self, array: Array) -> Array:
        """Return the array."""
        return array

    def operator(self, symbol: Any) -> Operator:
        """Return a planned graph, which costs as much as one operator."""
        return mx.nd.CachedOp(symbol, PLANNED)

    def sums(self) -> Accumulator:
        """Return an accumulator."""
        return Accumulator(self._context)

    def task_gradients(self, on: str, parameters: Mapping[str, Any], world: World) -> TaskGradients:
        """Return an object that compares gradients that MXNet computes."""
        if on == "features":
            return FeatureGradients(world)
        return ParameterGradients(None if on == "parameters" else on, parameters, world)


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

    repeats: bool  # whether there is a backward pass through the body for each task

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return a batch's losses (K,) and Gramian (K, K) over all devices and ranks; this waits for them.

        All ranks must call this, even without samples.
        """

    def combine(self, features: Sequence[SharedFeatures], weights: Numbers) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients."""


class FeatureGradients:
    """Compares the gradients with respect to features; there is one backward pass through the body."""

    repeats = False

    def __init__(self, world: World) -> None:
        self._world = world
        self.sharing: set[tuple[int, ...]] = set()  # the tasks that take the same array of features

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian, each summed over devices and ranks."""
        count, one_device = len(tasks.names), len(result.features) == 1
        gramian = np.zeros((count, count))
        for features in result.features:
            gramians, values = features.measure(result.objectives if one_device else ())
            for of_tasks, products in gramians:
                pairs = ... if len(of_tasks) == count else np.ix_(of_tasks, of_tasks)
                gramian[pairs] += products
                self.sharing.add(tuple(of_tasks))
        losses = tasks.losses(result, values) if one_device else tasks.read_losses(result, ALONE)
        return summed(self._world, losses, gramian)

    def combine(self, features: Sequence[SharedFeatures], weights: Numbers) -> None:
        """Pass the weighted sum of the features' gradients back."""
        for each in features:
            each.backward(weights)


def summed(world: World, losses: Numbers, gramian: Numbers) -> tuple[Numbers, Numbers]:
    """Return the sums of the ranks' losses and Gramians."""
    if world.alone:
        return losses, gramian
    count, sums = len(losses), world.sum(np.append(losses, gramian))
    return sums[:count], sums[count:].reshape(count, count)


class ParameterGradients:
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the shared ones whose names match `pattern`, or all shared ones if it is
    None. With several ranks, the compared rows are summed over the ranks. Raises SpecError if a pattern
    matches none.
    """

    repeats = True

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any], world: World) -> None:
        self._world, self._parameters = world, dict(parameters)
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._chosen = ChosenParameters(pattern, parameters, world)
        self._kept: dict[Any, ParameterRows] = {}  # by device; batches rewrite them
        self._rows: list[ParameterRows] = []  # by device, in the batches that are measured

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian of the gradients summed over all devices and ranks."""
        count, every = len(tasks.names), list(self._parameters.values())
        self._rows = [each.parameter_rows(count, every, self._kept) for each in result.features]
        names = self._chosen.reached({self._names[each] for rows in self._rows for each in rows.values})
        compared = [self._of_devices(self._parameters[name], count) for name in names]
        all_reduce(self._world, compared)
        losses = [each.as_in_context(compared[0].context) for each in result.objectives]
        are_floats = tuple([np.dtype(each.dtype).kind == "f" for each in compared])
        values = measuring(len(losses), are_floats)(*compared, *losses).asnumpy()
        products, of_losses = np.split(values, [len(compared) * count * count])
        gramian = products.reshape(-1, count, count).sum(axis=0)  # on each rank, that of all ranks
        own = gramian if self._world.first else np.zeros_like(gramian)
        return summed(self._world, tasks.losses(result, of_losses.tolist()), own)

    def combine(self, features: Sequence[SharedFeatures], weights: Numbers) -> None:
        """Combine the rows; if the batch was not measured, pass the weighted sum back through the body."""
        for each in () if self._rows else features:
            each.backward(weights)
        for rows in self._rows:
            rows.combine(weights)
        self._rows = []

    def _of_devices(self, parameter: Any, tasks: int) -> Array:
        """Return the sum of a parameter's rows over the devices; 0 if no sample on this rank reached it."""
        context = parameter.list_ctx()[0]
        rows = [each.values[parameter] for each in self._rows if parameter in each.values]
        if len(rows) == 1 and self._world.alone:
            return rows[0].as_in_context(context)
        if rows:  # a new array, which the ranks add up in place
            return mx.nd.add_n(*(each.as_in_context(context) for each in rows))
        size = int(np.prod(parameter.shape))
        return mx.nd.zeros((tasks, size), ctx=context, dtype=parameter.dtype)


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
        on = getattr(method, "on", "parameters")
        self._gradients = arrays.task_gradients(on, parameters, world)
        self.method, self.tasks = method, tasks_of(method, spec)
        self._preference = self.tasks.preference(method)
        # a loss of weight 0 has no gradient, and must not change where the graph is cut
        self._weighed = [term.key for term in spec.terms if term.spec.weight != 0]
        self._count = len(self.tasks.names)
        self._weights = self.tasks.first_weights(method)
        self._memory = ask(method, "start", self._count)
        self._is_new = True
        self._new_figures()

    def fork(self) -> GradientBalancer:
        """Return a balancer that continues from this one's state without changing it."""
        fork = copy.copy(self)  # arrays are replaced, never changed
        fork._gradients = copy.copy(self._gradients)
        fork._new_figures()
        return fork

    @property
    def separation(self) -> LossSeparation:
        """How a training stage must compute the objective."""
        means = (self._weight_means, self.gradient_figures)
        tasks = {loss: self.tasks.of_loss[loss] for loss in self._weighed}
        return LossSeparation(APART, means, tasks, self._gradients.repeats)

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

    def measure(self, result: StepResult) -> tuple[Numbers, Numbers]:
        """Return the losses (K,) and the Gramian (K, K) over all devices and ranks; this waits for them.

        The Gramian is added to the figures.
        """
        losses, gramian = self._gradients.measure(result, self.tasks)
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
        self._weight_means = Means([weight_figure(name) for name in names], Accumulator)
        self.gradient_figures = GradientFigures(names)
