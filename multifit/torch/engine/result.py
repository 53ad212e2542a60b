"""The result of a step for a batch, in tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Sequence

import torch

from ...gluon.data.batch import Batch
from ...gluon.execution.loss_weights import BatchLossScale
from ...gluon.execution.result import StepResult
from ...protocols import Numbers
from ...spec import TaskSpec
from .backward_pass import BackwardPass
from .changed_outputs import ChangedOutputs
from .shared_features import SharedFeatures
from .tensors import Tensors, copied, to_arrays


@dataclass
class Result:
    """What a stage computed from a batch: the net's outputs, what the losses returned, and the objectives.

    `trained` are the names of the parameters on which the objectives may depend. The sum of all elements of
    the `objectives` is minimised, each times its element of `head_gradients`, if there are any.
    `objective_losses` are, for each objective, the losses that it contains; if losses are balanced, it has an
    element for each. `scale` holds the batch's weights and normalizers. `changed` holds the outputs as
    handlers have changed them, if they have. `features` are those where the tasks branch, if their gradients
    are compared. `carried` is the state with which the batch began, if that is not in its slots.
    `backward_pass` returns the gradients of the objectives with respect to the trained parameters, then those
    of the tasks' copies of features. `captured` says whether the batch ran as CUDA graphs: the next one then
    overwrites its outputs and gradients. `measured` are the keys of the metrics that the graph computed.
    """

    spec: TaskSpec
    batch: Batch
    outputs: Tensors
    parts: Tensors
    trained: list[str]
    objectives: list[torch.Tensor] = field(default_factory=list)
    objective_losses: list[tuple[str, ...]] = field(default_factory=list)
    scale: BatchLossScale | None = None
    changed: ChangedOutputs | None = None
    head_gradients: list[torch.Tensor] | None = None
    features: list[SharedFeatures] = field(default_factory=list)
    carried: Tensors = field(default_factory=Tensors)
    backward_pass: BackwardPass | None = None
    captured: bool = False
    measured: frozenset[str] = frozenset()

    def add(self, objective: torch.Tensor, losses: Sequence[str]) -> None:
        """Add an objective, and the losses that it contains."""
        self.objectives.append(objective)
        self.objective_losses.append(tuple(losses))

    def keep(self) -> None:
        """Copy what the next batch overwrites, unless it was not captured, or is on the host already."""
        if self.captured and "on_host" not in vars(self):
            self.outputs, self.parts = copied(self.outputs), copied(self.parts)

    def detach(self) -> None:
        """Free what the backward pass needed."""
        self.objectives, self.changed, self.backward_pass = [], None, None
        for features in self.features:
            features.detach()
        self.outputs = {name: tensor.detach() for name, tensor in self.outputs.items()}
        self.parts = {name: tensor.detach() for name, tensor in self.parts.items()}

    def read_objectives(self) -> list[float]:
        """Return the elements of all objectives; this waits for the device."""
        return [value for objective in self.objectives for value in objective.tolist()]

    def like_objectives(self, values: Sequence[Numbers]) -> list[torch.Tensor]:
        """Return numbers as tensors with the dtypes of the objectives, on their device."""
        return [
            torch.from_numpy(each).to(objective.device, objective.dtype, non_blocking=True)
            for each, objective in zip(values, self.objectives)
        ]

    def objective_dtypes(self) -> list[str]:
        """Return the names of the objectives' dtypes."""
        return [str(objective.dtype).removeprefix("torch.") for objective in self.objectives]

    @cached_property
    def on_host(self) -> StepResult:
        """The same result in NDArrays, for handlers and metrics; this waits for the device."""
        if not self.batch.contexts:
            return StepResult(self.spec, self.batch)
        self.batch.slots[0].update(to_arrays(self.carried))
        outputs, parts = to_arrays(self.outputs), to_arrays(self.parts)
        return StepResult(self.spec, self.batch, [outputs], [parts], measured=set(self.measured))

    def views(self) -> dict[str, Any]:
        """Return ``pred``, ``label`` and ``loss``, as :meth:`StepResult.views` does."""
        return self.on_host.views()
