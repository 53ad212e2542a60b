"""Says when something is due, independently of what it is.

The idea is Chainer's (`chainer.training.triggers.IntervalTrigger`): one small object says *when* to validate,
log, write checkpoints or call any other handler.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any

from ..utils.arguments import Count, FromZero, checked, one_of
from .state import RunState

_STEP_HOOKS = (
    "change_batch",
    "change_outputs",
    "change_objective",
    "hold_update",
    "change_gradients",
    "around_step",
)

# For each unit, its events and hooks, and how to get the current epoch's or batch's number, counted from 1.
# The run's own counters are used, so counting goes on over a second fit and over a resumed one.
UNITS: dict[str, dict[str, Callable[[RunState], int]]] = {
    "epoch": dict.fromkeys(("epoch_begin", "epoch_end"), lambda state: state.epoch + 1),
    "batch": {
        **dict.fromkeys(("batch_begin", *_STEP_HOOKS), lambda state: state.step + 1),
        "batch_end": lambda state: state.step,
    },
}


class Every:
    """Every n-th epoch or batch: a trigger, or a handler that calls another one at this interval.

    ``Every(5, "batch", handler)`` is a handler. It calls the wrapped handler in every fifth batch:
    ``batch_begin``, ``batch_end`` and the hooks that change a step (unit "epoch": ``epoch_begin`` and
    ``epoch_end``). All other events and hooks are passed on, and attributes such as ``priority``, ``monitor``
    and ``mode`` are the wrapped handler's. Epochs and batches are counted over all fits.

    Parameters
    ----------
    n : int
        The interval, at least 1.
    unit : {"epoch", "batch"}
        What is counted.
    handler : object, optional
        The event handler to call; None for a trigger by itself.
    skip : int
        The number of epochs or batches before counting begins: ``Every(2, skip=3)`` fires at 5, 7, 9 and so
        on.

    Raises
    ------
    ValueError
        `n`, `unit` or `skip` is not valid. A fit raises it too, if `handler` has none of the unit's events
        and hooks.
    """

    @checked
    def __init__(
        self,
        n: Count,
        unit: Annotated[str, one_of(*UNITS)] = "epoch",
        handler: object | None = None,
        skip: FromZero = 0,
    ) -> None:
        self.n, self.unit, self.handler, self.skip = n, unit, handler, skip

    def fires(self, count: int) -> bool:
        """Return whether the `count`-th epoch or batch, counted from 1, is an n-th one."""
        return count > self.skip and (count - self.skip) % self.n == 0

    def due(self, state: RunState, event: str) -> bool:
        """Return whether the epoch or batch of one of the unit's events or hooks is an n-th one."""
        return self.fires(UNITS[self.unit][event](state))

    def __getattr__(self, name: str) -> Any:
        # Everything else is looked up in the handler, except special methods, such as those for copying and
        # pickling. While Every itself is being copied, it has no handler yet.
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self.__dict__.get("handler"), name)
        return self._gated(name, value) if name in UNITS[self.unit] and callable(value) else value

    def __repr__(self) -> str:
        handler = "" if self.handler is None else f", {type(self.handler).__name__}"
        return f'Every({self.n}, "{self.unit}"{handler}{f", skip={self.skip}" if self.skip else ""})'

    def _gated(self, event: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(estimator: Any, *args: Any, **kwargs: Any) -> Any:
            if self.due(estimator.state, event):
                return method(estimator, *args, **kwargs)
            return nullcontext() if event == "around_step" else None

        return call
