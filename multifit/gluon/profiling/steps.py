"""A training step, part by part."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from typing import Any, Iterator

from ...errors import UserCodeError, raise_problems
from ..execution.loss_graph import fetch
from ..execution.result import Result
from .stopwatch import Stopwatch
from .timed import TimedEvents

__all__ = ["Steps"]

KEPT = 8  # batches for measuring forward passes by themselves


class Steps:
    """Trains as ``fit`` does, with every part of a step on a watch.

    Parameters
    ----------
    estimator : MultiEstimator
        Whose engine, handlers and state are used.
    batches : iterator
        Raw batches, as many as are asked for.
    events : TimedEvents
        The handlers, which the estimator tells of the batches.
    """

    def __init__(self, estimator: Any, batches: Iterator[Any], events: TimedEvents) -> None:
        self._estimator, self._engine, self._batches = estimator, estimator._engine, batches
        self._events, self._tell = events, estimator._audience
        self.stage = self._engine.stages["train"]
        self.kept: deque[Any] = deque(maxlen=KEPT)
        self.sizes: list[int] = []

    def run(self, watch: Stopwatch, count: int, apart: bool = False) -> None:
        """Make steps.

        Parameters
        ----------
        watch : Stopwatch
            Who measures them.
        count : int
            How many.
        apart : bool
            Whether several trainers move one after the other, so that each is seen.
        """
        self._events.watch = watch
        for _ in range(count):
            try:
                self._step(watch, apart)
            except UserCodeError as error:
                error.at(f"profiling, batch {len(self.sizes) + 1}")
                raise

    def _step(self, watch: Stopwatch, apart: bool) -> None:
        state, hooks = self._estimator.state, self._engine.hooks
        with watch("data", "loader"):
            raw = next(self._batches)
        state.batch = len(self.sizes)
        self._tell.tell("batch_begin", batch=raw)  # each handler is on the watch by itself
        with ExitStack() as around:
            if hooks is not None:
                with watch("handlers"):
                    around.enter_context(hooks.around("step"))
            result = self._train(watch, raw, apart)
            if hooks is not None:
                with watch("handlers"):
                    around.close()
        state.step += 1
        state.samples += result.batch.samples
        if self._events.listens("batch_end"):
            with watch("handlers"):
                self._tell.tell_result("batch_end", raw, result)
        watch.lap()
        self.kept.append(result.batch)
        self.sizes.append(result.batch.samples)

    def _train(self, watch: Stopwatch, raw: Any, apart: bool) -> Result:
        """Do what ``fit_batch`` does."""
        with watch("data", "placing"):
            batch = self._engine.feed("train").split(raw)
        if not self.stage.bound:  # the handlers that change the step have seen this batch begin
            raise_problems(self.stage.bind(batch))
        with watch("forward"):
            result: Result = self.stage.run(batch, self._estimator.state)
        with watch("backward"):
            self._engine.backward(result)
        self._update(watch, result, apart)
        self._measure(watch, result)
        return result

    def _update(self, watch: Stopwatch, result: Result, apart: bool) -> None:
        trainers = self._engine.bound_trainers()
        if not apart or self._engine.hooks is not None or len(trainers) == 1:
            with watch("update"):
                self._engine.step(result)
            return
        for name in trainers:
            with watch("update", name):
                trainers.reduce(name)
                trainers.clip(name)
                trainers.update(name)

    def _measure(self, watch: Stopwatch, result: Result) -> None:
        host = [measure for measure in self.stage.measures if not measure.on_device]
        if not host:
            return
        with watch("figures"):
            arrays = [fetch(*pair) for pair in zip(result.outputs, result.batch.slots)]
        for measure in host:
            with watch("figures", measure.term.key):
                measure.update(arrays, result.parts)
