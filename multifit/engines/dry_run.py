"""The dry run: read the first batches of training and evaluation, and check everything before an update."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from ..sampling import TaskBatch
from ..spec.checks.trainers import bound_problems, window_problems
from ..spec.plan import LoaderPlan
from ..utils.errors import DataError, Problem, raise_problems
from ..utils.seeding import preserve_rng
from ..utils.stages import EVALUATE, TRAIN
from .first_batches import FirstBatches, Peeked

NO_LOSS = "losses: there is none to train on; declare at least one in the TaskSpec"

StageBatch = tuple[str, Any, Any]
"""A stage's name, a batch, and the data that it comes from, or what the net returned for it."""


@dataclass(frozen=True)
class DryRun:
    """The results of the first batch of each loader, by stage; empty for a stage without data.

    `loaders` describe each loader and what training takes from it, if there are several.
    """

    results: Mapping[str, Sequence[Any]]
    loaders: Sequence[LoaderPlan] = ()

    @property
    def train(self) -> Any:
        """The result of the first training batch."""
        return self.results[TRAIN][0]


def read_first(session: Any, raw: Any, val_data: Any) -> tuple[list[StageBatch], list[Problem]]:
    """Return the first batches, named and placed, and the problems found; a spec without losses is one.

    `raw` is the first batch of training, and `val_data` a loader. Both may be the :class:`FirstBatches` of
    several loaders.
    """
    problems = [] if session.spec.terms else [Problem("spec", NO_LOSS)]
    batches: list[StageBatch] = []
    for name, data in ((TRAIN, raw), (EVALUATE, val_data)):
        firsts = data.batches if isinstance(data, FirstBatches) else [data]
        for first in firsts if name == TRAIN or data is not None else ():
            batch, found = _fetch(session, name, first)
            problems += found
            batches += [(name, batch, first)] if batch is not None else []
    return batches, problems


def trainer_problems(session: Any) -> list[Problem]:
    """Build the trainers; return the problems."""
    problems: list[Problem] = session.trainers.build()
    return problems or bound_problems(session.spec.terms, session.trainers.get())


def check_batches(
    session: Any,
    batches: Sequence[StageBatch],
    problems: list[Problem],
    check: Callable[[str, Any], tuple[Any, list[Problem]]],
) -> list[StageBatch]:
    """Check batches, and return what the net returned for each; raises `problems` and those found.

    ``check(stage, batch)`` returns what the net returned, and the problems found.
    """
    checked: list[StageBatch] = []
    with raised_first(problems):
        for name, batch, first in batches:
            if name == EVALUATE and session.spec.evaluate is None and any(p.kind == "spec" for p in problems):
                continue  # one TaskSpec serves both stages, and its problems are known
            outputs, found = check(name, batch)
            checked.append((name, batch, outputs))
            problems += _named(found, name, first)
    raise_problems(problems)
    return checked


def check_windows(session: Any) -> list[Problem]:
    """Return why losses cannot be trained with the windows of their trainers."""
    windows = {name: session.trainers.window_of(name) for name in session.trainers.get()}
    return window_problems(session.stages[TRAIN].spec.terms, windows)


@contextmanager
def measured_apart(stages: Iterable[Any]) -> Iterator[None]:
    """Discard what stages measure within the block, and what they carry; what they had before stays.

    They had something if a run is resumed within an epoch: it has figures before its first batch.
    """
    before = [(stage, copy.deepcopy(stage.state())) for stage in stages if stage.figures.batches]
    # a rank without sums may have means, which are equal on all ranks
    means = [(each, copy.deepcopy(each.state())) for stage in stages for each in stage.figures.means]
    try:
        yield
    finally:
        for stage in stages:
            stage.reset()
        for stage, state in before:
            stage.load(state)
        for each, state in means:
            each.load(state)


@contextmanager
def raised_first(problems: Sequence[Problem]) -> Iterator[None]:
    """Raise the problems instead of an error of the block: they may be its cause, and are easier to fix."""
    try:
        yield
    except Exception:
        raise_problems(problems)
        raise


def _fetch(session: Any, name: str, data: Any) -> tuple[Any, list[Problem]]:
    # what is read here is read again, unless it is the first batch of a single loader
    begins = name == TRAIN and not isinstance(data, Peeked)
    with nullcontext() if begins else preserve_rng():
        if not begins:
            try:
                data, _ = session.readers[name].peek_first(data, "val_data")
            except DataError as error:
                return None, list(error.problems)
        # first batches of several loaders are checked before training begins, without handlers' changes
        splitter = session.splitter(name, changes=begins)
        parts, problems = splitter.name_arrays(data)
        if not problems:
            return splitter.distribute(data, parts), []
        return None, _named(problems, name, data)


def _named(problems: Sequence[Problem], name: str, data: Any) -> list[Problem]:
    """Return the problems with the name of the data, unless they are those of the only training data."""
    data_name = {TRAIN: "train_data", EVALUATE: "val_data"}[name]
    where = "" if name == TRAIN else f"{data_name}: "
    raw = data.raw if isinstance(data, Peeked) else data
    if isinstance(raw, TaskBatch):
        where = f'{data_name} "{raw.name}": '
    return [Problem(problem.kind, f"{where}{problem.message}") for problem in problems]
