"""Seed a run's random generators at fixed places, so that it can be resumed bit for bit."""

from __future__ import annotations

from pathlib import Path

from ..gluon import snapshot
from .run import Run


class RunSeeding:
    """Seeds and restores the random generators of a run.

    MXNet's generator cannot be read. A run that has a seed seeds it at the same places whether or not the run
    is stopped there: all generators at the start of an epoch, MXNet's after a scheduled checkpoint. A run
    without a seed resumes with the saved states of Python's and NumPy's generators only.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def reseed(self) -> None:
        """Seed MXNet's generator from the run's seed and position."""
        snapshot.reseed(self._seed(), self._run.state.epoch, self._run.state.step)

    def seed_epoch(self, epoch: int) -> None:
        """Seed Python's, NumPy's and MXNet's generators from the run's seed and an epoch."""
        snapshot.reseed_epoch(self._seed(), epoch)

    def remember_order(self) -> None:
        """Store the random states from which the loader is about to draw the order of an epoch."""
        self._run.order_state = snapshot.random_state()

    def restore_order(self) -> None:
        """Set the random states that :meth:`remember_order` stored."""
        snapshot.set_random_state(self._run.order_state)

    def restore(self, checkpoint: Path) -> None:
        """Set the generators to what they were when a checkpoint was saved."""
        snapshot.read_random(checkpoint)
        if self._run.state.seed is not None:
            self.reseed()

    def _seed(self) -> int:
        if self._run.state.seed is None:
            raise ValueError("the run has no seed: set estimator.state.seed first")
        return self._run.state.seed
