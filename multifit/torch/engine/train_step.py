"""One training step on torch: fetch, forward, backward, clip, update, measure."""

from __future__ import annotations

from typing import Any

import torch

from ...gluon.data.batches import Batch
from ...gluon.engine import AnySplitter
from ...gluon.execution.result import StepResult
from ...state import RunState
from .parameters import Parameters
from .result import Result
from .stage import Stage
from .trainers import Trainers


class TrainStep:
    """Trains on one batch.

    `gradients` are those of the last batch, by the names of the parameters that it reached.
    """

    def __init__(
        self,
        splitter: AnySplitter,
        stage: Stage,
        trainers: Trainers,
        parameters: Parameters,
        state: RunState,
    ) -> None:
        self._splitter, self._stage, self._trainers = splitter, stage, trainers
        self._parameters, self._state = parameters, state
        self.gradients: dict[str, torch.Tensor] = {}

    def __call__(self, raw: Any) -> Result:
        """Train on a batch, as the loader yielded it."""
        return self.train(self._splitter.split(raw))

    def first(self, checked: StepResult) -> Result:
        """Train on the first batch, which MXNet has checked."""
        return self.train(checked.batch)

    def train(self, batch: Batch) -> Result:
        """Train on a batch that is named, cast and placed."""
        result = self._stage.run(batch, self._state)
        self.learn(result)
        self._stage.measure(result)
        return result

    def learn(self, result: Result) -> None:
        """Compute the gradients of the objective, and move the parameters."""
        assert result.objective is not None
        tensors = [self._parameters.tensors[name] for name in result.trained]
        gradients = torch.autograd.grad(
            result.objective.sum(), tensors, allow_unused=True, materialize_grads=True
        )
        self.gradients = dict(zip(result.trained, gradients))
        self._trainers.update(self.gradients, self._state.step)
        result.objective = None  # frees what the backward pass needed
