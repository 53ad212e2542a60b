"""Trains any ``torch.nn.Module``; see :class:`multifit.engines.Engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parameter import is_lazy
from torch.profiler import ProfilerActivity, profile

from .. import engines
from ..distributed.log_once import LogOnce
from ..engines import CUDA_GRAPHS, Setup
from ..engines.prediction import Piece
from ..handlers.state import RunState
from ..spec.plan import Plan
from ..utils.errors import SpecError, raise_problems
from ..utils.protocols import Numbers
from ..utils.seeding import add_seeder
from ..utils.stages import EVALUATE
from .batch import Batch
from .check import DryRun, check_first_batch, dry_run, preserved
from .devices import be_deterministic, device_of, why_inexact
from .export import export
from .handler_arrays import TorchArrays
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


SOFTMAX = (nn.CrossEntropyLoss, nn.NLLLoss)  # losses whose classes are along axis 1
FUNCTIONS = (F.cross_entropy, F.nll_loss)


class Engine(engines.Engine):
    """Runs batches on the device of the module's own parameters, so that parameters are never copied."""

    session: Any
    arrays: TorchArrays
    export_format, saves_generators = "torch", True

    def __init__(self, session: Session, log_once: LogOnce) -> None:
        arrays = TorchArrays(session.spec, session.model, session.world)
        super().__init__(session, Snapshot(session), arrays, log_once)
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

    def dry_run(self, first: Any, val_data: Any) -> DryRun:
        with self.running():
            return dry_run(self.session, first, val_data)

    def make_plan(self, run: Any, layers: bool = False) -> Plan:
        with self.running():
            return make_plan(self.session, run, self._log_once, layers)

    def wait(self) -> None:
        if self.session.model.device.type == "cuda":  # pragma: no cover - needs a GPU
            torch.cuda.synchronize(self.session.model.device)

    def why_inexact(self) -> str:
        return why_inexact(self.session.model.device)

    def evaluate_batch(self, raw: Any) -> Any:
        result: Any = super().evaluate_batch(raw)
        result.detach()  # an output may be a parameter
        return result

    def predict_batch(self, raw: Any) -> list[Piece]:
        session = self.session
        stage, batch = session.stages[EVALUATE], session.splitter(EVALUATE, labels=False).split(raw)
        if not session.shared.are_shared:
            session.shared.begin_stage(batch, run=self._materialise)
        if not batch.samples:
            return []
        with torch.no_grad():
            self._materialise(batch)
            outputs = stage.forward(batch.slots)
            if stage.carried is not None:
                stage.carried.keep(batch, [outputs])
            return [
                ({name: self.arrays.numpy(outputs[name]) for name in stage.spec.output_names}, batch.samples)
            ]

    def _materialise(self, batch: Batch) -> None:
        """Give lazy parameters the shapes that fit a batch."""
        self.session.model.materialise(lambda: self.session.stages[EVALUATE].call(batch.slots))

    def _begin_evaluation(self, batch: Batch) -> None:
        self.session.shared.begin_stage(batch, run=self._materialise)
        self._materialise(batch)

    def _check_evaluation(self, batch: Batch) -> None:
        raise_problems(check_first_batch(self.session.stages[EVALUATE], batch)[1])

    def _takes_lengths(self, loss: Any) -> bool:
        return False

    def _input_casts(self, stage: Any) -> Mapping[str, Any]:
        casts: Mapping[str, Any] = stage.casts
        return casts

    def _class_axis(self, loss: Any) -> int | None:
        return 1 if isinstance(loss, SOFTMAX) or loss in FUNCTIONS else None

    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        with self.running():
            return export(self.session, self.input_signatures(data), folder, format)

    def values(self, gradients: bool = False) -> dict[str, Numbers]:
        model = self.session.model
        of_batch = {name: p.grad for name, p in model.parameters.items() if p.grad is not None}
        tensors: dict[str, Any] = of_batch if gradients else model.tensors
        known = {name: tensor for name, tensor in tensors.items() if not is_lazy(tensor)}
        return {name: self.arrays.numpy(tensor) for name, tensor in known.items()}

    def set_values(self, values: Mapping[str, Any]) -> None:
        tensors = self.session.model.tensors
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(torch.as_tensor(value))

    def preserved(self) -> AbstractContextManager[None]:
        return preserved(self.session, trainers=True)

    def operator_times(
        self, run: Callable[[], Any], steps: int
    ) -> tuple[list[tuple[str, float, float]], str]:
        """Run steps under PyTorch's profiler, which counts an operator without those that it calls itself.

        On a GPU, the times are those of the GPU.
        """
        activities, on_gpu = [ProfilerActivity.CPU], torch.cuda.is_available()
        if on_gpu:  # pragma: no cover - needs a GPU
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as recorded:
            run()
        name = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        times = [
            (each.key, each.count / steps, getattr(each, name) / 1000 / steps)
            for each in recorded.key_averages()
            if getattr(each, name) > 0
        ]
        return sorted(times, key=lambda row: -row[2]), ""
