"""The learning rate range test: the loss while the rate grows, batch by batch."""

from __future__ import annotations

import math
from itertools import chain
from typing import Annotated, Any, Iterator, Optional, Sequence

import numpy as np

from ..arguments import Positive, bounds, checked
from ..checks import one_shot
from ..errors import TrainerError, UserCodeError, quoted, shown, suggest
from ..gluon.data.loaders import repeat
from ..gluon.engine import Engine
from ..gluon.execution.result import StepResult
from ..gluon.optim.trainer_handle import TrainerHandle
from ..gluon.steps.train_step import TrainStep
from ..gluon.steps.trial_run import trial_run
from .result import RateSearch, RunningMean

DIVERGED = 4.0  # times the lowest mean: fastai's limit
TOO_FEW = 10  # fewer batches make no useful mean or curve


@checked
def find_learning_rate(
    engine: Engine,
    data: Any,
    start: Positive,
    end: Positive,
    batches: Annotated[int, bounds(TOO_FEW)],
    trainer: Optional[str],
) -> RateSearch:
    """Train for some batches with a learning rate that grows from `start` to `end`, and look at the loss.

    L. N. Smith's range test ("Cyclical Learning Rates for Training Neural Networks", 2015), with fastai's
    rules for when to stop and what to suggest. It ends early if the loss diverges. Afterwards, and also after
    an error, net, trainers and random states are as before. `engine` is a fork, with its own figures. Data
    that ends too early is read again. `trainer` is the one whose rate grows, while the others keep theirs;
    None: all.

    Raises SpecError, DataError or TrainerError if something does not fit, or the trainer is unknown, or
    does not use a rate; ValueError if a number is not valid (at least 10 batches), or the loss of the first
    batch is not finite.
    """
    rates = _rates(start, end, batches)
    with trial_run(engine, data, "data", "find_learning_rate") as (run, iterator):
        trainers = _select(dict(engine.trainers.get()), trainer)
        next(iterator)  # the first batch is in `run`
        rest = iterator if one_shot(data) else chain(iterator, repeat(data))
        losses = _train(engine, run.train, rest, rates, trainers)
    return RateSearch(rates[: len(losses)], losses)


def _rates(start: float, end: float, batches: int) -> list[float]:
    if not start < end:
        raise ValueError(f"find_learning_rate: start is {start} and end is {end}; start must be below end")
    return [float(rate) for rate in np.geomspace(start, end, batches)]


def _select(handles: dict[str, TrainerHandle], name: str | None) -> list[TrainerHandle]:
    if name is not None and name not in handles:
        near, valid = suggest(name, handles), quoted(handles)
        raise TrainerError(f"find_learning_rate: there is no trainer {shown(name)}{near}; valid are {valid}")
    selected = [handle for each, handle in handles.items() if name in (None, each)]
    for handle in selected:
        if "learning_rate" not in handle.settable:
            kind = type(handle.optimizer).__name__
            raise TrainerError(
                f'find_learning_rate: {kind} of trainer "{handle.name}" makes no use of a rate'
            )
    return selected


def _train(
    engine: Engine,
    result: StepResult,
    batches: Iterator[Any],
    rates: Sequence[float],
    trainers: Sequence[TrainerHandle],
) -> list[float]:
    """Train with one rate after the other; return the loss before each update."""
    step, losses = TrainStep(engine), list[float]()
    best, mean = math.inf, RunningMean()
    while True:
        # read before the update, so that errors of the forward pass are raised here
        loss = sum(float(objective.asnumpy().sum()) for objective in result.objectives)
        if not math.isfinite(loss):
            break
        losses.append(loss)
        value = mean.add(loss)
        if len(losses) >= TOO_FEW:  # a mean of fewer is mostly chance
            best = min(best, value)
        raw = next(batches, None) if len(losses) < len(rates) else None
        if raw is None or value > DIVERGED * best > 0:
            break
        for trainer in trainers:
            trainer.optimizer.lr_scheduler, trainer.optimizer.lr = None, rates[len(losses) - 1]
        step.learn(result)
        engine.state.step += 1  # by which trainers, weights and methods of balancing know their turn
        result = _forward(step, raw, len(losses) + 1)
    if not losses:
        raise ValueError("find_learning_rate: the first batch's loss is not finite; nothing has moved")
    return losses


def _forward(step: TrainStep, raw: Any, number: int) -> StepResult:
    try:
        return step.forward(step.fetch(raw))
    except UserCodeError as error:
        error.at(f"finding the learning rate, batch {number}")
        raise
