"""Training steps with every phase timed."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from typing import Any, Iterator

from ..errors import UserCodeError, raise_problems
from ..events import EstimatorProtocol
from ..gluon.data.batches import Batch
from ..gluon.engine import Engine
from ..gluon.execution.result import StepResult
from ..gluon.train_step import TrainStep
from ..gluon.validation.first_batch import check_first_batch
from .stopwatch import Stopwatch
from .timed_events import TimedEvents

__all__ = ["TimedSteps"]

KEPT_BATCHES = 8  # for timing the pieces of a forward pass
PARTS = {
    "fetch": ("data", "placing"),
    "reduce": ("update",),
    "change": ("update",),
    "clip": ("update",),
    "measure": ("figures",),
}  # of the profile, by the phase of a step; other phases have their own name


class TimedSteps:
    """Trains as ``fit`` does, with every phase of a step timed.

    Parameters
    ----------
    estimator : EstimatorProtocol
        Handed to the handlers; its state's counters are advanced.
    engine : Engine
        Restarted with the handlers' hooks.
    batches : iterator
        Raw batches, as many as are asked for.
    events : TimedEvents
        Calls the handlers.
    watch : Stopwatch
        Times the steps; see :meth:`run`.

    Attributes
    ----------
    batches : deque of Batch
        The last batches.
    sizes : list of int
        The number of samples of every batch.
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
                    around.enter_context(hooks.around("step"))
            result = self._train_batch(raw)
            if hooks is not None:
                with watch("handlers"):
                    around.close()
        self._state.step += 1
        self._state.samples += result.batch.samples
        if self._events.listens("batch_end"):
            with watch("handlers"):
                views = result.views() if self._events.accepts("batch_end", "pred", "label", "loss") else {}
                self._events.emit("batch_end", batch=raw, **views)
        watch.lap()
        self.batches.append(result.batch)
        self.sizes.append(result.batch.samples)

    def _train_batch(self, raw: Any) -> StepResult:
        if self.stage.checked:
            return self._step(raw)
        # the handlers that change the step have seen this batch begin
        batch = self._step.fetch(raw)
        outputs, problems = check_first_batch(self.stage, batch)
        raise_problems(problems)
        result = self.stage.run(batch, self._state, outputs)
        self._step.learn(result)
        self._step.measure(result)
        return result
