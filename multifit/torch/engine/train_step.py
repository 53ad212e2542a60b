"""One training step on torch: fetch, forward, backward, hold, change, clip, update, measure."""

from __future__ import annotations

from typing import Any

from ...events import TrainingHooks
from ...gluon.data.batches import Batch
from ...gluon.engine import AnySplitter
from ...gluon.execution.result import StepResult
from ...state import RunState
from .gradients import Gradients
from .joint_gradients import JointGradients
from .parameters import Parameters
from .result import Result
from .scaling import Scaling
from .stage import Stage
from .trainers import Trainers


class TrainStep:
    """Trains on one batch.

    `hooks` are what handlers change, if anything. `gradients` are those of the last batch that no trainer has
    used.
    """

    def __init__(
        self,
        splitter: AnySplitter,
        stage: Stage,
        trainers: Trainers,
        parameters: Parameters,
        scaling: Scaling,
        joint: JointGradients,
        state: RunState,
        hooks: TrainingHooks | None,
    ) -> None:
        self._splitter, self._stage, self._trainers = splitter, stage, trainers
        self._parameters, self._scaling, self._state = parameters, scaling, state
        self._joint = joint
        self._holding = hooks if hooks and hooks.active("hold_update") else None
        self._changing = hooks if hooks and hooks.active("change_gradients") else None
        self.gradients = Gradients({})

    def __call__(self, raw: Any) -> Result:
        """Train on a batch, as the loader yielded it."""
        return self.train(self._splitter.split(raw))

    def first(self, checked: StepResult) -> Result:
        """Train on the first batch, which MXNet has checked."""
        return self.train(checked.batch)

    def train(self, batch: Batch) -> Result:
        """Train on a batch that is named, cast and placed."""
        self._trainers.moved = True  # running statistics, at least
        result = self._stage.run(batch, self._state)
        self.backward(result)
        if self._joint.hold(self.held(result), self.gradients):
            self._scaling.skip()
        else:
            self._joint.add_up(self.gradients)
            self.change()
            self._scaling.step(self.update)
            self.gradients = Gradients({})
        self._stage.measure(result)
        return result

    def backward(self, result: Result) -> None:
        """Compute the gradients of the objectives; where they reach nothing, these are 0."""
        if not result.objectives:  # no sample is this process's
            self.gradients = Gradients({})
            return
        tensors = [self._parameters.tensors[name] for name in result.trained]
        objectives = [each.sum() for each in result.objectives if each.requires_grad]
        gradients = self._scaling.gradients(objectives, tensors)
        self.gradients = Gradients(dict(zip(result.trained, gradients)))
        result.detach()

    def held(self, result: Result) -> bool:
        """Whether a handler holds the update back; it may then set values of the net."""
        if self._holding is None:
            return False
        self._parameters.give_back()
        held = self._holding.hold_update(loss=result.on_host.named()["loss"])
        if held:
            self._parameters.take()
        return held

    def update(self) -> None:
        """Move the parameters of the trainers that are due."""
        self._trainers.update(self.gradients.tensors, self._state.step)

    def change(self) -> None:
        """Let handlers change the gradients in place."""
        if self._changing is not None:
            self._changing.change_gradients()
            self.gradients.take_changes()
