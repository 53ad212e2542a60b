"""The run that an estimator trains: where it stands, and what it has measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..history import History
from ..plan import Plan
from ..state import RunState


@dataclass
class Run:
    """What the estimator, its fit loop and its checkpointer share.

    `state` has the counters over all fits; `history` the figures of the running or last fit; `plan` what the
    last check established. One of `max_epoch` and `max_batch` limits the fit. `epoch_complete` says whether
    the last epoch was trained to its end. `order_state` are the random states from which the loader drew the
    order of the running epoch: a run without a schedule is not seeded for each epoch, and must resume in the
    same order.
    """

    state: RunState = field(default_factory=RunState)
    history: History = field(default_factory=History)
    plan: Plan | None = None
    max_epoch: int | None = None
    max_batch: int | None = None
    epoch_complete: bool = True
    order_state: dict[str, Any] = field(default_factory=dict)

    def start(self, max_epoch: int | None, max_batch: int | None) -> None:
        """Begin a fit with its own history; the counters continue."""
        self.max_epoch, self.max_batch = max_epoch, max_batch
        self.history, self.epoch_complete = History(), True
        self.state.start()
