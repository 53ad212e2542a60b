"""The learning rate range test: the loss while the rate grows, batch by batch."""

from __future__ import annotations

import math
from itertools import chain
from typing import Annotated, Any, Iterator, Mapping, Optional, Sequence

import numpy as np

from ..arguments import Positive, bounds, checked
from ..checks import one_shot
from ..engines import Runner
from ..errors import TrainerError, note_place, quoted, shown, suggest
from ..protocols import Trainer
from ..stages import TRAIN
from .result import RateSearch, RunningMean

DIVERGED = 4.0  # times the lowest mean: fastai's limit
TOO_FEW = 10  # fewer batches make no useful mean or curve


@checked
def find_learning_rate(
    runner: Runner,
    data: Any,
    start: Positive,
    end: Positive,
    batches: Annotated[int, bounds(TOO_FEW)],
    trainer: Optional[str],
) -> RateSearch:
    """Train for some batches with a learning rate that grows from `start` to `end`, and look at the loss.

    L. N. Smith's range test ("Cyclical Learning Rates for Training Neural Networks", 2015), with fastai's
    rules for when to stop and what to suggest. It ends early if the loss diverges. Afterwards, and also after
    an error, net, trainers and random states are as before. `runner` is a fork, with its own figures. Data
    that ends too early is read again. `trainer` is the one whose rate grows, while the others keep theirs;
    None: all.

    Raises SpecError, DataError or TrainerError if something does not fit, or the trainer is unknown, or
    does not use a rate; ValueError if a number is not valid (at least 10 batches), or the loss of the first
    batch is not finite.
    """
    rates = _rates(start, end, batches)
    with runner.trial_run(data, "data", "find_learning_rate") as (run, iterator):
        trainers = _select(runner.engine.trainers.get(), trainer)
        next(iterator)  # the first batch is in `run`
        rest = iterator if one_shot(data) else chain(iterator, runner.engine.readers[TRAIN].repeat(data))
        losses = _train(runner, run.train, rest, rates, trainers)
    return RateSearch(rates[: len(losses)], losses)


def _rates(start: float, end: float, batches: int) -> list[float]:
    if not start < end:
        raise ValueError(f"find_learning_rate: start is {start} and end is {end}; start must be below end")
    return [float(rate) for rate in np.geomspace(start, end, batches)]


def _select(trainers: Mapping[str, Trainer], name: str | None) -> list[Trainer]:
    if name is not None and name not in trainers:
        near, valid = suggest(name, trainers), quoted(trainers)
        raise TrainerError(f"find_learning_rate: there is no trainer {shown(name)}{near}; valid are {valid}")
    selected = {each: trainer for each, trainer in trainers.items() if name in (None, each)}
    for each, trainer in selected.items():
        if "learning_rate" not in trainer.settable:
            kind = type(trainer.optimizer).__name__
            raise TrainerError(f'find_learning_rate: {kind} of trainer "{each}" does not use a learning rate')
    return list(selected.values())


def _train(
    runner: Runner,
    result: Any,
    batches: Iterator[Any],
    rates: Sequence[float],
    trainers: Sequence[Trainer],
) -> list[float]:
    """Train with one rate after the other; return the loss before each update."""
    step, losses = runner.train_step(), list[float]()
    optimizers: list[Any] = [trainer.optimizer for trainer in trainers]
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
        for optimizer in optimizers:
            optimizer.lr_scheduler, optimizer.lr = None, rates[len(losses) - 1]
        step.learn(result)
        runner.engine.state.step += 1  # trainers, weights and methods of balancing depend on it
        result = _forward(step, raw, len(losses) + 1)
    if not losses:
        raise ValueError("find_learning_rate: the first batch's loss is not finite; nothing was updated")
    return losses


def _forward(step: Any, raw: Any, number: int) -> Any:
    try:
        return step.forward(step.fetch(raw))
    except Exception as error:
        note_place(error, f"finding the learning rate, batch {number}")
        raise
