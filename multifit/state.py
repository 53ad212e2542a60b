"""Where a run stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RunState"]

_KEPT = ("epoch", "batch", "step", "samples", "seed")


@dataclass
class RunState:
    """The counters of an estimator's training, and why it stopped.

    All counters go on over several fits: ten epochs in one fit and five in each of two end in the same state.

    Attributes
    ----------
    epoch : int
        Index of the current epoch, from 0.
    batch : int
        Index of the current batch in its epoch, from 0.
    step : int
        Number of batches trained; the batch of a running ``batch_end`` is counted.
    samples : int
        Number of samples trained.
    stop_reason : str, optional
        Why the running fit is to stop, or the last one did.
    interrupted : bool
        Whether somebody outside asked it to stop (Ctrl-C, SIGTERM): end soon, do not begin anything long.
    seed : int, optional
        From which the generators are seeded anew in the course of the run; None: they never are.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    samples: int = 0
    stop_reason: str | None = None
    interrupted: bool = False
    seed: int | None = None

    @property
    def stopped(self) -> bool:
        """Whether somebody asked the running fit to stop."""
        return self.stop_reason is not None

    @property
    def place(self) -> str:
        """Where the run is, in words, counted from 1: ``epoch 3, batch 8``."""
        return f"epoch {self.epoch + 1}, batch {self.batch + 1}"

    def start(self) -> None:
        """Begin a fit: nobody asked it to stop yet."""
        self.stop_reason, self.interrupted = None, False

    def to_dict(self) -> dict[str, int | None]:
        """Return the counters and the seed, for a checkpoint."""
        return {name: getattr(self, name) for name in _KEPT}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Set what :meth:`to_dict` returned."""
        for name in _KEPT:
            setattr(self, name, kept[name])

    def stop(self, reason: str) -> None:
        """Ask the running fit to stop; of several reasons the first counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
