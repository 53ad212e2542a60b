"""Trains any ``torch.nn.Module``; see :class:`multifit.engines.Runner`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from .. import engines
from ..engines import CUDA_GRAPHS, Setup, Timer, untimed
from ..engines.class_counts import balance_classes
from ..engines.prediction import predict
from ..errors import SpecError
from ..log_once import LogOnce
from ..protocols import Numbers
from ..seeding import add_seeder
from ..spec.plan import Plan
from ..stages import TRAIN
from ..state import RunState
from .check import DryRun, dry_run, preserved
from .devices import be_deterministic, device_of, why_inexact
from .engine import Engine
from .evaluation import evaluate_batch, predict_batch, softmax_axis
from .export import export
from .handler_arrays import TorchArrays
from .operator_times import operator_times
from .plan import make_plan
from .snapshot import Snapshot
from .step import TrainStep

__all__ = ["Runner", "be_deterministic", "has", "host", "make_runner"]

add_seeder(torch.manual_seed)


def host(context: Any) -> torch.device:
    """Return the device of the net's own parameters, which is the device of the run; raises ValueError."""
    return device_of(context)


def has(context: Any) -> bool:
    """Return whether torch can run on a context."""
    try:
        device_of(context)
    except ValueError:
        return False
    return True


def make_runner(setup: Setup, state: RunState, log_once: LogOnce) -> Runner:
    """Return the runner of an estimator's batches; raises what the estimator's constructor raises."""
    if not setup.world.alone and setup.world.asynchronous:
        what = f"{setup.world.name} sums MXNet's arrays only"
        raise SpecError(f'engine="torch": {what}; give world=multifit.connect("torch")')
    engine = Engine.of(setup, state, log_once)
    if setup.compile == CUDA_GRAPHS and engine.model.device.type != "cuda":
        log_once(f'compile="{CUDA_GRAPHS}" does nothing on a CPU')
    return Runner(engine, log_once)


class Runner(engines.Runner):
    """Runs batches on the device of the module's own parameters, so that parameters are never copied."""

    engine: Any
    snapshot: Any
    export_format = "torch"
    saves_generators = True

    def __init__(self, engine: Engine, log_once: LogOnce) -> None:
        self.engine, self.snapshot, self._log_once = engine, Snapshot(engine), log_once
        self._arrays = TorchArrays(engine.spec, engine.model, engine.world)
        self._running = False

    def fork(self, state: RunState) -> Runner:
        return Runner(self.engine.fork(state), self._log_once)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Train in the modes of the net alone; afterwards, its modules have the modes that they had.

        The user's `torch.inference_mode`, in which tensors have no gradients, and `torch.autocast`, which
        keeps old values of parameters, do not apply within.
        """
        if self._running:
            yield
            return
        self._running, model = True, self.engine.model
        try:
            plain = torch.inference_mode(False), torch.autocast(model.device.type, enabled=False)
            with plain[0], plain[1], torch.enable_grad(), model.kept_modes():
                yield
        finally:
            self._running = False

    def balance_classes(self, data: Any, ends: bool) -> None:
        balance_classes(self.engine, data, ends, self._log_once)

    def dry_run(self, first: Any, val_data: Any, trained: bool) -> DryRun:
        with self.session():
            return dry_run(self.engine, first, val_data)

    def make_plan(self, run: Any, trained: bool, layers: bool = False) -> Plan:
        with self.session():
            return make_plan(self.engine, run, self._log_once, trained, layers)

    def train_step(self, timer: Timer = untimed) -> TrainStep:
        return TrainStep(self.engine, timer)

    def evaluate_batch(self, raw: Any) -> Any:
        return evaluate_batch(self.engine, raw)

    def join_figures(self, stage: str, ended: bool = True) -> None:
        self.engine.stages[stage].figures.join(self.engine.world, ended)
        balancer = self.engine.balancer
        judged = stage == TRAIN and ended and self.engine.world.first
        if judged and balancer is not None and (message := balancer.never_met()):
            self._log_once.warning(message)

    def wait(self) -> None:
        if self.engine.model.device.type == "cuda":  # pragma: no cover - needs a GPU
            torch.cuda.synchronize(self.engine.model.device)

    def why_inexact(self) -> str:
        return why_inexact(self.engine.model.device)

    def predict(self, data: Any, gather: bool, activation: Any, write: Any) -> dict[str, Any]:
        with self.session():
            how: dict[str, Any] = {"run": predict_batch, "class_axis": softmax_axis}
            return predict(self.engine, data, gather, activation, write, **how)

    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        with self.session():
            return export(self.engine, folder, data, format)

    def values(self, gradients: bool = False) -> dict[str, Numbers]:
        model = self.engine.model
        of_batch = {name: p.grad for name, p in model.parameters.items() if p.grad is not None}
        tensors: dict[str, Any] = of_batch if gradients else model.tensors
        known = {name: tensor for name, tensor in tensors.items() if not is_lazy(tensor)}
        return {name: self._arrays.numpy(tensor) for name, tensor in known.items()}

    def set_values(self, values: Mapping[str, Any]) -> None:
        tensors = self.engine.model.tensors
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(torch.as_tensor(value))

    @property
    def arrays(self) -> TorchArrays:
        return self._arrays

    def gradients(self) -> dict[str, dict[str, list[Any]]]:
        gradients: dict[str, dict[str, list[Any]]] = self.engine.trainers.gradients()
        return gradients

    def preserved(self) -> AbstractContextManager[None]:
        return preserved(self.engine, trainers=True)

    @contextmanager
    def trial_run(self, data: Any, name: str, tool: str) -> Iterator[tuple[DryRun, Iterator[Any]]]:
        engine = self.engine
        with self.session(), preserved(engine, trainers=True), engine.trainers.training():
            first, batches = engine.readers[TRAIN].peek_first(data, name)
            yield dry_run(engine, first), batches

    def operator_times(self, run: Callable[[], Any], steps: int) -> tuple[list[Any], str]:
        return operator_times(run, steps)
