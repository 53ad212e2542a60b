"""The counters of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .distributed import World

_SAVED = ("epoch", "batch", "step", "samples", "seed")


@dataclass
class RunState:
    """The counters of an estimator's training, and why it stopped.

    All counters continue over several fits: one fit of ten epochs and two of five end in the same state.

    Attributes
    ----------
    epoch : int
        Index of the current epoch, from 0.
    batch : int
        Index of the current batch in its epoch, from 0.
    step : int
        Number of batches trained, including the current one in ``batch_end``.
    samples : int
        Number of samples trained.
    stop_reason : str, optional
        Why the current fit is about to stop, or why the last one stopped.
    interrupted : bool
        Whether the fit was interrupted from outside (Ctrl-C, SIGTERM): finish soon, start nothing long.
    seed : int, optional
        The seed that the generators are reseeded from during the run. None: they are never reseeded.
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
        """Whether the current fit was asked to stop."""
        return self.stop_reason is not None

    @property
    def place(self) -> str:
        """The current batch in words, counted from 1: ``epoch 3, batch 8``; in ``epoch_end``, the last one.

        Outside of epochs, there is no current batch.
        """
        return f"epoch {self.epoch + 1}, batch {self.batch + 1}"

    def count(self, samples: int | None) -> None:
        """Count a batch that was trained on, and its samples, if it has any."""
        self.step += 1
        self.samples += samples or 0

    def start(self) -> None:
        """Reset the reason to stop, at the beginning of a fit."""
        self.stop_reason, self.interrupted = None, False

    def to_dict(self) -> dict[str, int | None]:
        """Return the counters and the seed, for a checkpoint."""
        return {name: getattr(self, name) for name in _SAVED}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore what :meth:`to_dict` returned."""
        for name in _SAVED:
            setattr(self, name, saved[name])

    def stop(self, reason: str) -> None:
        """Ask the current fit to stop; the first reason counts."""
        self.end(reason)

    def interrupt(self, reason: str) -> None:
        """Ask the current fit to stop, because it was interrupted from outside."""
        self.interrupted = True
        self.stop(reason)

    def end(self, reason: str) -> None:
        """Stop now; every rank calls this after the same batch."""
        if self.stop_reason is None:
            self.stop_reason = reason

    def agree(self) -> None:
        """Stop if another rank was asked to stop; with one process, do nothing."""


class JointRunState(RunState):
    """The counters on one of several ranks: a request to stop takes effect once all ranks know of it.

    All ranks thus stop after the same batch, for the same reason, and their handlers see the same state.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.start()

    def start(self) -> None:
        """Reset the reason to stop, at the beginning of a fit."""
        super().start()
        self._requested: str | None = None
        self._interrupted = False

    def stop(self, reason: str) -> None:
        """Ask all ranks to stop; the first reason counts."""
        self._requested = self._requested or reason

    def interrupt(self, reason: str) -> None:
        """Ask all ranks to stop, because this process was interrupted from outside."""
        self._interrupted = self._interrupted or self._requested is None
        self.stop(reason)

    def agree(self) -> None:
        """Stop if any rank was asked to stop; all ranks must call this.

        Any other reason takes precedence over an interrupt: it would have stopped all ranks anyway.
        """
        asked = float(self._requested is not None), float(self._interrupted)
        facts = self._world.meet("the end of a batch", *asked)
        if not facts.any():
            return
        reasons = self._world.gather_json(self._requested)
        asked_by = [rank for rank, reason in enumerate(reasons) if reason is not None]
        rank = min(asked_by, key=lambda rank: facts[rank, 1])
        everywhere = len(set(reasons)) == 1
        self.end(reasons[rank] if everywhere else f"{reasons[rank]} (rank {rank})")
        self.interrupted = bool(facts[rank, 1])
