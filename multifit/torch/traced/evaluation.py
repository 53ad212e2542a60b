"""Evaluates and predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...engines.prediction import Piece
from ...errors import Problem, SpecError, raise_problems
from ...gluon.data.batch import Batch
from ...gluon.engine import Engine
from ...gluon.execution.network import Network
from ...gluon.user_code import user_code
from ...gluon.validation.first_batch import check_first_batch
from ...stages import EVALUATE
from . import refusals
from .computation import CompileMode
from .parameters import Parameters
from .program import NET, NetPrograms
from .result import CarriedState, Result
from .stage import Stage
from .tensors import Tensors, Uploads


class Evaluation:
    """Evaluates and predicts with torch, until a graph has no translation.

    MXNet must then run that batch and all later ones.
    """

    def __init__(
        self,
        engine: Engine,
        parameters: Parameters,
        uploads: Uploads,
        mode: CompileMode,
        log_once: Callable[[str], None],
    ) -> None:
        self._engine, self._parameters, self._uploads = engine, parameters, uploads
        self._mode, self._log_once = mode, log_once
        self._stage: Stage | None = None
        self._predictor: Predictor | None = None
        self._on_host = False
        self._made: list[Problem] = []  # if the net's first forward pass has made parameters

    def evaluate_batch(self, raw: Any) -> Result | None:
        """Measure losses and metrics on a batch; return None if MXNet must run it."""
        if self._on_host:
            return None
        engine, stage = self._engine, self._engine.stages[EVALUATE]
        batch = engine.splitter(EVALUATE).split(raw)
        if not stage.checked:
            self._begin(batch)
            raise_problems(check_first_batch(stage, batch)[1])
            self._made = engine.model.ran()
        try:
            raise_problems([*self._made, *refusals.of_graph(stage)])
            result = self._current_stage().run(batch, engine.state)
        except SpecError as error:
            self._leave(error)
            return None
        self._current_stage().measure(result)
        return result

    def predict_batch(self, raw: Any) -> list[Piece] | None:
        """Do what :func:`multifit.gluon.steps.evaluation.predict_batch` does; return None if MXNet must."""
        batch = self._engine.splitter(EVALUATE, labels=False).split(raw)
        if self._on_host:
            return None
        stage = self._engine.stages[EVALUATE]
        if stage.network.paths is None:
            self._begin(batch)
            with stage.recording():
                raise_problems(stage.network.bind(batch.slots[0])[1])
            self._made = self._engine.model.ran()
        if not batch.contexts:  # this process has no samples
            return []
        try:
            return self._current_predictor(stage.network)(batch)
        except SpecError as error:
            self._leave(error)
            return None

    def _begin(self, batch: Batch) -> None:
        """Prepare for a first batch: all ranks need samples of it, and get the first rank's parameters."""
        self._engine.trainers.prepare()
        self._parameters.stale |= not self._engine.shared.are_shared
        self._engine.begin_stage(EVALUATE, batch)

    def _current_predictor(self, network: Network) -> Predictor:
        self._parameters.take_if_stale()
        if self._predictor is None:
            raise_problems([*self._made, *refusals.of_network(network)])
            parts = self._parameters, self._uploads, self._current_stage().carried
            self._predictor = Predictor(network, *parts, self._mode)
        return self._predictor

    def _current_stage(self) -> Stage:
        stage = self._engine.stages[EVALUATE]
        if self._stage is None or self._stage.gluon is not stage:  # other loaders have made a new stage
            self._stage = Stage(stage, self._parameters, self._uploads, self._mode)
        return self._stage

    def _leave(self, error: SpecError) -> None:
        """Leave this batch and all later ones to MXNet."""
        self._on_host = True
        carried = self._current_stage().carried
        if carried is not None:
            carried.fetch()
        self._log_once(f"evaluating runs with MXNet on the CPU: {error}")


class Predictor:
    """Computes a net's declared outputs in evaluation mode; a call raises SpecError if it has no translation.

    `carried` is the state from batch to batch, if there is any.
    """

    def __init__(
        self,
        network: Network,
        parameters: Parameters,
        uploads: Uploads,
        carried: CarriedState | None,
        mode: CompileMode,
    ) -> None:
        self._programs = NetPrograms(network, parameters, False, mode)
        self._uploads, self._carried = uploads, carried

    def __call__(self, batch: Batch) -> list[tuple[dict[str, Any], int]]:
        """Return a list with the outputs as NumPy arrays and the number of samples, for the only device."""
        slots, carried = batch.slots[0], Tensors()
        program = self._programs(slots)
        if self._carried is not None:
            self._carried.begin()
            carried = self._carried.given
        uploaded = {name: slots[name] for name in program.inputs if name not in carried}
        with torch.no_grad(), user_code(lambda: NET, *slots.items()):
            outputs = program.run({**self._uploads(uploaded), **carried}).values
        if self._carried is not None:
            self._carried.keep(batch, outputs)
        # copies: on the CPU, an output may share the memory of an input
        arrays = {name: tensor.detach().to("cpu", copy=True).numpy() for name, tensor in outputs.items()}
        return [(arrays, batch.sizes[0])]
