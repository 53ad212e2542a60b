"""Runs an estimator's batches with MXNet; see :class:`multifit.engines.Engine`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any

from .. import engines
from ..distributed.log_once import LogOnce
from ..engines import DryRun, Setup, needs_torch
from ..engines.prediction import Piece
from ..handlers.state import RunState
from ..spec.plan import Plan
from ..utils.errors import raise_problems
from ..utils.protocols import Context, Numbers
from ..utils.stages import EVALUATE
from ..utils.text import last_line
from .check.dry_run import dry_run
from .check.first_batch import check_first_batch
from .check.make_plan import make_plan
from .compat import mx
from .data.arrays import to_numpy
from .data.devices import can_compute as has
from .data.devices import resolve_context
from .export.export import WRITERS, export
from .handler_arrays import GluonArrays
from .losses import SequenceCELoss, is_kind, softmax_axis
from .optim.preserve_state import preserve_state
from .session import Session
from .snapshot.snapshot import Snapshot
from .user_code import user_code

__all__ = ["Engine", "be_deterministic", "has", "host", "make_engine"]

PROFILED = ("all", "symbolic", "imperative", "api", "memory")
PROFILER_OFF = {
    **{f"profile_{what}": False for what in PROFILED}, "aggregate_stats": False, "continuous_dump": False,
}  # fmt: skip
# With statistics, MXNet runs every operator separately, even within graphs.
PROFILER_ON = {**PROFILER_OFF, "profile_symbolic": True, "profile_imperative": True, "aggregate_stats": True}


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
    export_format, formats = "gluon", tuple(WRITERS)

    def __init__(self, session: Session, log_once: LogOnce) -> None:
        arrays = GluonArrays(session.model.parameters, session.world)
        super().__init__(session, Snapshot(session), arrays, log_once)

    def fork(self, state: RunState) -> Engine:
        return Engine(self.session.fork(state), self._log_once)

    def _takes_lengths(self, loss: Any) -> bool:
        return is_kind(loss, SequenceCELoss)

    def dry_run(self, first: Any, val_data: Any) -> DryRun:
        return dry_run(self.session, first, val_data)

    def make_plan(self, run: DryRun, layers: bool = False) -> Plan:
        return make_plan(self.session, run, self._log_once, layers)

    def wait(self) -> None:
        mx.nd.waitall()

    def predict_batch(self, raw: Any) -> list[Piece]:
        session = self.session
        stage, batch = session.stages[EVALUATE], session.splitter(EVALUATE, labels=False).split(raw)
        if stage.network.paths is None:
            self._begin_evaluation(batch)
        pieces = []
        with stage.recording():
            for _, slots, size in batch.devices():
                if stage.network.paths is None:
                    outputs, problems = stage.network.bind(slots)
                    raise_problems(problems)
                else:
                    outputs = stage.network(slots)
                    raise_problems(stage.network.array_problems(outputs))
                pieces.append((outputs, size))
        if stage.carried is not None:
            stage.carried.keep(batch, [outputs for outputs, _ in pieces])
        with user_code(lambda: "the net's forward pass (evaluate)"):  # errors of operators are raised here
            return [({name: to_numpy(each) for name, each in outputs.items()}, n) for outputs, n in pieces]

    def _begin_evaluation(self, batch: Any) -> None:
        self.session.trainers.prepare()
        self.session.begin_stage(EVALUATE, batch)

    def _check_evaluation(self, batch: Any) -> None:
        raise_problems(check_first_batch(self.session.stages[EVALUATE], batch, self.session.state)[1])

    def _class_axis(self, loss: Any) -> int | None:
        return softmax_axis(loss)

    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        spec = self.session.spec.evaluation
        return export(self.net, spec, self.input_signatures(data), folder, format)

    def _input_casts(self, stage: Any) -> Mapping[str, Any]:
        casts: Mapping[str, Any] = stage.network.casts  # those of the stage are of losses
        return casts

    def values(self, gradients: bool = False) -> dict[str, Numbers]:
        known = {name: p for name, p in self.session.model.parameters.items() if p._data is not None}
        if gradients:
            return {name: p.list_grad()[0].asnumpy() for name, p in known.items() if p.grad_req != "null"}
        return {name: p.list_data()[0].asnumpy() for name, p in known.items()}

    def set_values(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.session.model.parameters[name].set_data(value)

    def preserved(self) -> AbstractContextManager[None]:
        session = self.session
        return preserve_state(session.model.parameters.values(), session.trainers.get().values())

    def operator_times(
        self, run: Callable[[], Any], steps: int
    ) -> tuple[list[tuple[str, float, float]], str]:
        """Run steps under MXNet's profiler; no file is left behind.

        If the user is running a profile, it ends; the next one needs a new ``set_config``.
        """
        # MXNet deletes the file with the name of its trace, and writes a trace there when the process ends.
        # So the name is in a temporary folder, which is deleted by then. Never use os.devnull: with root's
        # rights, this would delete the machine's /dev/null.
        with tempfile.TemporaryDirectory(prefix="multifit-") as folder:
            trace = os.path.join(folder, "trace.json")
            try:
                mx.nd.waitall()
                mx.profiler.set_config(**PROFILER_ON, filename=trace)
            except mx.MXNetError as error:  # after mx.profiler.dump() it cannot be set up again
                reason = f"MXNet's profiler cannot be used in this process ({last_line(error)})"
                return [], f"no operators are shown: {reason}"
            try:
                mx.profiler.set_state("run")
                run()
                mx.nd.waitall()
            finally:
                mx.profiler.set_state("stop")
                statistics = json.loads(mx.profiler.dumps(reset=True, format="json"))
                mx.profiler.set_config(**PROFILER_OFF, filename=trace)
        times = [
            (_short_name(name), values["Count"] / steps, values["Total"] / steps)
            for name, values in statistics["Time"].get("operator", {}).items()
            if name != "WaitForVar"  # waiting is not work of the device
        ]
        return sorted(times, key=lambda row: -row[2]), ""


def _short_name(name: str) -> str:
    """Return a name that fits a table: operators that a graph runs in a row are named by all their names."""
    operators = name.strip("[]").split(",")  # the names are in brackets for some graphs
    if len(operators) == 1:
        return name
    shown = next((each for each in operators if each.startswith("_backward")), operators[0])
    return f"{shown} and {len(operators) - 1} more in a row"
