"""The run that an estimator trains: where it stands, what it has measured, how it is seeded, who calls it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..distributed import ALONE, World
from ..handlers.history import History
from ..handlers.state import RunState
from ..spec.plan import Plan
from ..utils.errors import NOTES_ARE_SHOWN, notes
from ..utils.seeding import (
    AHEAD,
    EPOCH,
    STEP,
    TRAIN,
    mixed,
    random_state,
    seed_everything,
    seed_of_rank,
    seed_operators,
    set_random_state,
)


@dataclass
class Run:
    """What the estimator, its fit loop and its checkpointer share.

    `state` has the counters over all fits; `history` the figures of the running or last fit; `plan` what the
    last check established. One of `max_epoch` and `max_batch` limits the fit. `epoch_complete` says whether
    the last epoch was trained to its end. `order_state` holds the random states from which the loader drew
    the order of the running epoch. A run whose checkpoints follow no schedule is not seeded for each epoch;
    it needs these states to resume in the same order. `sets` are the sets for validation, of all fits, that
    have figures of their own.

    The state of the operators' generators, such as MXNet's, cannot be read. A run that has a seed therefore
    seeds them at fixed places, whether or not it stops there: at the start of each epoch, together with all
    other generators, and alone after each scheduled checkpoint and before each batch that is read ahead, if
    trainers accumulate. In the first two cases, they are seeded once more when the next batch was read: a
    run that is resumed there checks it first. A run without a seed resumes with the saved states of Python's
    and NumPy's generators only.

    With several ranks in the `world`, the seed is the first rank's, and each rank derives its own from it.
    """

    state: RunState = field(default_factory=RunState)
    history: History = field(default_factory=History)
    plan: Plan | None = None
    max_epoch: int | None = None
    max_batch: int | None = None
    epoch_complete: bool = True
    order_state: dict[str, Any] = field(default_factory=dict)
    world: World = ALONE
    sets: set[str] = field(default_factory=set)
    seeded: bool = False  # since the last batch

    def start(self, max_epoch: int | None, max_batch: int | None) -> None:
        """Begin a fit with its own history; the counters continue."""
        self.max_epoch, self.max_batch = max_epoch, max_batch
        self.history, self.epoch_complete = History(), True
        self.state.start()

    def reseed(self) -> None:
        """Seed the generators of operators from the run's seed and position."""
        seed_operators(mixed(self._seed(), STEP, self.state.epoch, self.state.step))
        self.seeded = True

    def seed_step(self) -> None:
        """Seed them again for training on a batch, if they were seeded before it was read and checked."""
        if self.seeded:
            seed_operators(mixed(self._seed(), TRAIN, self.state.epoch, self.state.step))
            self.seeded = False

    def seed_read(self, number: int) -> None:
        """Seed the generators of operators for reading a batch of the epoch ahead, if the run has a seed."""
        if self.state.seed is not None:
            seed_operators(mixed(self._seed(), AHEAD, self.state.epoch, number))

    def seed_epoch(self, epoch: int) -> None:
        """Seed all generators from the run's seed and an epoch."""
        seed_everything(mixed(self._seed(), EPOCH, epoch))
        self.seeded = True

    def remember_order(self) -> None:
        """Store the random states from which the loader is about to draw the order of an epoch."""
        self.order_state = random_state()

    def restore_order(self) -> None:
        """Set the random states that :meth:`remember_order` stored."""
        set_random_state(self.order_state)

    def _seed(self) -> int:
        if self.state.seed is None:
            raise ValueError("the run has no seed: set estimator.state.seed first")
        return seed_of_rank(self.state.seed, self.world.rank)


class Calls:
    """Lets one thread at a time call an estimator's methods, and refuses some of them within others.

    Predictions of several threads wait for each other.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger, self._lock = logger, threading.RLock()
        self._running = ""  # the method that runs, the outermost one

    @contextmanager
    def running(self, method: str, within: bool = False) -> Iterator[None]:
        """Return a block in which a method runs; `within` says whether handlers may call it in a run.

        Raises RuntimeError for a call that cannot be made now.
        """
        waits = method == "predict" and self._running in ("", "predict")
        if not self._lock.acquire(blocking=waits):
            raise RuntimeError(f"{method} was called while {self._running} runs in another thread")
        before = self._running
        try:
            if before and not within:
                message = f"{method} was called by an event handler, in the middle of a run"
                raise RuntimeError(f"{message}; call it before or after")
            self._running = before or method
            yield
        except Exception as error:
            if not before and not NOTES_ARE_SHOWN and notes(error):
                self._logger.error("%s: %s", type(error).__name__, "; ".join(notes(error)))
            raise
        finally:
            self._running = before
            self._lock.release()
