"""Trains any ``torch.nn.Module``; see :class:`multifit.engines.Engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from .. import engines
from ..engines import CUDA_GRAPHS, Setup
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
from .evaluation import evaluate_batch, predict_batch, softmax_axis
from .export import export
from .handler_arrays import TorchArrays
from .operator_times import operator_times
from .plan import make_plan
from .session import Session
from .snapshot import Snapshot

__all__ = ["Engine", "be_deterministic", "has", "host", "make_engine"]

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


def make_engine(setup: Setup, state: RunState, log_once: LogOnce) -> Engine:
    """Return the engine of an estimator's batches; raises what the estimator's constructor raises."""
    if not setup.world.alone and setup.world.asynchronous:
        what = f"{setup.world.name} sums MXNet's arrays only"
        raise SpecError(f'engine="torch": {what}; give world=multifit.connect("torch")')
    session = Session.of(setup, state, log_once)
    if setup.compile == CUDA_GRAPHS and session.model.device.type != "cuda":
        log_once(f'compile="{CUDA_GRAPHS}" does nothing on a CPU')
    return Engine(session, log_once)


class Engine(engines.Engine):
    """Runs batches on the device of the module's own parameters, so that parameters are never copied."""

    session: Any
    snapshot: Any
    export_format = "torch"
    saves_generators = True

    def __init__(self, session: Session, log_once: LogOnce) -> None:
        self.session, self.snapshot, self._log_once = session, Snapshot(session), log_once
        self._arrays = TorchArrays(session.spec, session.model, session.world)
        self._running = False

    def fork(self, state: RunState) -> Engine:
        return Engine(self.session.fork(state), self._log_once)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Train in the modes of the net alone; afterwards, its modules have the modes that they had.

        The user's `torch.inference_mode`, in which tensors have no gradients, and `torch.autocast`, which
        keeps old values of parameters, do not apply within.
        """
        if self._running:
            yield
            return
        self._running, model = True, self.session.model
        try:
            plain = torch.inference_mode(False), torch.autocast(model.device.type, enabled=False)
            with plain[0], plain[1], torch.enable_grad(), model.kept_modes():
                yield
        finally:
            self._running = False

    def balance_classes(self, data: Any, ends: bool) -> None:
        balance_classes(self.session, data, ends, self._log_once)

    def dry_run(self, first: Any, val_data: Any) -> DryRun:
        with self.running():
            return dry_run(self.session, first, val_data)

    def make_plan(self, run: Any, layers: bool = False) -> Plan:
        with self.running():
            return make_plan(self.session, run, self._log_once, layers)

    def evaluate_batch(self, raw: Any) -> Any:
        return evaluate_batch(self.session, raw)

    def join_figures(self, stage: str, ended: bool = True) -> None:
        self.session.stages[stage].figures.join(self.session.world, ended)
        balancer = self.session.balancer
        judged = stage == TRAIN and ended and self.session.world.first
        if judged and balancer is not None and (message := balancer.never_met()):
            self._log_once.warning(message)

    def wait(self) -> None:
        if self.session.model.device.type == "cuda":  # pragma: no cover - needs a GPU
            torch.cuda.synchronize(self.session.model.device)

    def why_inexact(self) -> str:
        return why_inexact(self.session.model.device)

    def predict(self, data: Any, gather: bool, activation: Any, write: Any) -> dict[str, Any]:
        with self.running():
            how: dict[str, Any] = {"run": predict_batch, "class_axis": softmax_axis}
            return predict(self.session, data, gather, activation, write, **how)

    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        with self.running():
            return export(self.session, folder, data, format)

    def values(self, gradients: bool = False) -> dict[str, Numbers]:
        model = self.session.model
        of_batch = {name: p.grad for name, p in model.parameters.items() if p.grad is not None}
        tensors: dict[str, Any] = of_batch if gradients else model.tensors
        known = {name: tensor for name, tensor in tensors.items() if not is_lazy(tensor)}
        return {name: self._arrays.numpy(tensor) for name, tensor in known.items()}

    def set_values(self, values: Mapping[str, Any]) -> None:
        tensors = self.session.model.tensors
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(torch.as_tensor(value))

    @property
    def arrays(self) -> TorchArrays:
        return self._arrays

    def gradients(self) -> dict[str, dict[str, list[Any]]]:
        gradients: dict[str, dict[str, list[Any]]] = self.session.trainers.gradients()
        return gradients

    def preserved(self) -> AbstractContextManager[None]:
        return preserved(self.session, trainers=True)

    @contextmanager
    def trial_run(self, data: Any, name: str, tool: str) -> Iterator[tuple[DryRun, Iterator[Any]]]:
        session = self.session
        with self.running(), preserved(session, trainers=True), session.trainers.training():
            first, batches = session.readers[TRAIN].peek_first(data, name)
            yield dry_run(session, first), batches

    def operator_times(self, run: Callable[[], Any], steps: int) -> tuple[list[Any], str]:
        return operator_times(run, steps)
