"""Where the time of a training step goes: by phase, by handler, by operator."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import mean, median, mode
from typing import Any

from ..engines import Engine, TrainStep
from ..handlers.dispatcher import EventDispatcher, HandlerMethod, TrainingHooks
from ..handlers.handler import TRAINING_EVENTS, handler_name
from ..spec.checks.data import batch_count, loader_problems, no_batch_problems
from ..utils.arguments import Count, checked
from ..utils.errors import DataError, raise_problems
from ..utils.protocols import BatchResult, MultiEstimator
from ..utils.stages import TRAIN
from ..utils.tables import table
from ..utils.text import counted
from .batch_pass import run_pass

Clock = Callable[[], float]
PARTS = ("data", "forward", "balance", "backward", "update", "metrics", "handlers", "other")
# The parts, by the phase of a step; other phases have their own name.
PHASES = {
    "fetch": "data/placing",
    "reduce": "update",
    "change": "update",
    "clip": "update",
    "update": "update",
    "measure": "metrics",
}


@dataclass(frozen=True)
class Part:
    """One part of a training step.

    Attributes
    ----------
    name : str
        Such as "forward", or "update/encoder" for a trainer, "metrics/f1", "handlers/MixUp".
    ms : float
        The median over the steps, in milliseconds, until the device has finished what the part began.
    mean : float
        The mean: above the median for a part that comes in bursts.
    """

    name: str
    ms: float
    mean: float


@dataclass(frozen=True)
class Operator:
    """One operator, as the profiler of MXNet or PyTorch measured it.

    `count` is the number of calls per step, `ms` the milliseconds per step, summed over all devices.
    """

    name: str
    count: float
    ms: float


@dataclass(frozen=True)
class Profile:
    """The times of a training step; ``print(profile)`` shows them, ``dataclasses.asdict`` is for JSON.

    Attributes
    ----------
    wall : float
        Milliseconds per step in normal training, where Python and the device work at the same time.
    parts : tuple of Part
        In the order of a step. They follow each other, because each is waited for, so they add up to `total`,
        which is more than `wall`.
    operators : tuple of Operator
        From the profiler of MXNet or PyTorch, the longest first. Empty if it is not available.
    batches, samples : int
        The number of steps measured, and that of the samples in most of them.
    devices : tuple of str
        Such as ``("gpu(0)", "gpu(1)")``.
    how : str
        What runs as one graph, and what does not and why; then what could not be measured.
    """

    wall: float
    parts: tuple[Part, ...]
    operators: tuple[Operator, ...]
    batches: int
    samples: int
    devices: tuple[str, ...]
    how: str

    @property
    def total(self) -> float:
        """The sum of all parts' `ms`."""
        return sum(part.ms for part in self.parts)

    def ms(self, name: str) -> float:
        """Return the milliseconds of a part and its pieces, such as "forward" or "update"; 0 if not known."""
        return sum(part.ms for part in self.parts if f"{part.name}/".startswith(f"{name}/"))

    def summary(self, operators: int = 10) -> str:
        """Return a table of the parts and of the longest operators, at most `operators`."""
        samples, batches = counted(self.samples, "sample"), counted(self.batches, "batch", "batches")
        title = f"a step of {samples} on {', '.join(self.devices)} takes {self.wall:.3g} ms ({batches})"
        rows = [_row(part.name, part.ms, self.total, part.mean) for part in self.parts]
        rows.append(_row("all, one after the other", self.total, self.total, sum(p.mean for p in self.parts)))
        work = sum(operator.ms for operator in self.operators)
        if self.operators and operators:
            rows.append([""])
            for each in self.operators[:operators]:
                rows.append([*_row(each.name, each.ms, work), f"{each.count:g}"])
            rest = self.operators[operators:]
            if rest:
                rows.append(_row(f"{counted(len(rest), 'more operator')}", sum(o.ms for o in rest), work))
            rows.append(_row("all operators", work, work))
        return f"{title}\n{self.how}\n\n{table(['part', 'ms', 'share', 'mean', 'calls'], rows)}"

    def __str__(self) -> str:
        return self.summary()


def _row(name: str, ms: float, of: float, average: float | None = None) -> list[str]:
    return [name, f"{ms:.3f}", f"{ms / of if of else 0:.0%}", "" if average is None else f"{average:.3f}"]


class Stopwatch:
    """Measures the parts of steps between `start` and `stop`; a part within another one pauses it.

    `drain` waits for the work that a part began, which belongs to its time.
    """

    def __init__(self, clock: Clock, drain: Callable[[], object]) -> None:
        self._clock, self._drain = clock, drain
        self._laps: list[dict[str, float]] | None = None
        self._lap: dict[str, float] = defaultdict(float)
        self._open = ["other"]
        self._since = 0.0

    def start(self) -> None:
        """Measure from now on."""
        self._laps, self._since = [], self._clock()

    def stop(self) -> list[dict[str, float]]:
        """Measure no more; return each step's milliseconds by part."""
        laps, self._laps = self._laps or [], None
        return laps

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Return the context manager of a part."""
        return nullcontext() if self._laps is None else self._part(name)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        self._count()
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def lap(self) -> None:
        """End a step."""
        if self._laps is not None:
            self._count()
            self._laps.append(dict(self._lap))
            self._lap.clear()

    def _count(self) -> None:
        self._drain()
        now = self._clock()
        self._lap[self._open[-1]] += 1000 * (now - self._since)
        self._since = self._clock()


class TimedEvents(EventDispatcher):
    """Calls the handlers, and times each of them by its name."""

    def __init__(self, estimator: MultiEstimator, handlers: Any, watch: Stopwatch) -> None:
        super().__init__(estimator, handlers)
        self._watch = watch

    def call(self, method: HandlerMethod, arguments: Mapping[str, Any]) -> Any:
        """Call one method of a handler and time it."""
        with self._watch(f"handlers/{handler_name(method.handler)}"):
            return super().call(method, arguments)


class TimedSteps:
    """Trains as ``fit`` does, with every phase of a step timed.

    `batches` yields raw batches without end; the engine was restarted with the handlers' hooks.
    """

    def __init__(
        self, state: Any, engine: Engine, batches: Iterator[Any], events: TimedEvents, watch: Stopwatch
    ) -> None:
        self._state, self._hooks, self._events = state, engine.session.hooks, events
        self._raw, self._watch = batches, watch
        self._engine = engine
        self._step: TrainStep | None = None
        self.sizes: list[int] = []

    def run(self, count: int) -> None:
        """Make a number of steps, even if a handler stops the run."""
        batches, done, until = self._load(count), len(self.sizes), len(self.sizes) + count
        how = self._train, TRAINING_EVENTS, self._events, self._state
        while done < until:
            done = run_pass(batches, *how, lambda: f"profiling, batch {self._state.batch + 1}", done)
        next(batches, None)  # ends the last lap

    def _time(self, phase: str, *detail: str) -> AbstractContextManager[None]:
        return self._watch("/".join([PHASES.get(phase, phase), *detail]))

    def _load(self, count: int) -> Iterator[Any]:
        for _ in range(count):
            with self._watch("data/loader"):
                raw = next(self._raw)
            yield raw
            self._watch.lap()

    def _train(self, raw: Any) -> BatchResult:
        with self._hooks.around("step"):
            if self._step is None:  # the first batch is checked, as in a fit, with what handlers change
                batch = self._engine.dry_run(raw, None).train.batch
                self._step = self._engine.train_step(self._time)
                result: BatchResult = self._step.train(batch)
            else:
                result = self._step(raw)
        self.sizes.append(result.batch.samples)
        return result


@checked
def profile(
    estimator: MultiEstimator,
    engine: Engine,
    run_handlers: Callable[[TimedEvents], Any],
    data: Any,
    batches: Count,
    event_handlers: Any,
    clock: Clock,
) -> Profile:
    """Train for some batches and time every part of a step; net, trainers and random states stay as they are.

    `estimator`, which has a run of its own, is passed to the handlers; `engine` is its engine, a fork.
    ``run_handlers(events)`` returns the context manager of a fit with these handlers. `clock` returns
    seconds. The other arguments and the errors are those of :meth:`multifit.MultiEstimator.profile`.
    """
    raise_problems(loader_problems("train_data", data, once=False))
    watch = Stopwatch(clock, engine.wait)
    events = TimedEvents(estimator, event_handlers, watch)
    with engine.trial_run(data, "train_data"):
        hooks = TrainingHooks(events)
        engine.restart(hooks, events.takes_outputs(TRAINING_EVENTS))
        stage = engine.session.stages[TRAIN]
        with hooks.around("fit"), run_handlers(events):
            events.emit("epoch_begin", batches=batch_count(data))
            steps = TimedSteps(estimator.state, engine, _endless(engine, data), events, watch)
            steps.run(max(3, batches // 5))  # traces the graphs and allocates memory
            engine.wait()
            start = clock()
            steps.run(batches)
            engine.wait()
            wall = clock() - start
            watch.start()
            steps.run(batches)
            laps = watch.stop()
            operators, reason = engine.operator_times(lambda: steps.run(batches), batches)
    return Profile(
        wall=1000 * wall / batches,
        parts=tuple(_parts(laps)),
        operators=tuple(Operator(*row) for row in operators),
        batches=batches,
        samples=mode(steps.sizes),
        devices=tuple(map(str, engine.session.model.contexts)),
        how="; ".join(filter(None, [stage.describe(), reason])),
    )


def _parts(laps: list[dict[str, float]]) -> Iterator[Part]:
    names = dict.fromkeys(name for lap in laps for name in lap)
    for name in sorted(names, key=lambda name: PARTS.index(name.partition("/")[0])):
        times = [lap.get(name, 0.0) for lap in laps]
        yield Part(name, median(times), mean(times))


def _endless(engine: Engine, data: Any) -> Iterator[Any]:
    yield from engine.session.readers[TRAIN].repeat(data)
    raise DataError(no_batch_problems("train_data", 1, read=True))
