"""What a step computed from a batch, in tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...gluon.data.batches import Batch
from ...gluon.execution.result import StepResult
from ...spec import TaskSpec
from .tensors import to_arrays

Tensors = dict[str, torch.Tensor]


@dataclass
class Result:
    """What a stage computed from a batch: the net's outputs, what the losses returned, and the objective.

    `trained` are the names of the parameters that the objective may depend on.
    """

    spec: TaskSpec
    batch: Batch
    outputs: Tensors
    parts: Tensors
    objective: torch.Tensor | None
    trained: list[str]

    @cached_property
    def on_host(self) -> StepResult:
        """The same in NDArrays, for handlers and metrics; this waits for the device."""
        outputs, parts = to_arrays(self.outputs), to_arrays(self.parts)
        return StepResult(self.spec, self.batch, [outputs], [parts])

    def views(self) -> dict[str, Any]:
        """Return ``pred``, ``label`` and ``loss``, as :meth:`StepResult.views` does."""
        return self.on_host.views()
