"""Where a step's time goes: the runs that are measured, and what is put together from them."""

from __future__ import annotations

from dataclasses import replace
from statistics import mode
from typing import Any, Callable, Iterator

from ...arguments import whole_number
from ...checks import loader_problems
from ...errors import DataError, raise_problems
from ...events import TrainingHooks
from ...profile import Part, Profile
from ...protocols import Loader
from ..compat import mx
from ..data.loaders import batch_count, no_batch_problems, peek_first, repeat
from ..data.seeding import preserve_rng
from ..engine import Engine
from ..optim.preserve_state import preserve_state
from ..optim.trainers import refuse_distributed
from ..validation.dry_run import dry_run
from .aside import set_aside
from .forward import pieces_of_forward
from .operators import operators
from .parts import parts_of
from .steps import Steps
from .stopwatch import Stopwatch
from .timed import TimedEvents

__all__ = ["profile"]

Clock = Callable[[], float]


def profile(
    estimator: Any, data: Any, batches: int, event_handlers: Any, clock: Clock, busy: Clock
) -> Profile:
    """Train for some batches with a watch in the hand, and leave everything as it was.

    Parameters
    ----------
    estimator : MultiEstimator
        Whose net, spec and trainers are meant.
    data : DataLoader, DataIter or re-iterable of batches
        Begun anew where it ends.
    batches : int
        How many steps each measurement has; at least 1.
    event_handlers : handler or list of handlers, optional
        They are called as in a fit, without its defaults.
    clock, busy : callable
        Return seconds: those that go by, and those that this thread works.

    See :meth:`multifit.MultiEstimator.profile` for what it raises.
    """
    estimator._check_idle("profile")
    count = whole_number("profile: batches", batches)
    raise_problems(loader_problems("train_data", data, once=False))
    engine = estimator._engine
    events = TimedEvents(estimator, event_handlers, Stopwatch(clock, busy, mx.nd.waitall))
    with preserve_rng(), set_aside(estimator, count):
        first = peek_first(data, "train_data")[0]
        dry_run(engine, first)  # before anything is copied: the net may not be initialised
        trainers = engine.bound_trainers()
        refuse_distributed(trainers, "profile")
        with preserve_state(engine.parameters.values(), trainers.values()):
            hooks = TrainingHooks(events)
            engine.renew(hooks if hooks.active() else None)
            with hooks.around("fit"), estimator._audience.fit(events):
                estimator._audience.tell("epoch_begin", batches=batch_count(data))
                return _measured(engine, Steps(estimator, _batches(data), events), count, clock, busy)


def _measured(engine: Engine, steps: Steps, count: int, clock: Clock, busy: Clock) -> Profile:
    drained, again, warm = (Stopwatch(clock, busy, mx.nd.waitall) for _ in range(3))
    free, profiled = (Stopwatch(clock, busy, _nothing) for _ in range(2))
    steps.run(warm, max(3, count // 5))  # graphs are traced, memory is there
    first, second = count - count // 2, count // 2
    # half before and half after, lest a machine that grows slower meanwhile be taken for a difference
    seconds = _timed(clock, lambda: steps.run(free, first))
    steps.run(drained, count, apart=True)
    seconds += _timed(clock, lambda: steps.run(free, second)) if second else 0.0
    reading = _timed(clock, steps.stage.figures)
    parts = parts_of(drained.laps, free.laps)
    pieces = pieces_of_forward(engine, list(steps.kept), again, count)
    found, reason = operators(lambda: steps.run(profiled, count), count)
    return Profile(
        wall=1000 * seconds / count,
        parts=_with_pieces(parts, pieces),
        operators=tuple(found),
        reading=1000 * reading,
        batches=count,
        samples=mode(steps.sizes),
        devices=tuple(map(str, engine.contexts)),
        how=steps.stage.how(),
        hybridizable=_hybridizable(engine.net),
        notes=(reason,) if reason else (),
    )


def _with_pieces(parts: list[Part], pieces: list[Part]) -> tuple[Part, ...]:
    """Put the pieces behind the forward pass, in the proportion in which they were measured by themselves."""
    forward = next(part for part in parts if part.name == "forward")
    scale = forward.ms / (sum(piece.ms for piece in pieces) or 1.0)
    scaled = [
        replace(p, times=tuple(scale * t for t in p.times), python=tuple(scale * t for t in p.python))
        for p in pieces
    ]
    at = parts.index(forward) + 1
    return (*parts[:at], *scaled, *parts[at:])


def _hybridizable(net: Any) -> bool:
    return isinstance(net, mx.gluon.HybridBlock) and not (
        net._active or isinstance(net, mx.gluon.SymbolBlock)
    )


def _timed(clock: Clock, run: Callable[[], Any]) -> float:
    mx.nd.waitall()
    begin = clock()
    run()
    mx.nd.waitall()
    return clock() - begin


def _batches(data: Loader) -> Iterator[Any]:
    yield from repeat(data)
    raise DataError(no_batch_problems("train_data", 1, read=True))


def _nothing() -> None:
    pass
