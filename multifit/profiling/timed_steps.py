"""Training steps in which every phase and every handler is timed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any, Iterator

from ..batch_pass import run_pass
from ..engines import Runner
from ..events import BEFORE_UPDATE, TRAINING_EVENTS, EventDispatcher, handler_name
from ..events.dispatcher import HandlerMethod
from ..protocols import BatchResult, MultiEstimator
from ..stages import TRAIN
from .stopwatch import Stopwatch

KEPT_BATCHES = 8  # for timing the pieces of a forward pass
# The parts of the profile, by the phase of a step; other phases have their own name.
PARTS = {
    "fetch": ("data", "placing"),
    "reduce": ("update",),
    "change": ("update",),
    "clip": ("update",),
    "measure": ("figures",),
}


class TimedEvents(EventDispatcher):
    """Calls the handlers, and times each of them by its name; the watch may be replaced at any time."""

    def __init__(self, estimator: MultiEstimator, handlers: Any, watch: Stopwatch) -> None:
        super().__init__(estimator, handlers)
        self.watch = watch

    def call(self, method: HandlerMethod, arguments: Mapping[str, Any]) -> Any:
        """Call one method of a handler and time it."""
        with self.watch("handlers", handler_name(method.handler)):
            return super().call(method, arguments)

    def emit_result(self, event: str, batch: Any, views: Callable[[], Mapping[str, Any]]) -> None:
        """Call the handlers of a batch's end, which ends a lap."""
        if self.listens(event):
            with self.watch("handlers"):
                super().emit_result(event, batch, views)
        if event == TRAINING_EVENTS.batch_end:
            self.watch.lap()


class TimedSteps:
    """Trains as ``fit`` does, with every phase of a step timed.

    The argument `batches` yields raw batches without end; the runner was restarted with the handlers' hooks.
    The counters of the estimator's state are advanced. Afterwards, the attribute `batches` holds the last
    batches, and `sizes` every batch's number of samples.
    """

    def __init__(
        self,
        estimator: MultiEstimator,
        runner: Runner,
        batches: Iterator[Any],
        events: TimedEvents,
        watch: Stopwatch,
    ) -> None:
        self._state, self._engine, self._raw, self._events = estimator.state, runner.engine, batches, events
        self._watch = watch
        self._step = runner.phased_step(self._time)
        self.stage = runner.engine.stages[TRAIN]
        self.batches: deque[Any] = deque(maxlen=KEPT_BATCHES)
        self.sizes: list[int] = []

    def run(self, watch: Stopwatch, count: int) -> None:
        """Make a number of steps, timed by `watch`, even if a handler stops the run."""
        self._events.watch = self._watch = watch
        batches, done, until = self._load(count), len(self.sizes), len(self.sizes) + count
        how = self._train, TRAINING_EVENTS, self._events, self._state
        while done < until:
            done = run_pass(batches, *how, lambda: f"profiling, batch {self._state.batch + 1}", done)

    def _time(self, phase: str, *detail: str) -> Any:
        return self._watch(*PARTS.get(phase, (phase,)), *detail)

    def _load(self, count: int) -> Iterator[Any]:
        for _ in range(count):
            with self._watch("data", "loader"):
                raw = next(self._raw)
            yield raw

    def _train(self, raw: Any) -> BatchResult:
        hooks = self._engine.hooks
        watched = hooks.active("around_step", BEFORE_UPDATE)
        with ExitStack() as around:
            with self._watch("handlers") if watched else nullcontext():
                around.enter_context(hooks.step(raw))
            result = self._step(raw)
            with self._watch("handlers") if watched else nullcontext():
                around.close()
        self.batches.append(result.batch)
        self.sizes.append(result.batch.samples)
        return result
