"""What a step computed from a batch, in tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Sequence

import torch

from ...gluon.data.batches import Batch
from ...gluon.execution.loss_weights import BatchLossScale
from ...gluon.execution.result import StepResult
from ...spec import TaskSpec
from .changed_net import ChangedNet
from .tensors import to_arrays

Tensors = dict[str, torch.Tensor]


@dataclass
class Result:
    """What a stage computed from a batch: the net's outputs, what the losses returned, and the objectives.

    `trained` are the names of the parameters that the objectives may depend on. The sum of all `objectives`
    is minimised; `objective_losses` are the losses that each is of. `scale` holds the batch's weights and
    normalisers. `changed` are the outputs as handlers have changed them, if they have.
    """

    spec: TaskSpec
    batch: Batch
    outputs: Tensors
    parts: Tensors
    trained: list[str]
    objectives: list[torch.Tensor] = field(default_factory=list)
    objective_losses: list[tuple[str, ...]] = field(default_factory=list)
    scale: BatchLossScale | None = None
    changed: ChangedNet | None = None

    def add(self, objective: torch.Tensor, losses: Sequence[str]) -> None:
        """Add a tensor to the objectives, and the losses that it is of."""
        self.objectives.append(objective)
        self.objective_losses.append(tuple(losses))

    def detach(self) -> None:
        """Free what the backward pass needed."""
        self.objectives, self.changed = [], None
        self.outputs = {name: tensor.detach() for name, tensor in self.outputs.items()}
        self.parts = {name: tensor.detach() for name, tensor in self.parts.items()}

    @cached_property
    def on_host(self) -> StepResult:
        """The same in NDArrays, for handlers and metrics; this waits for the device."""
        if not self.batch.contexts:
            return StepResult(self.spec, self.batch)
        outputs, parts = to_arrays(self.outputs), to_arrays(self.parts)
        return StepResult(self.spec, self.batch, [outputs], [parts])

    def views(self) -> dict[str, Any]:
        """Return ``pred``, ``label`` and ``loss``, as :meth:`StepResult.views` does."""
        return self.on_host.views()
