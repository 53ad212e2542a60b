"""Schedules of learning rates, for ``TrainerSpec(lr_scheduler=...)``, and of losses' weights.

A schedule of a weight, for ``LossSpec(weight=...)``, is a function of the :class:`~multifit.RunState`. It has
no state of its own, so a resumed run continues it without saving or loading anything.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from .arguments import Count, FromZero, NotNegative, Valid, checked, checked_value
from .gluon.optim.schedules import OneCycle, WarmUp
from .state import RunState

__all__ = ["OneCycle", "WarmUp", "piecewise", "ramp"]

_Weights = Annotated[
    Mapping[int, float],
    Valid(
        "a dict with epoch 0, such as {{0: 0.1, 5: 1.0}}: 0.1 for five epochs, then 1",
        lambda value: 0 in value,
    ),
]


@checked
def ramp(
    start: NotNegative, end: NotNegative, epochs: Count | None = None, steps: Count | None = None
) -> Callable[[RunState], float]:
    """Return a weight that changes linearly from `start` to `end` and then stays there.

    Parameters
    ----------
    start, end : float
        The weight in the first epoch or batch of the run, and after the ramp. At least 0.
    epochs, steps : int
        The length of the ramp; pass exactly one of them. With ``epochs=5``, the sixth epoch is the first at
        `end`. With `steps`, the weight changes with each batch.

    Returns
    -------
    callable
        A function of the `RunState`.

    Raises
    ------
    ValueError
        An argument is not valid.
    """
    unit, length = ("epochs", epochs) if steps is None else ("steps", steps)
    if length is None or None not in (epochs, steps):
        raise ValueError(f"ramp was given epochs={epochs} and steps={steps}; give exactly one of them")
    return _Ramp(start, end, unit, length)


@checked
def piecewise(weights: _Weights) -> Callable[[RunState], float]:
    """Return a weight that changes at some epochs and is constant in between.

    Parameters
    ----------
    weights : mapping of int to float
        The weights by the epoch from which they apply, counted from 0 as in ``RunState.epoch``. Epoch 0 is
        required: ``piecewise({0: 0.1, 5: 1.0})`` is 0.1 for five epochs, and 1 from then on.

    Returns
    -------
    callable
        A function of the `RunState`.

    Raises
    ------
    ValueError
        Epoch 0 is missing, or an epoch or weight is not valid.
    """
    pairs = [
        (
            checked_value("piecewise: an epoch of weights", epoch, FromZero),
            checked_value(f"piecewise: weights[{epoch}]", weight, NotNegative),
        )
        for epoch, weight in weights.items()
    ]
    return _Piecewise(tuple(sorted(pairs)))


@dataclass(frozen=True, repr=False)
class _Ramp:
    __name__ = "ramp"  # shown in a TaskSpec's summary
    start: float
    end: float
    unit: str
    length: int

    def __call__(self, state: RunState) -> float:
        done = state.epoch if self.unit == "epochs" else state.step
        if done >= self.length:
            return self.end  # exactly, without rounding
        return self.start + (self.end - self.start) * done / self.length

    def __repr__(self) -> str:
        return f"ramp({self.start:g}, {self.end:g}, {self.unit}={self.length})"


@dataclass(frozen=True, repr=False)
class _Piecewise:
    __name__ = "piecewise"
    pairs: tuple[tuple[int, float], ...]

    def __call__(self, state: RunState) -> float:
        return next(weight for epoch, weight in reversed(self.pairs) if epoch <= state.epoch)

    def __repr__(self) -> str:
        return f"piecewise({{{', '.join(f'{epoch}: {weight:g}' for epoch, weight in self.pairs)}}})"
