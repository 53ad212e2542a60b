"""Handlers that many tests use."""

import re
from collections.abc import Mapping
from typing import Any


def handler(name: str = "Handler", priority: Any = None, **methods: Any) -> Any:
    """Make a handler whose class is called `name`; `methods` are its methods, without self."""
    body = {event: staticmethod(method) for event, method in methods.items()}
    if priority is not None:
        body["priority"] = priority
    return type(name, (), body)()


def nothing(estimator: Any, **arguments: Any) -> None:
    """Do nothing."""


class PowerCut(Exception):
    """Ends a fit."""


class CutsPower:
    """Ends a fit after a batch, and after what the other handlers save of it."""

    priority = 5000

    def __init__(self, step: int) -> None:
        self.step = step

    def batch_end(self, estimator: Any, **arguments: Any) -> None:
        if estimator.state.step == self.step:
            raise PowerCut


class Freezes:
    """Freezes the parameters that match a pattern, and unfreezes all others, when a batch or epoch begins.

    `patterns` are those of some steps, counted from 0.
    """

    def __init__(self, patterns: Mapping[int, str]) -> None:
        self.patterns = patterns

    def epoch_begin(self, estimator: Any, **arguments: Any) -> None:
        if estimator.state.step in self.patterns:
            freeze(estimator.net, self.patterns[estimator.state.step])

    batch_begin = epoch_begin


def freeze(net: Any, pattern: str, request: str = "write") -> None:
    """Freeze the parameters of a net that match a pattern, and set the ``grad_req`` of all others."""
    for name, parameter in net._collect_params_with_prefix().items():
        parameter.grad_req = "null" if re.fullmatch(pattern, name) else request
