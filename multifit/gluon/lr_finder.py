"""Which learning rate suits a net: the loss while the rate grows, batch by batch."""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from ..arguments import finite_number, whole_number
from ..errors import TrainerError, UserCodeError, names, shown, suggest
from .data.loaders import peek_first, repeat
from .data.seeding import preserve_rng
from .engine import Engine
from .execution.result import Result
from .optim.preserve_state import preserve_state
from .optim.trainer_handle import TrainerHandle
from .optim.trainers import refuse_distributed
from .rate_search import Mean, RateSearch
from .validation.dry_run import dry_run

__all__ = ["find_learning_rate"]

DIVERGED = 4.0  # times the lowest mean: fastai's limit
TOO_FEW = 10  # batches, below which a mean or a curve tells nothing


def find_learning_rate(
    estimator: Any,
    data: Any,
    start: float = 1e-6,
    end: float = 1.0,
    batches: int = 100,
    trainer: str | None = None,
) -> RateSearch:
    """Train for some batches with a learning rate that grows from `start` to `end`, and look at the loss.

    L. N. Smith's range test ("Cyclical Learning Rates for Training Neural Networks", 2015), with
    fastai's rules for when to stop and what to suggest. It ends early where the loss diverges. Afterwards all
    is as it was: parameters, running statistics, gradients, the trainers' states, counters, rates and
    schedules, the run's state and history, NumPy's and Python's random state; also where something raises. A
    net that was not initialised is; MXNet's random generator may advance.

    Parameters
    ----------
    estimator : MultiEstimator
        Whose net, spec and trainers are meant.
    data : DataLoader, DataIter or iterable of batches
        Begun anew where it ends too early.
    start, end : float
        The first and the last rate.
    batches : int
        How many; at least 10.
    trainer : str, optional
        Whose rate grows, while the others keep theirs; None: all trainers have the same rate.

    Returns
    -------
    RateSearch
        Rates, losses, the suggestion; with a table and a plot.

    Raises
    ------
    SpecError, DataError, TrainerError
        Something does not fit; or there is no such trainer, or it makes no use of a rate.
    ValueError
        A number is not valid, or the loss of the first batch is not finite.
    RuntimeError
        A handler of a running fit calls it.
    """
    estimator._check_idle("find_learning_rate")
    rates = _rates(start, end, batches)
    engine = estimator._engine
    try:
        with preserve_rng():
            engine.renew()
            _, iterator = peek_first(data, "data")
            result = dry_run(engine, next(iterator)).train
            handles = dict(engine.bound_trainers())
            chosen = _chosen(handles, trainer)
            refuse_distributed(handles, "find_learning_rate")
            with preserve_state(engine.parameters.values(), handles.values()):
                losses = _losses(engine, result, repeat(data, iterator), rates, _setter(chosen))
    finally:
        engine.renew()
    return RateSearch(rates[: len(losses)], losses)


def _rates(start: Any, end: Any, batches: Any) -> list[float]:
    start = finite_number("find_learning_rate: start", start, above=0)
    end = finite_number("find_learning_rate: end", end, above=0)
    if not start < end:
        raise ValueError(f"find_learning_rate: start is {start} and end is {end}; start must be below end")
    count = whole_number("find_learning_rate: batches", batches, least=TOO_FEW)
    return [float(rate) for rate in np.geomspace(start, end, count)]


def _chosen(handles: dict[str, TrainerHandle], wanted: str | None) -> list[TrainerHandle]:
    if wanted is not None and wanted not in handles:
        near, valid = suggest(wanted, handles), names(handles)
        raise TrainerError(
            f"find_learning_rate: there is no trainer {shown(wanted)}{near}; valid are {valid}"
        )
    chosen = [handle for name, handle in handles.items() if wanted in (None, name)]
    for handle in handles.values():
        kind = type(handle.optimizer).__name__
        if handle in chosen and "learning_rate" not in handle.settable:
            raise TrainerError(
                f'find_learning_rate: {kind} of trainer "{handle.name}" makes no use of a rate'
            )
    return chosen


def _setter(handles: Sequence[TrainerHandle]) -> Callable[[float], None]:
    def set_rate(rate: float) -> None:
        for handle in handles:
            handle.optimizer.lr_scheduler, handle.optimizer.lr = None, rate

    return set_rate


def _losses(
    engine: Engine,
    result: Result,
    batches: Iterator[Any],
    rates: Sequence[float],
    set_rate: Callable[[float], None],
) -> list[float]:
    losses: list[float] = []
    best, mean = math.inf, Mean()
    while True:
        # read before anything moves by it: what fails in the forward pass fails here
        loss = sum(float(objective.asscalar()) for objective in result.objectives)
        if not math.isfinite(loss):
            break
        losses.append(loss)
        value = mean.add(loss)
        if len(losses) >= TOO_FEW:  # before that the mean is chance
            best = min(best, value)
        raw = next(batches, None) if len(losses) < len(rates) else None
        if raw is None or value > DIVERGED * best > 0:
            break
        set_rate(rates[len(losses) - 1])
        engine.update(result)
        result = _trained(engine, raw, len(losses) + 1)
    if not losses:
        raise ValueError("find_learning_rate: the first batch's loss is not finite, before anything moved")
    return losses


def _trained(engine: Engine, raw: Any, count: int) -> Result:
    try:
        return engine.stages["train"].run(engine.feed("train").split(raw), engine.state)
    except UserCodeError as error:
        error.at(f"finding the learning rate, batch {count}")
        raise
