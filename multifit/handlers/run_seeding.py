"""Seed a run's random generators at fixed places, so that it can be resumed bit for bit."""

from __future__ import annotations

import numpy as np

from ..events import EstimatorProtocol

__all__ = ["RunSeeding"]


class RunSeeding:
    """Seeds the generators of a run that is saved by a schedule.

    MXNet's random generator cannot be saved. A run that may be resumed seeds it from ``state.seed`` at the
    same places whether or not it is stopped: all generators at the start of every epoch, MXNet's after every
    checkpoint that is due within an epoch. A run without a seed gets `seed`, or one drawn from NumPy's
    generator.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed

    def begin_run(self, estimator: EstimatorProtocol) -> None:
        """Give the run a seed, unless it has one."""
        if estimator.state.seed is None:
            estimator.state.seed = int(np.random.randint(2**31 - 1)) if self.seed is None else self.seed

    def begin_epoch(self, estimator: EstimatorProtocol) -> None:
        """Seed all generators for the epoch that starts."""
        estimator.reseed_epoch()

    def after_due_checkpoint(self, estimator: EstimatorProtocol) -> None:
        """Seed MXNet's generator, even if the checkpoint could not be written."""
        estimator.reseed()
