"""The counters of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..distributed import ALONE, World

_SAVED = ("epoch", "batch", "step", "samples", "seed", "fit_seed")


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
    fit_seed : int, optional
        The seed that the fit was given, from which the generators were seeded at its beginning.
    world : World
        The processes that train together.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    samples: int = 0
    stop_reason: str | None = None
    interrupted: bool = False
    seed: int | None = None
    fit_seed: int | None = None
    world: World = field(default=ALONE, repr=False, compare=False)
    _request: tuple[str, bool] | None = field(default=None, init=False, repr=False, compare=False)

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
        self.stop_reason, self.interrupted, self._request = None, False, None

    def to_dict(self) -> dict[str, int | None]:
        """Return the counters and the seed, for a checkpoint."""
        return {name: getattr(self, name) for name in _SAVED}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore what :meth:`to_dict` returned."""
        for name in _SAVED:
            setattr(self, name, saved[name])

    def stop(self, reason: str, interrupted: bool = False) -> None:
        """Ask the current fit to stop; the first reason counts.

        `interrupted` says that this was asked from outside. With several ranks, the fit stops once all of
        them know, in :meth:`agree`.
        """
        self._request = self._request or (reason, interrupted)
        if self.world.alone:
            self.end(reason, interrupted)

    def end(self, reason: str, interrupted: bool = False) -> None:
        """Stop now; every rank calls this after the same batch."""
        self.interrupted = self.interrupted or interrupted
        if self.stop_reason is None:
            self.stop_reason = reason

    def agree(self) -> None:
        """Stop if any rank was asked to stop; all ranks call this after the same batch.

        All ranks thus stop for the same reason, and their handlers see the same state. Any other reason takes
        precedence over an interrupt: it would have stopped all ranks anyway.
        """
        if self.world.alone or not self.world.sum(self._request is not None):
            return
        requests = self.world.gather(self._request)
        asked = [(request[1], rank) for rank, request in enumerate(requests) if request is not None]
        interrupted, rank = min(asked)
        reason = requests[rank][0]
        everywhere = len({request and request[0] for request in requests}) == 1
        self.end(reason if everywhere else f"{reason} (rank {rank})", interrupted)
