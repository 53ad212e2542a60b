"""Runs an estimator's batches with MXNet; see :class:`multifit.engines.Runner`."""

from __future__ import annotations

import os
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterator, Mapping, Sequence

from .. import engines
from ..balance import Sum
from ..engines import FirstBatches, Setup, Timer, needs_torch, untimed
from ..events import NO_HOOKS, TrainingHooks
from ..log_once import LogOnce
from ..protocols import Array
from ..sampling import TaskLoaders
from ..spec.plan import Plan
from ..state import RunState
from .data.devices import can_compute as has
from .distributed.figures import join_figures
from .engine import Engine, make_engine
from .export.export import export
from .figure_metrics import FigureMetric, figure_metrics, figures_in_handlers
from .operator_times import operator_times
from .snapshot.snapshot import Snapshot
from .steps.evaluation import evaluate_batch, predict
from .steps.forward_variants import forward_variants
from .steps.gradient_meter import GradientMeter
from .steps.train_step import TrainStep
from .steps.trial_run import trial_run
from .validation.dry_run import DryRun, dry_run
from .validation.first_batches import first_batches
from .validation.make_plan import make_plan

__all__ = ["Runner", "be_deterministic", "has", "host", "make_runner"]


def host(context: Any) -> Any:
    """Return the context of the net's own parameters, which is the context of the run."""
    return context


def be_deterministic() -> None:
    """Choose algorithms that compute the same bits every time; on CPUs, all of MXNet's do."""
    os.environ["MXNET_ENFORCE_DETERMINISM"] = "1"


def make_runner(setup: Setup, state: RunState, log_once: LogOnce) -> Runner:
    """Return the runner of an estimator's batches; raises what the estimator's constructor raises."""
    if needs_torch(setup.compile):
        raise ValueError(
            f'compile={setup.compile!r} needs engine="torch"; engine is "mxnet": leave compile out'
        )
    return Runner(make_engine(setup, state, log_once), setup, log_once)


class Runner(engines.Runner):
    """Runs batches on the devices of the net's own parameters, so that parameters are never copied.

    The runner of an engine on another library is derived from this one: MXNet initialises its net, checks
    its first batches, writes its checkpoints, and runs what the other library cannot.
    """

    def __init__(self, engine: Engine, setup: Setup, log_once: LogOnce) -> None:
        self._engine, self._setup, self._log_once = engine, setup, log_once
        self._snapshot = Snapshot(engine)

    @property
    def engine(self) -> Engine:
        """The model, its trainers and stages."""
        return self._engine

    @property
    def snapshot(self) -> Snapshot:
        """Writes and reads checkpoints."""
        return self._snapshot

    def fork(self, state: RunState) -> Runner:
        """Return a runner for the same model and trainers, with figures and graphs of its own."""
        return type(self)(self._engine.fork(state), self._setup, self._log_once)

    def restart(self, hooks: TrainingHooks = NO_HOOKS) -> None:
        """Begin a fit, or a loop without a fit."""
        self._engine.restart(hooks)

    def session(self) -> ContextManager[None]:
        """Return a block in which batches run."""
        return nullcontext()

    def first_batches(self, stage: str, data: TaskLoaders, what: str) -> FirstBatches:
        """Read the first batch of each of several loaders."""
        return first_batches(self._engine, stage, data, what)

    def checking(self) -> ContextManager[None]:
        """Return a block in which the first batch of a fit is checked."""
        return nullcontext()

    def dry_run(self, first: Any, val_data: Any) -> DryRun:
        """Check everything on a first batch, or on the first batches of several loaders."""
        return dry_run(self._engine, first, val_data)

    def check(self, run: DryRun) -> None:
        """Check nothing more: the dry run was MXNet's own."""

    def make_plan(self, run: DryRun, trained: bool) -> Plan:
        """Return the plan, after a dry run of a batch."""
        return make_plan(self._engine, run, self._log_once, trained)

    def train_step(self) -> Any:
        """Return a function that trains on a batch."""
        return TrainStep(self._engine)

    def evaluate_batch(self, raw: Any) -> Any:
        """Measure losses and metrics on a batch."""
        return evaluate_batch(self._engine, raw)

    def join_figures(self, stage: str, ended: bool = True) -> None:
        """Replace a stage's figures by those of all ranks together, at the end of a pass."""
        join_figures(self._engine.world, self._engine.stages[stage].figures, ended)

    def replacing(self, block: ContextManager[Any]) -> ContextManager[Any]:
        """Return the block itself: batches run on the net's own values."""
        return block

    def publish(self) -> None:
        """Do nothing: the net has the current values."""

    def refresh(self) -> None:
        """Do nothing: batches run on the net's own values."""

    def wait(self) -> None:
        """Wait until the devices have done all their work."""
        self._engine.wait()

    def state(self) -> dict[str, Any]:
        """Return an empty dict: the snapshot has the whole state."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Do nothing: another engine's state is of no use here."""

    def why_inexact(self) -> str:
        """Return "": on CPUs, two runs compute the same bits."""
        return ""

    def predict(self, data: Any, gather: bool) -> dict[str, Any]:
        """Return every output by name."""
        return predict(self._engine, data, gather)

    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        """Write the net, in evaluation mode, for use elsewhere."""
        return export(self._engine, folder, data, format)

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that no update has used, by trainer and parameter."""
        return self._engine.trainers.gradients()

    def gradient_meter(self, method: Sum) -> GradientMeter:
        """Return an object that measures the tasks' gradients on batches."""
        return GradientMeter(self._engine, method)

    def figure_metrics(self, stage: str) -> list[FigureMetric]:
        """Return a stage's metrics, then its objective, as metrics of Gluon that read the figures."""
        return figure_metrics(self._engine, stage)

    def figures_in_handlers(self, handlers: Sequence[object]) -> ContextManager[None]:
        """Return a block in which handlers of Gluon's classes read figures where they hold metrics."""
        return figures_in_handlers(self._engine, handlers)

    def check_tool(self, tool: str) -> None:
        """Refuse no tool: all of them measure this engine."""

    def trial_run(self, data: Any, name: str, tool: str) -> ContextManager[tuple[DryRun, Iterator[Any]]]:
        """Return a block in which a fork may train, and after which everything is restored."""
        return trial_run(self._engine, data, name, tool)

    def phased_step(self, timer: Timer = untimed) -> TrainStep:
        """Return a train step whose phases are timed."""
        return TrainStep(self._engine, timer)

    def forward_variants(self, batch: Any) -> dict[str, Callable[[Any], object]]:
        """Return functions that run a batch through the net alone, with losses, and with figures too."""
        return forward_variants(self._engine, batch)

    def operator_times(
        self, run: Callable[[], Any], steps: int
    ) -> tuple[list[tuple[str, float, float]], str]:
        """Return the times of MXNet's operators in `run`, and the reason if there are none."""
        return operator_times(run, steps)
