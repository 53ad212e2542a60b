"""Measure how the tasks' gradients compare."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Optional

from ...arguments import Count, checked
from ...balance import Sum
from ...balance.protocol import Groups, On
from ...events import Priority
from ...protocols import MultiEstimator


class GradientConflicts:
    """Records the norms of the tasks' gradients, and whether they conflict, without changing training.

    The figures are ``train_gradnorm_<task>``, ``train_cosine_<a>_<b>`` for each pair of tasks, and
    ``train_conflict``, the share of pairs whose cosine is negative: means over those of an epoch's measured
    batches in which the task, or both tasks, had a gradient, NaN if there was none. A batch is measured after
    its update, in a graph of its own. There the net computes in evaluation mode: Dropout is off, and
    BatchNorm uses its running statistics. Parameters, statistics, gradients and random numbers are the same
    with this handler as without it.

    The net must be hybridized, and its losses traceable. A method of ``multifit.balance`` that compares
    gradients records these figures itself; together with it, this handler is refused.

    Parameters
    ----------
    every : int
        One batch in this many is measured, counted over all fits. It takes about as long as two steps,
        and waits for the device.
    on : {"features", "parameters"} or str
        Which gradients are compared: those with respect to the features where the tasks branch, to all
        parameters that the tasks share, or to the parameters whose names match a pattern.
    tasks : mapping of str to sequence of str, optional
        The losses of each task; by default each loss is a task.

    Raises
    ------
    ValueError
        An argument is not valid.
    """

    priority = (Priority.VALIDATION + Priority.NORMAL) / 2  # records before other handlers look
    records_figures = True

    @checked
    def __init__(self, every: Count = 50, on: On = "features", tasks: Optional[Groups] = None) -> None:
        self.every, self.on, self.tasks = every, on, tasks
        self._meter: Any = None
        self._state: Any = None

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Prepare to measure."""
        self._meter = estimator.gradient_meter(Sum(on=self.on, tasks=self.tasks))

    def batch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Remember the state at the beginning of a batch that will be measured."""
        self._state = None if estimator.state.step % self.every else copy.copy(estimator.state)

    def batch_end(self, estimator: MultiEstimator, batch: Any, **arguments: Any) -> None:
        """Measure every `every`-th batch."""
        if self._state is not None:
            self._meter.measure(batch, self._state)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Record the figures, and reset them."""
        figures = self._meter.read()
        estimator.history.record({f"train_{name}": value for name, value in figures.items()})
        self._meter.reset()  # not when an epoch begins: that may continue one from a checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured in the current epoch."""
        return {} if self._meter is None else self._meter.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._meter.load(state)
