"""One method of a handler, and the facts that its signature accepts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable


@dataclass(frozen=True)
class HandlerMethod:
    """A handler's bound method for an event or hook, and the facts that it accepts (None: all)."""

    handler: object
    event: str
    function: Callable[..., Any]
    parameters: frozenset[str] | None

    def accepts(self, *facts: str) -> bool:
        """Return whether the method accepts at least one of these facts."""
        return self.parameters is None or not self.parameters.isdisjoint(facts)

    def call(self, estimator: object, facts: Mapping[str, Any]) -> Any:
        """Call the method with those facts that it accepts, and return its result."""
        if self.parameters is None:
            return self.function(estimator, **facts)
        return self.function(estimator, **{name: facts[name] for name in self.parameters if name in facts})


def handler_method(handler: object, event: str) -> HandlerMethod:
    """Return the method of `handler` for `event`.

    A method with ``**facts`` accepts all facts. ``**_`` accepts none: the underscore says that the method
    does not read them, so they need not be computed.
    """
    method = getattr(handler, event)
    return HandlerMethod(handler, event, method, _accepted(method))


def _accepted(method: Callable[..., Any]) -> frozenset[str] | None:
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # a compiled function may have no signature
        return None
    keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD]
    if keywords and not keywords[0].startswith("_"):
        return None
    return frozenset(parameter.name for parameter in list(parameters)[1:])
