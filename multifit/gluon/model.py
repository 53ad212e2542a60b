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

__all__ = ["Model"]


class Model:
    """A net with its parameters, on its devices.

    Parameters
    ----------
    net : Block
        The user's net.
    spec : TaskSpec
        Losses that are Blocks may have parameters too.
    context, initializer, precision
        As :class:`multifit.MultiEstimator` takes them.
    log_once : callable
        Logs each default that is used.

    Attributes
    ----------
    parameters : dict of str to Parameter
        By structural name, such as ``body.0.weight``.
    contexts : list of Context
        The devices.
    precision : Precision
        What the net's graph computes in.

    Raises
    ------
    SpecError
        `net` is not a Block.
    ValueError
        A context that does not exist, an unknown precision, or one that the devices do not support.
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
