"""Measures where the time of a training step goes: several runs, and the profile computed from them."""

from __future__ import annotations

from dataclasses import replace
from statistics import mode
from typing import Any, Callable, Iterator

from ..arguments import Count, checked
from ..checks import batch_count, loader_problems, no_batch_problems
from ..engines import Runner
from ..errors import DataError, raise_problems
from ..events import TRAINING_EVENTS, TrainingHooks
from ..protocols import MultiEstimator
from ..stages import TRAIN
from .forward_pieces import forward_pieces
from .measurements import Operator, Part
from .profile import Profile
from .stopwatch import Stopwatch, part_times
from .timed_steps import TimedEvents, TimedSteps

Clock = Callable[[], float]


@checked
def profile(
    estimator: MultiEstimator,
    runner: Runner,
    run_handlers: Callable[[TimedEvents], Any],
    data: Any,
    batches: Count,
    event_handlers: Any,
    clock: Clock,
    busy: Clock,
) -> Profile:
    """Train for some batches and time every part of a step; net, trainers and random states stay as they are.

    `estimator`, which has a run of its own, is passed to the handlers; `runner` is its runner, a fork.
    ``run_handlers(events)`` returns the context manager of a fit with these handlers. `clock` and `busy`
    return seconds: the elapsed time, and the time that this thread has worked. The other arguments and the
    errors are those of :meth:`multifit.MultiEstimator.profile`.
    """
    raise_problems(loader_problems("train_data", data, once=False))
    watch = Stopwatch(clock, busy, runner.wait)
    events = TimedEvents(estimator, event_handlers, watch)
    with runner.trial_run(data, "train_data", "profile"):
        hooks = TrainingHooks(events)
        runner.restart(hooks)
        runner.engine.stages[TRAIN].needs_outputs = events.takes_outputs(TRAINING_EVENTS)
        with hooks.around("fit"), run_handlers(events):
            events.emit("epoch_begin", batches=batch_count(data))
            steps = TimedSteps(estimator, runner, _batches(runner, data), events, watch)
            return _measure(runner, steps, batches, clock, busy)


def _measure(runner: Runner, steps: TimedSteps, count: int, clock: Clock, busy: Clock) -> Profile:
    warm, drained, forward = (Stopwatch(clock, busy, runner.wait) for _ in range(3))
    free, profiled = (Stopwatch(clock, busy, lambda: None) for _ in range(2))
    steps.run(warm, max(3, count // 5))  # traces the graphs and allocates memory
    first, second = count - count // 2, count // 2
    # half before and half after, so that a machine that slows down in between does not look like a difference
    seconds = _seconds(runner, clock, lambda: steps.run(free, first))
    steps.run(drained, count)
    seconds += _seconds(runner, clock, lambda: steps.run(free, second)) if second else 0.0
    reading = _seconds(runner, clock, steps.stage.figures.read)
    parts = part_times(drained.laps, free.laps)
    pieces = forward_pieces(runner, list(steps.batches), forward, count)
    operators, reason = runner.operator_times(lambda: steps.run(profiled, count), count)
    return Profile(
        wall=1000 * seconds / count,
        parts=_insert_pieces(parts, pieces),
        operators=tuple(Operator(*row) for row in operators),
        reading=1000 * reading,
        batches=count,
        samples=mode(steps.sizes),
        devices=tuple(map(str, runner.engine.model.contexts)),
        how=steps.stage.describe(),
        hybridizable=runner.engine.model.hybridizable,
        notes=(reason,) if reason else (),
    )


def _insert_pieces(parts: list[Part], pieces: list[Part]) -> tuple[Part, ...]:
    """Insert the pieces behind the forward pass, scaled to its time: they were measured by themselves."""
    forward = next(part for part in parts if part.name == "forward")
    scale = forward.ms / (sum(piece.ms for piece in pieces) or 1.0)
    scaled = [
        replace(p, times=tuple(scale * t for t in p.times), python=tuple(scale * t for t in p.python))
        for p in pieces
    ]
    at = parts.index(forward) + 1
    return (*parts[:at], *scaled, *parts[at:])


def _seconds(runner: Runner, clock: Clock, run: Callable[[], Any]) -> float:
    runner.wait()
    start = clock()
    run()
    runner.wait()
    return clock() - start


def _batches(runner: Runner, data: Any) -> Iterator[Any]:
    yield from runner.engine.readers[TRAIN].repeat(data)
    raise DataError(no_batch_problems("train_data", 1, read=True))
