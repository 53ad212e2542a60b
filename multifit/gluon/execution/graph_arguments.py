"""The arguments of a cached graph."""

from __future__ import annotations

import operator
from typing import Any, Sequence


class GraphArguments:
    """The arguments of a graph: arrays, new in each call, and parameters, looked up once for each device."""

    def __init__(self, arguments: Sequence[tuple[bool, Any]]) -> None:
        self._arrays = [(at, index) for at, (is_data, index) in enumerate(arguments) if is_data]
        self._parameters = [
            (at, parameter) for at, (is_data, parameter) in enumerate(arguments) if not is_data
        ]
        self._lists: list[Any] = []
        self._by_context: dict[Any, list[Any]] = {}

    @property
    def places(self) -> dict[int, int]:
        """The place of each array that is used among the arguments, by the array's number in a run."""
        return {number: at for at, number in self._arrays}

    @property
    def dense(self) -> bool:
        """Whether no gradient is sparse."""
        return all(parameter._grad_stype == "default" for _, parameter in self._parameters)

    def gradients(self, arguments: Sequence[Any]) -> dict[int, tuple[Any, str]]:
        """Return, by place, the gradient array of each parameter that learns, and "write" or "add"."""
        requests = {at: parameter.grad_req for at, parameter in self._parameters}
        return {at: (arguments[at].grad, how) for at, how in requests.items() if how != "null"}

    def fill(self, arrays: Sequence[Any], context: Any) -> tuple[list[Any], bool]:
        """Return all arguments, and whether a parameter's arrays were replaced since the last call."""
        # Gluon makes a new list whenever it makes new arrays for a parameter
        lists = [parameter._data for _, parameter in self._parameters]
        lists += [parameter._grad for _, parameter in self._parameters]
        replaced = len(lists) != len(self._lists) or not all(map(operator.is_, lists, self._lists))
        if replaced:
            self._lists = lists
            self._by_context.clear()
        if context not in self._by_context:
            template: list[Any] = [None] * (len(self._arrays) + len(self._parameters))
            for at, parameter in self._parameters:
                template[at] = parameter.data(context)
            self._by_context[context] = template
        arguments = self._by_context[context].copy()
        for at, index in self._arrays:
            arguments[at] = arrays[index]
        return arguments, replaced
