"""Measure the tasks' gradients on a batch without disturbing the training."""

from __future__ import annotations

import copy
from typing import Any, Callable, Mapping

from ...balance import Sum
from ...errors import SpecError
from ...seeding import preserve_rng
from ...stages import TRAIN
from ...state import RunState
from ..balance.arrays import Arrays, MXNetArrays
from ..balance.gradient_balancer import GradientBalancer
from ..compat import mx
from ..data.batch import Batch
from ..engine import Engine
from ..optim.preserve_state import preserve_state
from ..validation.first_batch import run_batch

Run = Callable[[Engine, Batch, RunState], Any]


class GradientMeter:
    """Passes batches through a graph of its own, which is cut where the tasks branch.

    The net runs in evaluation mode, so that it draws no random numbers and updates no running statistics.
    Gradients that wait for an update are put back. Raises SpecError if the run's method of balancing
    measures the same, or if a batch holds the samples of one loader only.

    ``run(engine, batch, state)`` runs a batch, and its backward pass down to where the tasks branch.
    `arrays` are the operations on the engine's arrays with which the method computes.
    """

    def __init__(
        self, engine: Engine, method: Sum, run: Run | None = None, arrays: Arrays | None = None
    ) -> None:
        if isinstance(engine.balancer, GradientBalancer):
            raise SpecError(
                f"GradientConflicts: balance={type(engine.balancer.method).__name__}() records the same "
                "figures; leave the handler out"
            )
        loaders = engine.loaders
        if loaders is not None and not loaders.joins:
            raise SpecError(
                "GradientConflicts: it compares the gradients of tasks in one batch, but with "
                f"{type(loaders.sampling).__name__} each batch comes from one loader; give "
                "sampling=Together(), or leave the handler out"
            )
        arrays, parameters = arrays or MXNetArrays(engine.model.contexts[0]), engine.model.parameters
        self._balancer = GradientBalancer(method, engine.spec, engine.world, parameters, arrays)
        self._run = run or _run
        self._training, self._engine = engine, engine.fork(engine.state, self._balancer)
        self._engine.split_as(engine)
        if loaders is not None:
            self._engine.read_tasks(TRAIN, loaders.slots, loaders.joins)
        self._engine.stages[TRAIN].train_mode = False
        engine.further_checks.append(self.check)

    def check(self, raw: Any) -> None:
        """Raise SpecError if the first batch of a fit shows that tasks' gradients cannot be told apart."""
        engine, state = self._engine, copy.copy(self._engine.state)
        state.seed = None
        try:
            with preserve_rng():
                run_batch(engine.stages[TRAIN], engine.splitter(TRAIN).split(raw), state)
        except SpecError as error:
            error.at("GradientConflicts, which compares gradients as balance= does")
            raise

    def measure(self, raw: Any, state: RunState) -> None:
        """Measure the last batch that was trained on, as the loader yielded it; this waits for the device.

        `state` is the run's state at the beginning of that batch; loss weights may be functions of it.
        """
        engine = self._engine
        state = copy.copy(state)
        state.seed = None  # so that the stage does not reseed MXNet's generator, which training uses
        carried, scratch = (each.stages[TRAIN].carried for each in (self._training, engine))
        if carried is not None and scratch is not None:
            scratch.load(carried.before())
        with preserve_rng(), preserve_state(engine.model.parameters.values(), ()):
            self._balancer.measure(self._run(engine, engine.splitter(TRAIN).split(raw), state))

    def read(self) -> dict[str, float]:
        """Return the means since the last reset, by figure; NaN if there was no batch."""
        return self._balancer.gradient_figures.read()

    def reset(self) -> None:
        """Discard what was measured, as at the beginning of an epoch."""
        self._engine.stages[TRAIN].reset()

    def state(self) -> dict[str, Any]:
        """Return what was measured, for a checkpoint."""
        return self._balancer.gradient_figures.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._balancer.gradient_figures.load(state)


def _run(engine: Engine, batch: Batch, state: RunState) -> Any:
    stage = engine.stages[TRAIN]
    result = stage.run(batch, state)
    if result.objectives:  # else this process has no samples
        mx.autograd.backward(result.objectives, train_mode=stage.train_mode)
    return result
