"""A net on its devices: its parameters by name, and their initialisation."""

from __future__ import annotations

from typing import Any, Callable

from ..errors import Problem, SpecError
from ..spec import TaskSpec
from .compat import mx
from .data.devices import resolve_context
from .optim.initialization import initialize
from .optim.parameters import named_parameters
from .precision.precisions import precision_of


class Model:
    """A net with its parameters, on its devices.

    `context`, `initializer` and `precision` are those of :class:`multifit.MultiEstimator`; losses that are
    Blocks may have parameters too. Raises SpecError if `net` is not a Block, and ValueError for a context
    that does not exist, or a precision that is unknown or that the devices do not support.

    `parameters` are named by structure, such as ``body.0.weight``; `contexts` are the devices.
    """

    def __init__(
        self,
        net: Any,
        spec: TaskSpec,
        context: Any,
        initializer: Any,
        precision: str,
        log_once: Callable[[str], None],
    ) -> None:
        if not isinstance(net, mx.gluon.Block):
            raise SpecError(f"net is {net!r:.80}, not a gluon.Block; give the net itself, an instance")
        self.net = net
        self.parameters: dict[str, Any] = named_parameters(net, {t.key: t.spec.fn for t in spec.terms})
        self.contexts = resolve_context(context, list(self.parameters.values()))
        self.precision = precision_of(precision, self.contexts)
        if self.precision.rules is not None:
            log_once(self.precision.description)
        self._initializer, self._log_once, self._initialized = initializer, log_once, False

    @property
    def hybridizable(self) -> bool:
        """Whether ``net.hybridize()`` was not called, but could be."""
        hybrid = isinstance(self.net, mx.gluon.HybridBlock) and not isinstance(self.net, mx.gluon.SymbolBlock)
        return hybrid and not self.net._active

    def initialize(self) -> list[Problem]:
        """Initialise what is not initialised yet; return what is wrong with the initializer."""
        if self._initialized:
            return []
        problems = initialize(self.parameters, self.contexts, self._initializer, self._log_once)
        self._initialized = not problems
        return problems
