"""Trains a Gluon net with PyTorch: the engine for modules trains what the bridge makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ... import engines
from ...distributed.log_once import LogOnce
from ...engines import Setup
from ...gluon.data.devices import CPU
from ...gluon.handler_arrays import GluonArrays, uniform_loss
from ...gluon.snapshot.parameters import read_trained, write_trained
from ...handlers.state import RunState
from ...spec.plan import Plan
from ...spec.terms import Taker, Term
from .. import engine
from ..devices import be_deterministic, device_of
from ..engine import has
from ..handler_arrays import TorchArrays
from ..snapshot import Snapshot
from .bridge import Bridge, converted
from .export import write

__all__ = ["Engine", "be_deterministic", "export", "has", "host", "make_engine"]


def host(context: Any) -> Any:
    """Return the contexts of the net's own parameters: the CPU, wherever PyTorch runs."""
    device_of(context)  # raises ValueError
    return [CPU]


def make_engine(setup: Setup, state: RunState, log_once: LogOnce) -> engines.Engine:
    """Return the engine of an estimator's batches; raises what the estimator's constructor raises."""
    setup, bridge = converted(setup, log_once)
    return Engine(engine.make_engine(setup, state, log_once).session, log_once, bridge)


def export(of_net: engines.Engine, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
    """Write a Gluon net, which another engine runs, in one of PyTorch's formats."""
    spec = of_net.session.spec.evaluation
    return write(of_net.net, spec, of_net.input_signatures(data), folder, format)


class Engine(engine.Engine):
    """Runs the batches of a module, whose values the Gluon net has after each session."""

    def __init__(self, session: Any, log_once: LogOnce, bridge: Bridge) -> None:
        super().__init__(session, log_once)
        self._bridge, self.snapshot = bridge, BridgedSnapshot(session, bridge)
        self.arrays = BridgedArrays(session.spec, session.model, session.world, bridge)

    @property
    def net(self) -> Any:
        """The Gluon net."""
        return self._bridge.net

    def fork(self, state: RunState) -> Engine:
        return Engine(self.session.fork(state), self._log_once, self._bridge)

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._bridge.running(), super().running():
            yield

    def make_plan(self, run: Any, layers: bool = False) -> Plan:
        plan = super().make_plan(run, layers)
        return replace(plan, devices=tuple([f"{each} (torch)" for each in plan.devices]))

    def publish(self) -> None:
        self._bridge.publish()

    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        with self.running():
            sources = [
                [dict(zip(each, map(_plain, each.values()))) for each in signatures]
                for signatures in self.input_signatures(data)
            ]
        return write(self._bridge.net, self._bridge.spec.evaluation, sources, folder, format)


class BridgedArrays(TorchArrays):
    """Functions on tensors, which know the losses and metrics that were declared."""

    def __init__(self, spec: Any, model: Any, world: Any, bridge: Bridge) -> None:
        super().__init__(spec, model, world)
        self._bridge = bridge
        takers = [*bridge.spec.evaluation.takers, *bridge.spec.takers]
        self._declared = {(type(each), each.key): each for each in takers}

    def smoothed(self, term: Term) -> Term:
        return self._bridge.with_function(term, uniform_loss(self._declared[Term, term.key]))  # type: ignore[arg-type]

    def can_smooth(self, term: Term) -> bool:
        return uniform_loss(self._declared[Term, term.key]) is not None  # type: ignore[arg-type]

    def comparison(self, taker: Taker) -> Mapping[str, Any] | None:
        declared = self._declared.get((type(taker), taker.key), taker)
        return GluonArrays.comparison(self, declared)  # type: ignore[arg-type]


class BridgedSnapshot(Snapshot):
    """Writes checkpoints of the module; the files of trained parameters are Gluon's."""

    final_file, reader = "final.params", "net.load_parameters"

    def __init__(self, session: Any, bridge: Bridge) -> None:
        super().__init__(session)
        self._bridge = bridge

    def identity(self) -> dict[str, Any]:
        session = self._session
        self._session = copy(session)
        self._session.spec = self._bridge.spec  # as it was declared
        try:
            return super().identity()
        finally:
            self._session = session

    def _read_parameters(self, folder: Path, rank: int) -> list[str]:
        lines = super()._read_parameters(folder, rank)
        self._bridge.write_back()
        return lines

    def write_trained(self, path: Path) -> None:
        self._bridge.publish()
        write_trained(path, self._bridge.model)

    def _read_trained(self, path: Path) -> list[str]:
        if path.name == self.net_file:
            differences = super()._read_trained(path)
            self._bridge.write_back()
        else:
            model = self._bridge.model
            differences = read_trained(path, model.net, model.parameters, [CPU])
            self._bridge.read()
        return differences


def _plain(slot: Any) -> Any:
    """Return a shape and a dtype of torch with the name of the dtype."""
    return slot and (slot[0], np.dtype(str(slot[1]).removeprefix("torch.")).name)
