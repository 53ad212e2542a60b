"""What a handler may use of the estimator."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from ..history import History
from ..state import RunState

__all__ = ["Running"]


class Running(Protocol):
    """The estimator as the handlers see it: they never import it, they are handed it.

    Attributes
    ----------
    max_epoch, max_batch : int, optional
        How far this fit goes. A handler may rewrite them.
    """

    max_epoch: int | None
    max_batch: int | None

    @property
    def state(self) -> RunState:
        """Where the run stands."""

    @property
    def history(self) -> History:
        """The figures of the running fit."""

    @property
    def batch_axis(self) -> int:
        """The axis of the samples."""

    @property
    def logger(self) -> logging.Logger:
        """The logger "multifit"."""

    def figures(self, stage: str = "train") -> dict[str, float]:
        """Return the running figures of "train" or "evaluate"; synchronises with the engine."""

    def direction(self, figure: str) -> str | None:
        """Return "min" or "max", whichever is better for this figure; None where that is not known."""

    def learning_rates(self) -> dict[str, float]:
        """Return the current rates, ``lr`` or ``lr_<trainer>``; does not synchronise."""

    def evaluate(self, data: Any, event_handlers: Any = None, batch_axis: int = 0) -> dict[str, float]:
        """Measure on `data`; in a running fit the figures go to the history as ``val_…``."""
