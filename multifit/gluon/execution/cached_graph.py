"""A graph around blocks that stay untouched, and the ways in which it is run."""

from __future__ import annotations

import operator
import warnings
from typing import Any, Callable, Hashable, Sequence

from ..compat import mx

__all__ = ["CachedGraph"]

MAX_CHANGES = 4  # of the form that a graph is made ready for: each costs the time of some batches


class CachedGraph(mx.gluon.HybridBlock):
    """A graph around blocks that are held without being registered as children.

    Hybridizing the user's own net would freeze whichever mode traced it first (a net that branches on
    ``autograd.is_training()`` would return its training outputs when evaluating); a graph for each stage has
    its own mode, and switching costs nothing.

    It is traced once and runs in two ways: one for arrays of any shapes, and one whose memory and operators
    are made ready beforehand (MXNet's ``static_alloc`` and ``static_shape``), for arrays of a form that comes
    again and again. Small nets take half the time then.

    Parameters
    ----------
    function : callable
        ``function(F, *arrays) -> list of arrays``; called once with symbols.
    parameters : callable
        Returns the ParameterDict of everything that the function uses.
    form : hashable, optional
        Of arrays that were there before the graph was, as :meth:`run` takes it.
    """

    def __init__(
        self, function: Callable[..., Any], parameters: Callable[[], Any], form: Hashable = None
    ) -> None:
        super().__init__()
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_parameters", parameters)
        self._given: list[bool] = []
        self._arguments: _Arguments | None = None
        self._ready: Any = None
        self._form = form
        self._rhythms: dict[Any, _ShapeStability] = {}
        self.hybridize()

    def collect_params(self, select: str | None = None) -> Any:
        """Return the parameters of what is traced (`select` is Gluon's and unused here)."""
        return self._parameters()

    @property
    def is_traced(self) -> bool:
        """Whether the graph is there; until then a call may fail because something cannot be traced."""
        return self._arguments is not None

    def hybrid_forward(self, F: Any, *arrays: Any) -> Any:
        """Trace the function."""
        return self._function(F, *arrays)

    def run(self, arrays: Sequence[Any], form: Hashable = None) -> list[Any]:
        """Run the graph; the first call traces it.

        Parameters
        ----------
        arrays : sequence of NDArray or None
            On one device.
        form : hashable, optional
            Equal for arrays of equal shapes; None if they are not worth being made ready for.
        """
        if self._arguments is None:
            self._trace(arrays)
        if [array is not None for array in arrays] != self._given:
            raise ValueError("other slots are None than in the first batch")
        context = mx.context.current_context()
        arguments, changed = self._arguments.filled([a for a in arrays if a is not None], context)
        if changed:
            # Made ready with gradient arrays that are no longer the parameters' own, the graph would go on
            # to write into those without a word.
            self._ready = None
        rhythm = self._rhythms.setdefault(context, _ShapeStability(self._form))
        result = (self._made_ready() if rhythm.repeats(form) else self._cached_op)(*arguments)
        return result if isinstance(result, list) else [result]

    def _trace(self, arrays: Sequence[Any]) -> None:
        with warnings.catch_warnings():
            # what this graph does not need is no news: the plan lists what is unused
            warnings.filterwarnings("ignore", message=".*is not used by any computation.*")
            self._build_cache(*arrays)
        self._given = [array is not None for array in arrays]
        self._arguments = _Arguments(self._cached_op_args)

    def _made_ready(self) -> Any:
        if self._ready is None:
            inputs = list(enumerate(is_data for is_data, _ in self._cached_op_args))
            flags: list[tuple[str, Any]] = [
                ("data_indices", [i for i, is_data in inputs if is_data]),
                ("param_indices", [i for i, is_data in inputs if not is_data]),
            ]
            # Operators that are made ready write running statistics behind the engine's back: who reads these
            # after a batch would not wait for it. Then only the memory is.
            symbol = self._cached_graph[1]
            static = not symbol.list_auxiliary_states() and self._arguments.dense
            flags += [("static_alloc", True), ("static_shape", static)]
            self._ready = mx.nd.CachedOp(symbol, flags)
        return self._ready


class _ShapeStability:
    """Which form of arrays comes again and again on one device."""

    def __init__(self, last: Hashable) -> None:
        self._form: Hashable = None
        self._last = last
        self._changes = 0

    def repeats(self, form: Hashable) -> bool:
        """Whether arrays of this form are what to be ready for."""
        if form is not None and form == self._last != self._form and self._changes < MAX_CHANGES:
            self._form, self._changes = form, self._changes + 1
        self._last = form
        return form is not None and form == self._form


class _Arguments:
    """What a graph is called with: arrays that are new each time, and parameters, looked up once a device."""

    def __init__(self, wanted: Sequence[tuple[bool, Any]]) -> None:
        self._arrays = [(at, index) for at, (is_data, index) in enumerate(wanted) if is_data]
        self._parameters = [(at, parameter) for at, (is_data, parameter) in enumerate(wanted) if not is_data]
        self._seen: list[Any] = []
        self._known: dict[Any, list[Any]] = {}

    @property
    def dense(self) -> bool:
        """Whether no parameter or gradient is sparse."""
        kinds = {kind for _, p in self._parameters for kind in (p._stype, p._grad_stype)}
        return kinds <= {"default"}

    def filled(self, arrays: Sequence[Any], context: Any) -> tuple[list[Any], bool]:
        """Return all arguments, and whether a parameter has other arrays than at the last call."""
        # Gluon makes a new list of them whenever it makes new arrays
        seen = [parameter._data for _, parameter in self._parameters]
        seen += [parameter._grad for _, parameter in self._parameters]
        changed = len(seen) != len(self._seen) or not all(map(operator.is_, seen, self._seen))
        if changed:
            self._seen = seen
            self._known.clear()
        if context not in self._known:
            known: list[Any] = [None] * (len(self._arrays) + len(self._parameters))
            for at, parameter in self._parameters:
                known[at] = parameter.data(context)
            self._known[context] = known
        arguments = self._known[context].copy()
        for at, index in self._arrays:
            arguments[at] = arrays[index]
        return arguments, changed
