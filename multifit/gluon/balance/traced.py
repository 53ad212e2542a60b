"""A method's function that computes on the device, as one traced operator, so that nothing waits."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from ...balance import State
from ...balance.measured import measured_losses
from ...protocols import Array
from ..compat import mx

Function = Callable[..., "tuple[Any, State]"]
"""``function(measured, *arrays, state) -> array, state``"""


class TracedFunction:
    """Runs a function of what was measured on arrays of float64, and of further `arrays` by name.

    It is traced once, for a number of tasks; `state` has the names of what the method remembers.
    """

    def __init__(self, function: Function, tasks: int, arrays: Sequence[str], state: State) -> None:
        symbols = {name: mx.sym.var(name) for name in ("losses", "epoch", *arrays)}
        memory = {name: mx.sym.var(f"state_{name}") for name in state}
        measured = measured_losses(mx.sym, tasks, symbols["losses"], symbols["epoch"])
        result, changed = function(measured, *[symbols[name] for name in arrays], memory)
        self._names = list(changed)
        # an output must not be an input itself
        outputs = mx.sym.Group([mx.sym.identity(each) for each in (result, *changed.values())])
        self._inputs = outputs.list_inputs()
        self._operator = mx.nd.CachedOp(outputs, ())

    def __call__(self, arrays: Mapping[str, Array], state: State) -> tuple[Array, State]:
        """Return the result, and the state after it."""
        named = {**arrays, **{f"state_{name}": value for name, value in state.items()}}
        outputs = self._operator(*[named[name] for name in self._inputs])
        first, *rest = outputs if isinstance(outputs, list) else [outputs]
        return first, dict(zip(self._names, rest))
