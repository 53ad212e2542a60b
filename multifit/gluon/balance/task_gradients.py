"""Whose gradients are compared: those of the features at which tasks part, or of shared parameters."""

from __future__ import annotations

import copy
import re
from typing import Any, Mapping, Protocol, Sequence

import numpy as np

from ...distributed import ALONE
from ...errors import SpecError, suggest
from ...protocols import Array
from ..compat import mx
from ..execution.parting import Parting
from ..execution.result import StepResult
from .tasks import Tasks

Numbers = np.ndarray


Weights = np.ndarray
"""The weights of the tasks, of shape (tasks,)."""


class TaskGradients(Protocol):
    """Finds the inner products of gradients, and combines the gradients."""

    repeats: bool  # whether the body is passed back several times

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the tasks' losses (K,) and Gramian (K, K) in a batch over all devices; reads them."""

    def combine(self, partings: Sequence[Parting], weights: Numbers) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients."""

    def fork(self) -> TaskGradients:
        """Return what goes on from here without changing this."""


class AddingGradients(TaskGradients, Protocol):
    """Compares gradients that may be added up over several batches too."""

    @property
    def waits(self) -> bool:
        """Whether gradients were added up and not combined."""

    def add(self, result: StepResult, tasks: Tasks, weights: Numbers) -> None:
        """Add the tasks' gradients and losses of a batch to those that wait; reads nothing.

        The parameters have their sum by the `weights` that were the last.
        """

    def measure_added(
        self, partings: Sequence[Parting], tasks: Tasks, batches: int
    ) -> tuple[Numbers, Numbers]:
        """Return losses and products of what was added; of the means, if `batches` are not 1."""

    def forget(self) -> None:
        """Begin to add anew."""

    def state(self) -> dict[str, Any]:
        """Return what waits, for a checkpoint."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, of either engine."""


class FeatureGradients:
    """Compares the gradients of features; one backward pass through the body."""

    repeats = False

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return losses and products, which are added up over the devices."""
        count, one_device = len(tasks.names), len(result.partings) == 1
        gramian = np.zeros((count, count))
        for parting in result.partings:
            gramians, values = parting.measure(result.objectives if one_device else ())
            for of_tasks, products in gramians:
                if len(of_tasks) == count:
                    gramian += products
                else:
                    gramian[np.ix_(of_tasks, of_tasks)] += products
        return tasks.losses(result, values) if one_device else tasks.read_losses(result, ALONE), gramian

    def combine(self, partings: Sequence[Parting], weights: Numbers) -> None:
        """Pass the weighted sum of the features' gradients back."""
        for parting in partings:
            parting.backward(weights)

    def fork(self) -> FeatureGradients:
        """Return itself: there is nothing to change."""
        return self


class ParameterGradients:
    """Compares the gradients of shared parameters: exact, at the cost of a backward pass for each task.

    `chosen` are the parameters to compare, None for all that are shared. Where gradients are added up over
    several batches, so are those of each task.
    """

    repeats = True

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any]) -> None:
        self._pattern = pattern
        self._parameters: list[Any] = list(parameters.values())
        self._chosen: set[int] | None = None
        if pattern is not None:
            self._chosen = {id(parameters[name]) for name in matching(pattern, parameters)}
        self._rows: list[list[Array]] = []  # by device and parameter, in the batches that are measured
        self._losses: list[tuple[list[str], Array]] = []  # of the batches whose rows are added

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return losses and products; the gradients of several devices are added up before."""
        count = len(tasks.names)
        self._rows = [parting.parameter_rows(count, self._parameters) for parting in result.partings]
        return tasks.read_losses(result, ALONE), self._gramian(result.partings)

    def combine(self, partings: Sequence[Parting], weights: Numbers) -> None:
        """Combine the rows, or in a batch that was not measured pass the weighted sum back."""
        if not self._rows:
            FeatureGradients().combine(partings, weights)
        self._set(partings, weights)
        self.forget()

    def add(self, result: StepResult, tasks: Tasks, weights: Numbers) -> None:
        """Add the tasks' gradients and losses of a batch to those that wait; reads nothing.

        The parameters have their sum by the `weights` that were the last.
        """
        count, befores = len(tasks.names), self._rows or [[] for _ in result.partings]
        self._rows = [
            parting.parameter_rows(count, self._parameters, rows)
            for parting, rows in zip(result.partings, befores)
        ]
        objectives: Sequence[Any] = result.objectives
        self._losses += [
            (list(keys), objective.detach()) for keys, objective in zip(result.objective_losses, objectives)
        ]
        self._set(result.partings, weights)

    def measure_added(
        self, partings: Sequence[Parting], tasks: Tasks, batches: int
    ) -> tuple[Numbers, Numbers]:
        """Return losses and products of what was added; of the means, if `batches` are not 1."""
        losses = np.zeros(len(tasks.names))
        for keys, objective in self._losses:
            for key, value in zip(keys, objective.asnumpy().tolist()):
                losses[tasks.of_loss[key]] += value / batches
        return losses, self._gramian(partings) / batches**2

    @property
    def waits(self) -> bool:
        """Whether gradients were added up and not combined."""
        return bool(self._rows)

    def forget(self) -> None:
        """Begin to add anew."""
        self._rows, self._losses = [], []

    def fork(self) -> ParameterGradients:
        """Return what adds to copies."""
        fork = copy.copy(self)
        fork._rows = [[row.copy() for row in rows] for rows in self._rows]
        fork._losses = list(self._losses)
        return fork

    def state(self) -> dict[str, Any]:
        """Return what waits, for a checkpoint."""
        return {"rows": self._rows, "losses": [list(each) for each in self._losses]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._rows = [list(rows) for rows in state["rows"]]
        self._losses = [(keys, objective) for keys, objective in state["losses"]]

    def _set(self, partings: Sequence[Parting], weights: Numbers) -> None:
        for parting, rows in zip(partings, self._rows):
            parting.set_gradients(rows, weights)

    def _gramian(self, partings: Sequence[Parting]) -> Numbers:
        compared = [
            number
            for number, parameter in enumerate(partings[0].parameters)
            if self._chosen is None or id(parameter) in self._chosen
        ]
        if not compared:
            raise SpecError(nothing_selected(self._pattern))
        context = partings[0].arrays[0].context
        products = []
        for number in compared:
            rows = mx.nd.add_n(*[device[number].as_in_context(context) for device in self._rows])
            products.append(mx.nd.dot(rows, rows, transpose_b=True).astype("float64"))
        return np.asarray(mx.nd.add_n(*products).asnumpy())


def task_gradients(on: str, parameters: Mapping[str, Any]) -> TaskGradients:
    """Return what ``on=`` says."""
    if on == "features":
        return FeatureGradients()
    return ParameterGradients(None if on == "parameters" else on, parameters)


def nothing_selected(pattern: str | None) -> str:
    """Return the message of a pattern that matches the parameters of single tasks only."""
    return f'balance: on="{pattern}" selects no parameter that tasks share; use on="parameters"'


def matching(pattern: str, parameters: Mapping[str, Any]) -> list[str]:
    """Return the names that a pattern matches; raises SpecError if it is none, or matches none."""
    try:
        names = [name for name in parameters if re.fullmatch(pattern, name)]
    except re.error as error:
        raise SpecError(f'balance: on="{pattern}" is not a regular expression: {error}') from None
    if not names:
        near = suggest(pattern, [*parameters, "features", "parameters"])
        raise SpecError(
            f'balance: on="{pattern}" matches no parameter{near}; valid are "features", "parameters" or a '
            "pattern of parameters such as body.*"
        )
    return names
