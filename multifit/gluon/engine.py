"""Runs an estimator's batches with MXNet; see :class:`multifit.engines.Engine`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any

from .. import engines
from ..engines import DryRun, Setup, needs_torch
from ..engines.class_counts import balance_classes
from ..log_once import LogOnce
from ..protocols import Array, Context, Numbers
from ..spec.plan import Plan
from ..stages import TRAIN
from ..state import RunState
from .check.dry_run import dry_run
from .check.make_plan import make_plan
from .compat import mx
from .data.devices import can_compute as has
from .data.devices import resolve_context
from .evaluation import evaluate_batch, predict
from .export.export import export
from .handler_arrays import GluonArrays
from .losses import SequenceCELoss, is_kind
from .metrics.joined import join_figures
from .operator_times import operator_times
from .optim.preserve_state import preserve_state
from .session import Session
from .snapshot.snapshot import Snapshot
from .trial_run import trial_run

__all__ = ["Engine", "be_deterministic", "has", "host", "make_engine"]


def host(context: Any) -> list[Context]:
    """Return the contexts of the net's own parameters, which are those of the run; raises ValueError."""
    return resolve_context(context, [])


def be_deterministic() -> None:
    """Choose algorithms that compute the same bits every time; on CPUs, all of MXNet's do."""
    os.environ["MXNET_ENFORCE_DETERMINISM"] = "1"


def make_engine(setup: Setup, state: RunState, log_once: LogOnce) -> Engine:
    """Return the engine of an estimator's batches; raises what the estimator's constructor raises."""
    if needs_torch(setup.compile):
        raise ValueError(
            f'compile={setup.compile!r} needs engine="torch"; engine is "mxnet": leave compile out'
        )
    return Engine(Session.of(setup, state, log_once), log_once)


class Engine(engines.Engine):
    """Runs batches on the devices of the net's own parameters, so that parameters are never copied."""

    session: Session
    export_format = "gluon"

    def __init__(self, session: Session, log_once: LogOnce) -> None:
        self.session, self.snapshot, self._log_once = session, Snapshot(session), log_once

    def fork(self, state: RunState) -> Engine:
        return Engine(self.session.fork(state), self._log_once)

    def balance_classes(self, data: Any, ends: bool) -> None:
        balance_classes(self.session, data, ends, self._log_once, lambda loss: is_kind(loss, SequenceCELoss))

    def dry_run(self, first: Any, val_data: Any) -> DryRun:
        return dry_run(self.session, first, val_data)

    def make_plan(self, run: DryRun, layers: bool = False) -> Plan:
        return make_plan(self.session, run, self._log_once, layers)

    def evaluate_batch(self, raw: Any) -> Any:
        return evaluate_batch(self.session, raw)

    def join_figures(self, stage: str, ended: bool = True) -> None:
        join_figures(self.session.world, self.session.stages[stage].figures, ended)
        balancer = self.session.balancer
        judged = stage == TRAIN and ended and self.session.world.first
        if judged and balancer is not None and (message := balancer.never_met()):
            self._log_once.warning(message)

    def wait(self) -> None:
        mx.nd.waitall()

    def predict(self, data: Any, gather: bool, activation: Any, write: Any) -> dict[str, Any]:
        return predict(self.session, data, gather, activation, write)

    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        return export(self.session, folder, data, format)

    def values(self, gradients: bool = False) -> dict[str, Numbers]:
        known = {name: p for name, p in self.session.model.parameters.items() if p._data is not None}
        if gradients:
            return {name: p.list_grad()[0].asnumpy() for name, p in known.items() if p.grad_req != "null"}
        return {name: p.list_data()[0].asnumpy() for name, p in known.items()}

    def set_values(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.session.model.parameters[name].set_data(value)

    @property
    def arrays(self) -> GluonArrays:
        return GluonArrays(self.session.model.parameters, self.session.world)

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        return self.session.trainers.gradients()

    def preserved(self) -> AbstractContextManager[None]:
        session = self.session
        return preserve_state(session.model.parameters.values(), session.trainers.get().values())

    def trial_run(
        self, data: Any, name: str, tool: str
    ) -> AbstractContextManager[tuple[DryRun, Iterator[Any]]]:
        return trial_run(self.session, data, name, tool)

    def operator_times(
        self, run: Callable[[], Any], steps: int
    ) -> tuple[list[tuple[str, float, float]], str]:
        return operator_times(run, steps)
