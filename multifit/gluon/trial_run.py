"""Train for a while, then restore everything, as the rate search and the profiler do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..engines import DryRun
from ..seeding import preserve_rng
from ..stages import TRAIN
from .check.dry_run import dry_run
from .optim.preserve_state import preserve_state
from .session import Session


@contextmanager
def trial_run(session: Session, data: Any, name: str, tool: str) -> Iterator[tuple[DryRun, Iterator[Any]]]:
    """Check an engine on its first batch, let it train, and restore net, trainers and random states.

    The engine must be a fork, with its own figures (:meth:`Engine.fork`). `name` of the data and `tool` are
    for messages. Yields the dry run of the first batch, and an iterator over all batches, including the
    first. Raises SpecError, DataError or TrainerError if something does not fit.
    """
    with preserve_rng(), session.trainers.training():
        first, batches = session.readers[TRAIN].peek_first(data, name)
        run = dry_run(session, first)  # before anything is copied: the net may not be initialised
        trainers = session.trainers.get()
        with preserve_state(session.model.parameters.values(), trainers.values()):
            yield run, batches
