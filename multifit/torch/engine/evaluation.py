"""Evaluate and predict with torch, if it can."""

from __future__ import annotations

from typing import Any, Callable

from ...errors import Problem, SpecError, raise_problems
from ...gluon.data.batch import Batch
from ...gluon.engine import Engine
from ...gluon.execution.network import Network
from ...gluon.steps.evaluation import Piece
from ...gluon.validation.first_batch import check_first_batch
from ...stages import EVALUATE
from . import refusals
from .compile_mode import CompileMode
from .parameters import Parameters
from .prediction import Predictor
from .result import Result
from .stage import Stage
from .uploads import Uploads


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
