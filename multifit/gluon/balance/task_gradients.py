"""Whose gradients are compared: those of the features at which tasks part, or of shared parameters."""

from __future__ import annotations

import re
from typing import Any, Mapping, Protocol, Sequence

from ...errors import SpecError, suggest
from ...protocols import Array
from ..compat import mx
from ..execution.split_graph import Parting

Products = list["tuple[tuple[int, int], Array]"]
"""Pairs of tasks with inner products of their gradients, each of shape (1,), which are added up."""


class TaskGradients(Protocol):
    """Finds the inner products of gradients, and combines the gradients."""

    repeats: bool  # whether the body is passed back several times

    def products(self, partings: Sequence[Parting], tasks: int) -> Products:
        """Return inner products of the tasks' gradients in a batch, without reading them."""

    def combine(self, partings: Sequence[Parting], weights: Sequence[float]) -> None:
        """Give the shared parameters the weighted sum of the tasks' gradients."""


class FeatureGradients:
    """Compares the gradients of features; one backward pass through the body."""

    repeats = False

    def products(self, partings: Sequence[Parting], tasks: int) -> Products:
        """Return the products of all devices."""
        pairs = [pair for parting in partings for pair in parting.inner_products().items()]
        return [(pair, product) for pair, products in pairs for product in products]

    def combine(self, partings: Sequence[Parting], weights: Sequence[float]) -> None:
        """Pass the weighted sum of the features' gradients back."""
        for parting in partings:
            parting.backward(weights)


class ParameterGradients:
    """Compares the gradients of shared parameters: exact, at the cost of a backward pass for each task.

    `chosen` are the parameters to compare, None for all that are shared.
    """

    repeats = True

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any]) -> None:
        self._pattern = pattern
        self._chosen = None if pattern is None else _matching(pattern, parameters)
        self._rows: list[list[Array]] = []  # by device and parameter, in the batch that is measured

    def products(self, partings: Sequence[Parting], tasks: int) -> Products:
        """Return the products; the gradients of several devices are added up before."""
        self._rows = [parting.parameter_rows(tasks) for parting in partings]
        compared = [
            number
            for number, parameter in enumerate(partings[0].parameters)
            if self._chosen is None or id(parameter) in self._chosen
        ]
        if not compared:
            raise SpecError(
                f'balance: on="{self._pattern}" selects no parameter that tasks share; use on="parameters"'
            )
        context = partings[0].arrays[0].context
        gramian = mx.nd.zeros((tasks, tasks), ctx=context, dtype="float64")
        for number in compared:
            rows = mx.nd.add_n(*[device[number].as_in_context(context) for device in self._rows])
            gramian = gramian + mx.nd.dot(rows, rows, transpose_b=True).astype("float64")
        flat = gramian.reshape((-1,))
        places = [(one, other) for one in range(tasks) for other in range(one, tasks)]
        return [((one, other), flat[one * tasks + other : one * tasks + other + 1]) for one, other in places]

    def combine(self, partings: Sequence[Parting], weights: Sequence[float]) -> None:
        """Combine the rows, or in a batch that was not measured pass the weighted sum back."""
        if not self._rows:
            FeatureGradients().combine(partings, weights)
        for parting, rows in zip(partings, self._rows):
            parting.set_gradients(rows, weights)
        self._rows = []


def task_gradients(on: str, parameters: Mapping[str, Any]) -> TaskGradients:
    """Return what ``on=`` says."""
    if on == "features":
        return FeatureGradients()
    return ParameterGradients(None if on == "parameters" else on, parameters)


def _matching(pattern: str, parameters: Mapping[str, Any]) -> set[int]:
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
    return {id(parameters[name]) for name in names}
