"""Runs an estimator's batches with torch; see :class:`multifit.engines.Runner`.

MXNet, on the CPU, initialises the net, checks the first batch and traces the graphs. Torch then holds the
values of the parameters, until the run ends or other code reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from ...engines import CUDA_GRAPHS, Setup, Timer, untimed
from ...errors import raise_problems
from ...events import NO_HOOKS, TrainingHooks
from ...gluon.data.devices import CPU
from ...gluon.engine import Engine
from ...gluon.optim.preserve_state import kept_statistics
from ...gluon.precision import Precision, named_precision
from ...gluon.runner import Runner as MXNetRunner
from ...gluon.snapshot.figures import load_figures, save_figures
from ...gluon.steps import evaluation
from ...gluon.validation.dry_run import DryRun
from ...log_once import LogOnce
from ...protocols import Array
from ...seeding import add_seeder
from ...spec.plan import Plan
from ...stages import TRAIN
from ...state import RunState
from ..devices import be_deterministic, device_of, why_inexact
from . import refusals
from .balance_arrays import TorchArrays
from .computation import COMPILE_MODES
from .evaluation import Evaluation
from .gradients import JointGradients
from .parameters import Parameters
from .scaling import Scaled, Scaling, Unscaled
from .stage import Stage
from .tensors import Uploads
from .train_step import TrainStep
from .trainers import Trainers

__all__ = ["Runner", "be_deterministic", "has", "host", "make_runner"]

add_seeder(torch.manual_seed)


def host(context: Any) -> Any:
    """Return the context of the net's own parameters: the CPU, wherever torch runs."""
    device_of(context)  # raises ValueError
    return [CPU]


def make_runner(setup: Setup, state: RunState, log_once: LogOnce) -> Runner:
    """Return the runner of an estimator's batches; raises what the estimator's constructor raises."""
    context, arrays = host(setup.context), TorchArrays(device_of(setup.context))
    return Runner(Engine.of(setup, state, log_once, context, arrays, _precision_of), setup, log_once)


def has(context: Any) -> bool:
    """Whether torch can run on a context."""
    try:
        device_of(context)
    except ValueError:
        return False
    return True


def _precision_of(name: object, contexts: Any) -> Precision:
    """Return the precision with a name, in which only torch computes; raises ValueError if there is none."""
    return replace(named_precision(name), on_other_engine=True)


class Runner(MXNetRunner):
    """Runs batches on a device of torch, and moves values between it and MXNet's net."""

    def __init__(self, engine: Engine, setup: Setup, log_once: LogOnce) -> None:
        super().__init__(engine, setup, log_once)
        raise_problems(refusals.of_world(engine.world))
        self._device = device_of(setup.context)
        self._parameters = Parameters(engine.model.parameters, self._device)
        self._uploads = Uploads(self._device)
        self._mode = COMPILE_MODES[setup.compile].on(self._device, log_once)
        if setup.compile == CUDA_GRAPHS and not self._mode.captures:
            log_once(f'compile="{CUDA_GRAPHS}" does nothing on a CPU')
        is_scaled = engine.model.precision.name == "float16"
        self._scaling: Scaling = Scaled(self._device) if is_scaled else Unscaled()
        self._trainers: Trainers | None = None
        self._step: TrainStep | None = None
        self._running = False
        self._discard()

    def restart(self, hooks: TrainingHooks = NO_HOOKS, needs_outputs: bool = True) -> None:
        super().restart(hooks, needs_outputs)  # graphs are traced again: other parameters may be trainable
        self._discard()
        self._parameters.tensors.clear()
        self._trainers = self._step = None

    def _discard(self) -> None:
        parts = self.engine, self._parameters, self._uploads, self._mode
        self._evaluation = Evaluation(*parts, self._log_once)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Hold the values of parameters and optimizers' states on the device within the outermost block.

        The user's `torch.inference_mode`, in which tensors have no gradients, and `torch.autocast`, which
        keeps old values of parameters, do not apply within.
        """
        if self._running:
            yield
            return
        self._running = True
        try:
            with torch.inference_mode(False), torch.autocast(self._device.type, enabled=False):
                yield
        finally:
            self._running = False
            self._publish_states()

    def dry_run(self, first: Any, val_data: Any, trained: bool) -> DryRun:
        if not trained:
            run = super().dry_run(first, val_data, trained)
            self._refuse(run)
            return run
        figures = self.engine.stages[TRAIN].figures
        # of a run that is resumed; copied, because the check changes the metrics' arrays
        before = deepcopy(save_figures(figures)) if figures.sums.batches else None
        shared, were_shared = self.engine.shared, self.engine.shared.are_shared
        with kept_statistics(self.engine.model.parameters.values()):  # as torch runs the batch again
            run = super().dry_run(first, val_data, trained)
        if not were_shared:  # statistics too
            shared.share()
        figures.reset()
        if before is not None:
            load_figures(figures, before)
        return run

    def _refuse(self, run: DryRun) -> None:
        """Raise SpecError or TrainerError for what torch cannot train, after MXNet's dry run."""
        stage, slots = self.engine.stages[TRAIN], run.train.batch.slots[0]
        problems = [*refusals.of_graph(stage), *refusals.of_trainers(self.engine)]
        if not problems and stage.graphs.first is not None:
            with stage.recording():
                problems = refusals.of_operators(stage.graphs.first.trace(slots, weighted=True).symbol)
        raise_problems(problems)

    @contextmanager
    def replacing(self, block: AbstractContextManager[Any]) -> Iterator[None]:
        """Use the values that handlers set in the net, within the block and after it."""
        self.publish()
        try:
            with block:
                yield
        finally:
            self._parameters.stale = True

    def train_step(self, timer: Timer = untimed) -> TrainStep:
        engine = self.engine
        raise_problems([*refusals.of_graph(engine.stages[TRAIN]), *refusals.of_trainers(engine)])
        self._parameters.take()  # also those that the check has initialised, with the first rank's values
        self._trainers = self._trainers or Trainers(engine.trainers.get(), self._parameters)
        changes = engine.hooks.active("change_objective", "change_outputs")  # which waits for the device
        mode = self._mode.uncaptured if changes else self._mode
        stage = Stage(engine.stages[TRAIN], self._parameters, self._uploads, mode)
        parts = engine.splitter(TRAIN), stage, self._trainers, self._parameters, self._scaling
        joint = JointGradients(engine.world, self._parameters)
        hooks, check, windows = engine.hooks, engine.trainers.build, engine.windows
        self._step = TrainStep(*parts, joint, engine.state, hooks, check, windows, engine.balancer)
        for handle in engine.trainers.get().values():
            handle.publish = self._publish_states
        return self._step

    def evaluate_batch(self, raw: Any) -> Any:
        """Measure losses and metrics on a batch; with MXNet, if the stage is not a graph of torch."""
        result = self._evaluation.evaluate_batch(raw)
        if result is not None:
            return result
        self.publish()
        return super().evaluate_batch(raw)

    def predict(self, data: Any, gather: bool, activation: Any, write: Any) -> dict[str, Any]:
        return evaluation.predict(self.engine, data, gather, activation, write, self._predict_batch)

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that were not used yet, by trainer and parameter; waits for the device."""
        arrays = {} if self._step is None else self._step.gradients.arrays
        trainers = self.engine.trainers.get()
        return {
            trainer: {name: [arrays[name]] for name in parameters if name in arrays}
            for trainer, parameters in trainers.parameters.items()
            if trainer not in trainers.waiting
        }

    def publish(self) -> None:
        """Copy the values of parameters and optimizers' states to the net and its trainers."""
        if self._trainers is not None and self._trainers.newer:
            self._parameters.give_back()
            self._trainers.give_back()
            if self._step is not None:
                self._step.gradients.give_back()
        self._parameters.stale = True

    def _publish_states(self) -> None:
        """Publish, and take the optimizers' states again before the next batch: they may be replaced now."""
        self.publish()
        if self._trainers is not None:
            self._trainers.stale = True

    def refresh(self) -> None:
        self._parameters.take()
        if self._trainers is not None:
            self._trainers.take()
        if self._step is not None:
            self._step.gradients.take()

    def make_plan(self, run: DryRun, trained: bool, layers: bool = False) -> Plan:
        return replace(super().make_plan(run, trained, layers), devices=(f"{self._device} (torch)",))

    def check_tool(self, tool: str) -> None:
        way_out = 'use engine="mxnet", on the command line --engine mxnet'
        raise ValueError(f'{tool} does not work with engine="torch"; {way_out}')

    def state(self) -> dict[str, Any]:
        return {**super().state(), **self._scaling.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._scaling.load(state)

    def why_inexact(self) -> str:
        return why_inexact(self._device)

    def _predict_batch(self, engine: Engine, raw: Any) -> list[evaluation.Piece]:
        """Predict a batch; with MXNet, if the net is not a graph of torch."""
        pieces = self._evaluation.predict_batch(raw)
        if pieces is not None:
            return pieces
        self.publish()
        return evaluation.predict_batch(engine, raw)
