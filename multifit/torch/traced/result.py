"""What a step computed, and what handlers and later batches take from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ...gluon.data.batch import Batch
from ...gluon.execution import changed_objective
from ...gluon.execution.carried_state import CarriedState as GluonCarriedState
from ...gluon.execution.loss_weights import BatchLossScale
from ...gluon.execution.result import StepResult
from ...protocols import Numbers
from ...spec import TaskSpec
from .backward_pass import BackwardPass
from .shared_features import SharedFeatures
from .tensors import Tensors, copied, to_array, to_arrays, to_tensor


class ChangedOutputs:
    """The outputs of a batch as handlers change them, and their backward pass; waits for the device.

    `outputs` are the changed outputs, which losses and metrics see, and `arrays` are the same as NDArrays.
    `leaves` are the outputs that receive gradients; :meth:`objectives` takes these gradients. `trained` are
    the names of the parameters on which the net's own outputs depend.
    """

    def __init__(self, change: Any, outputs: Tensors, slots: Mapping[str, Any], trained: list[str]) -> None:
        self._before, self.trained = outputs, trained
        self._change = changed_objective.ChangedOutputs(change, to_arrays(outputs), slots)
        self.arrays = self._change.arrays
        device = next(iter(outputs.values())).device
        self.outputs = {name: to_tensor(array, device) for name, array in self.arrays.items()}
        self._real = [name for name, tensor in self.outputs.items() if tensor.is_floating_point()]
        self.leaves = [self.outputs[name].requires_grad_() for name in self._real]

    def objectives(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return numbers whose gradients are those of the net's own outputs."""
        heads = {name: to_array(gradient) for name, gradient in zip(self._real, gradients)}
        through = self._change.gradients(heads).items()
        return [
            weighted(self._before[name], head) for name, head in through if self._before[name].requires_grad
        ]


def weighted(tensor: torch.Tensor, gradient: Any) -> torch.Tensor:
    """Return a number whose gradient with respect to a tensor is `gradient`, an NDArray."""
    return (tensor * to_tensor(gradient, tensor.device)).sum()


class CarriedState:
    """Keeps the outputs of a stage's last batch for the next one, without waiting for the device.

    `gluon` is MXNet's state, which checks shapes, is saved in checkpoints, and is reset. `given` are the
    values with which the running batch began, if they are not those in its slots.
    """

    def __init__(self, gluon: GluonCarriedState) -> None:
        self._gluon, self._left = gluon, Tensors()
        self.given = Tensors()
        gluon.other_engine_state = self

    def begin(self) -> None:
        """Begin a batch with the state that the last one left."""
        self.given = self._left

    def keep(self, batch: Batch, outputs: Tensors) -> None:
        """Remember the outputs of a batch; raises SpecError if one does not have the shape of its slot."""
        self._gluon.check(batch, [outputs])
        self._gluon.keep(batch, batch.slots)  # the next batch must have as many samples
        # copied, because an output may share its memory with a batch, and a CUDA graph overwrites its outputs
        self._left = {name: outputs[name].detach().clone() for name in self._gluon.shapes}

    def fetch(self) -> None:
        """Copy the state to MXNet's state; this waits for the device."""
        if self._left:
            self._gluon.load([to_arrays(self._left)])

    def clear(self) -> None:
        """Discard the state."""
        self._left = {}


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
