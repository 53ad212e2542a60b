"""Training steps in which every phase and every handler is timed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Iterator

from ..errors import UserCodeError
from ..events import EstimatorProtocol, EventDispatcher, handler_name
from ..events.handler_method import HandlerMethod
from ..gluon.data.batches import Batch
from ..gluon.engine import Engine
from ..gluon.execution.result import StepResult
from ..gluon.train_step import TrainStep
from ..gluon.validation.first_batch import run_first_batch
from .stopwatch import Stopwatch

KEPT_BATCHES = 8  # for timing the pieces of a forward pass
PARTS = {
    "fetch": ("data", "placing"),
    "reduce": ("update",),
    "change": ("update",),
    "clip": ("update",),
    "measure": ("figures",),
}  # of the profile, by the phase of a step; other phases have their own name


class TimedEvents(EventDispatcher):
    """Calls the handlers, and times each of them by its name; the watch may be replaced at any time."""

    def __init__(self, estimator: EstimatorProtocol, handlers: Any, watch: Stopwatch) -> None:
        super().__init__(estimator, handlers)
        self.watch = watch

    def call(self, method: HandlerMethod, facts: Mapping[str, Any]) -> Any:
        """Call one method of a handler and time it."""
        with self.watch("handlers", handler_name(method.handler)):
            return super().call(method, facts)


class TimedSteps:
    """Trains as ``fit`` does, with every phase of a step timed.

    `batches` are raw batches, as many as are asked for; the engine was restarted with the handlers' hooks.
    The counters of the estimator's state are advanced. Afterwards, `batches` holds the last batches, and
    `sizes` every batch's number of samples.
    """

    def __init__(
        self,
        estimator: EstimatorProtocol,
        engine: Engine,
        batches: Iterator[Any],
        events: TimedEvents,
        watch: Stopwatch,
    ) -> None:
        self._state, self._engine, self._raw, self._events = estimator.state, engine, batches, events
        self._watch = watch
        self._step = TrainStep(engine, self._time)
        self.stage = engine.stages["train"]
        self.batches: deque[Batch] = deque(maxlen=KEPT_BATCHES)
        self.sizes: list[int] = []

    def run(self, watch: Stopwatch, count: int) -> None:
        """Make a number of steps, timed by `watch`."""
        self._events.watch = self._watch = watch
        for _ in range(count):
            try:
                self._train()
            except UserCodeError as error:
                error.at(f"profiling, batch {len(self.sizes) + 1}")
                raise

    def _time(self, phase: str, *detail: str) -> Any:
        return self._watch(*PARTS.get(phase, (phase,)), *detail)

    def _train(self) -> None:
        watch, hooks = self._watch, self._engine.hooks
        with watch("data", "loader"):
            raw = next(self._raw)
        self._state.batch = len(self.sizes)
        self._events.emit("batch_begin", batch=raw)  # which times each handler
        with ExitStack() as around:
            if hooks is not None:
                with watch("handlers"):
                    around.enter_context(hooks.step(raw))
            result = self._train_batch(raw)
            if hooks is not None:
                with watch("handlers"):
                    around.close()
        self._state.step += 1
        self._state.samples += result.batch.samples
        if self._events.listens("batch_end"):
            with watch("handlers"):
                self._events.emit_result("batch_end", raw, result.views)
        watch.lap()
        self.batches.append(result.batch)
        self.sizes.append(result.batch.samples)

    def _train_batch(self, raw: Any) -> StepResult:
        if self.stage.checked:
            return self._step(raw)
        # the handlers that change the step have seen this batch begin
        batch = self._step.fetch(raw)
        result = run_first_batch(self.stage, batch, self._state)
        self._step.learn(result)
        self._step.measure(result)
        return result
