"""When something is due, apart from what it is.

The idea is Chainer's (`chainer.training.triggers.IntervalTrigger`): one small object says *when* for
validation, logging, checkpoints and everybody's own handlers.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from .arguments import whole_number
from .errors import names, suggest
from .state import RunState

__all__ = ["Every"]

# For each unit: its moments, and which epoch or batch of the run it is then, counted from 1. No counter of
# one's own: so the rhythm goes on over a second fit, and over a resumed one.
_UNITS: dict[str, dict[str, Callable[[RunState], int]]] = {
    "epoch": {"epoch_begin": lambda state: state.epoch + 1, "epoch_end": lambda state: state.epoch + 1},
    "batch": {"batch_begin": lambda state: state.step + 1, "batch_end": lambda state: state.step},
}


class Every:
    """Each n-th epoch or batch: a rhythm for a handler, or a trigger by itself.

    ``Every(5, "batch", handler)`` is a handler. Its ``batch_begin`` and ``batch_end`` (unit "epoch":
    ``epoch_begin`` and ``epoch_end``) reach the wrapped handler each fifth time; every other moment, and
    every attribute such as ``priority``, ``monitor`` or ``mode``, is the wrapped handler's own. Epochs and
    batches are counted over all fits.

    Parameters
    ----------
    n : int
        The period, at least 1.
    unit : {"epoch", "batch"}
        What is counted.
    handler : object, optional
        The event handler that gets the rhythm; None for a trigger by itself.
    skip : int
        How many epochs or batches pass before counting begins: ``Every(2, skip=3)`` fires at 5, 7, 9 …

    Raises
    ------
    ValueError
        `n`, `unit` or `skip` is not valid, `handler` is a class, or it has none of the unit's moments, so
        that the rhythm would change nothing.
    """

    def __init__(self, n: int, unit: str = "epoch", handler: object | None = None, skip: int = 0) -> None:
        if unit not in _UNITS:
            raise ValueError(f'Every: the unit is "{unit}"{suggest(unit, _UNITS)}; valid are {names(_UNITS)}')
        self.n = whole_number("Every: n", n)
        self.unit = unit
        self.skip = whole_number("Every: skip", skip, least=0)
        self.handler = handler
        if handler is not None:
            self._check_handler(handler)

    def fires(self, count: int) -> bool:
        """Whether the `count`-th epoch or batch, from 1, is one of those meant."""
        return count > self.skip and (count - self.skip) % self.n == 0

    def due(self, state: RunState, moment: str) -> bool:
        """Whether it fires now.

        Parameters
        ----------
        state : RunState
            Where the run stands.
        moment : str
            The running moment: one of the unit's own, ``epoch_begin`` or ``epoch_end``, ``batch_begin`` or
            ``batch_end``.
        """
        return self.fires(_UNITS[self.unit][moment](state))

    def __getattr__(self, name: str) -> Any:
        # What Every does not have itself is the handler's, except its ways of being copied or pickled; and
        # while Every is being copied, there is no handler yet.
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self.__dict__.get("handler"), name)
        return self._gated(name, value) if name in _UNITS[self.unit] else value

    def __repr__(self) -> str:
        handler = "" if self.handler is None else f", {type(self.handler).__name__}"
        return f'Every({self.n}, "{self.unit}"{handler}{f", skip={self.skip}" if self.skip else ""})'

    def _gated(self, moment: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(estimator: Any, *args: Any, **kwargs: Any) -> Any:
            return method(estimator, *args, **kwargs) if self.due(estimator.state, moment) else None

        return call

    def _check_handler(self, handler: object) -> None:
        if isinstance(handler, type):
            raise ValueError(
                f"Every: {handler.__name__} is a class; pass an instance, {handler.__name__}(...)"
            )
        moments = _UNITS[self.unit]
        if not any(callable(getattr(handler, moment, None)) for moment in moments):
            raise ValueError(
                f'Every({self.n}, "{self.unit}") would change nothing: {type(handler).__name__} has neither '
                f"{' nor '.join(moments)}; give it one, or the other unit"
            )
