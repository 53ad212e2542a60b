"""Balances the losses of tasks, or their gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..balance import GramianMethod, balancers
from ..balance.balancers import (
    NOTHING_SHARED,
    Arrays,
    Balancer,
    ChosenParameters,
    LossBalancer,
    Products,
    Timer,
)
from ..balance.protocol import shape_of_numbers
from ..balance.tasks import Tasks, check_method
from ..distributed import World
from ..handlers.state import RunState
from ..spec import TaskSpec
from ..spec.checks.trainers import listing
from ..utils.errors import SpecError
from ..utils.protocols import Numbers
from ..utils.text import counted, memory
from .branch import Branch, Feature, combined
from .sums import DeviceSum

HIDDEN = (
    "balance: torch.utils.checkpoint with use_reentrant=True hides parameters from autograd's graph, so that "
    "gradients of tasks cannot be compared; pass use_reentrant=False, or use a method of losses, such as DWA"
)
COMPILED = (
    "balance: the net is compiled, which leaves nothing in autograd's graph of where its tasks branch; give "
    "the net itself, whose body may be compiled, or use a method of losses, such as DWA"
)
ON_HOST = {"cpu"}  # kinds of devices on whose numbers NumPy computes, without waiting


def make_balancer(
    method: Any, spec: TaskSpec, device: torch.device, world: World, parameters: Mapping[str, Tensor]
) -> Balancer | None:
    """Return the balancer that runs a method, or None if `method` is None.

    Raises SpecError if `method` is not a method of balancing, or cannot weigh the losses of `spec`.
    """
    if method is None:
        return None
    check_method(method, spec)
    if method.needs == "gramian":
        return GradientBalancer(method, spec, device, world, parameters)
    on_host = device.type in ON_HOST or not method.on_device
    return LossBalancer(method, spec, TorchArrays(device, world, on_host))


class Operators:
    """The operators of torch by NumPy's names, for methods that compute on a device."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def max(values: Tensor, axis: int = 0, keepdims: bool = False) -> Tensor:
        """Return the largest values along an axis."""
        return torch.amax(values, axis, keepdims)

    @staticmethod
    def min(values: Tensor, axis: int = 0, keepdims: bool = False) -> Tensor:
        """Return the smallest values along an axis."""
        return torch.amin(values, axis, keepdims)

    @staticmethod
    def maximum(one: Tensor, other: Any) -> Tensor:
        """Return the larger of two values, element by element."""
        return torch.maximum(one, torch.as_tensor(other, dtype=one.dtype, device=one.device))

    @staticmethod
    def minimum(one: Tensor, other: Any) -> Tensor:
        """Return the smaller of two values, element by element."""
        return torch.minimum(one, torch.as_tensor(other, dtype=one.dtype, device=one.device))


class TorchArrays(Arrays):
    """Reads losses and labels of batches; `on_host` says whether NumPy computes the weights."""

    def __init__(self, device: torch.device, world: World, on_host: bool = True) -> None:
        self._device, self._world, self._on_host = device, world, on_host
        self.F = np if on_host else Operators()

    def shape(self, value: Any) -> tuple[int, ...] | None:
        if self._on_host:
            return shape_of_numbers(value)
        return tuple(value.shape) if isinstance(value, Tensor) else None

    def new_sums(self) -> DeviceSum:
        return DeviceSum()

    def labelled(self, result: Any, tasks: Tasks) -> Any:
        sums = tasks.normalizers(result.scale)
        on_gpu = [each for each in sums if isinstance(each, Tensor) and each.device.type not in ON_HOST]
        if not on_gpu:
            return self.put((np.array([float(each) for each in sums]) != 0).astype(np.float64))
        device = on_gpu[0].device
        return (torch.stack([torch.as_tensor(each, device=device).double() for each in sums]) != 0).double()

    def rows(self, weights: Any, present: Any) -> Any:
        devices = [each.device for each in (weights, present) if isinstance(each, Tensor)]
        if not devices:
            return super().rows(weights, present)
        weights, present = (torch.as_tensor(each, device=devices[0]) for each in (weights, present))
        return torch.stack([weights * present, present])

    def losses(self, result: Any, tasks: Tasks) -> Any:
        with torch.no_grad():
            losses = task_losses(result, tasks, self._device).double()
        if not self._world.alone:
            self._world.all_reduce_tensors([losses])
        return losses.cpu().numpy() if self._on_host else losses

    def multiply(self, result: Any, tasks: Tasks, weights: Any) -> None:
        numbers = weights.tolist() if self._on_host else weights.unbind()
        for key, objective in result.objectives.items():
            number = numbers[tasks.of_loss[key]]
            factor = number if self._on_host else number.to(objective.dtype)
            result.objectives[key] = objective * factor

    def put(self, value: Any) -> Any:
        if self._on_host or not isinstance(value, np.ndarray):
            return value
        return torch.as_tensor(value, device=self._device)

    def read(self, value: Any) -> Any:
        return value.cpu().numpy() if isinstance(value, Tensor) else value


def task_losses(result: Any, tasks: Tasks, device: torch.device) -> Tensor:
    """Return the tasks' losses on this rank, of shape (K,), without waiting for them."""
    losses = [torch.zeros((), device=device)] * len(tasks.names)
    for key, loss in result.objectives.items():
        losses[tasks.of_loss[key]] = losses[tasks.of_loss[key]] + loss
    return torch.stack(losses)


class Pass(NamedTuple):
    """The result of a batch, the graphs of its tasks' losses, and by what their gradients are multiplied."""

    result: Any
    branch: Branch
    scale: float
    device: torch.device

    def read(self, tasks: Tasks, gramians: Sequence[Tensor]) -> tuple[Numbers, list[Numbers]]:
        """Return the tasks' losses on this rank, and Gramians, read at once; this waits for the device."""
        losses = task_losses(self.result, tasks, self.device)
        values = torch.cat([losses, *(each.flatten() for each in gramians)]).cpu().double().numpy()
        squares, at = [], len(losses)
        for each in gramians:
            square = values[at : at + each.numel()] / self.scale / self.scale
            squares.append(square.reshape(each.shape))
            at += each.numel()
        return values[: len(losses)], squares


class FeatureGradients:
    """Compares the gradients with respect to features; there is one backward pass through the body."""

    _features: list[Feature] | None = None  # in the batches that are measured

    def measure(self, batch: Pass, tasks: Tasks) -> tuple[Numbers, Products]:
        """Return the losses, and the inner products of the gradients for each tensor."""
        features = self._features = batch.branch.features(batch.scale)
        losses, products = batch.read(tasks, [each.rows @ each.rows.T for each in features])
        return losses, list(zip([each.tasks for each in features], products))

    def combine(self, batch: Pass, weights: Numbers) -> None:
        """Pass the weighted sum of the features' gradients back."""
        features, self._features = self._features, None
        batch.branch.pass_back(batch.branch.features(batch.scale) if features is None else features, weights)


class ParameterGradients(FeatureGradients):
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the `chosen` ones that tasks share. With several ranks, the compared rows are
    summed over the ranks.
    """

    def __init__(self, chosen: ChosenParameters, parameters: Mapping[str, Tensor], world: World) -> None:
        self._chosen, self._world, self._parameters = chosen, world, parameters
        self._names = {each: name for name, each in parameters.items()}
        self._shared: list[Tensor] = []  # in the batches that are measured
        self._rows = torch.empty(0)  # the tasks' gradients of these, one after the other

    def measure(self, batch: Pass, tasks: Tasks) -> tuple[Numbers, Products]:
        """Return the losses, and the Gramian of the gradients summed over all ranks."""
        names = [self._names[each] for each in batch.branch.shared]
        chosen = self._chosen.reached(names)
        others = sorted(set(names).difference(chosen))
        self._shared = [self._parameters[name] for name in (*chosen, *others)]
        count, sizes = len(tasks.names), [each.numel() for each in self._shared]
        dtype = torch.promote_types(torch.float32, self._shared[0].dtype)
        shape, device = (count, sum(sizes)), self._shared[0].device
        if self._rows.shape != shape or self._rows.dtype != dtype:
            self._rows = torch.empty(shape, dtype=dtype, device=device)
        batch.branch.parameter_rows(self._shared, self._rows, batch.scale)
        compared = self._rows[:, : sum(sizes[: len(chosen)])]
        if not self._world.alone:
            compared = compared.clone(memory_format=torch.contiguous_format)
            self._world.all_reduce_tensors([compared])
        losses, (gramian,) = batch.read(tasks, [compared @ compared.T])
        return losses, [(range(count), gramian)]

    def combine(self, batch: Pass, weights: Numbers) -> None:
        """Combine the rows; if the batch was not measured, pass the weighted sum back through the body."""
        if not self._shared:
            super().combine(batch, weights)
            return
        parts = combined(self._rows, weights).split([each.numel() for each in self._shared])
        for parameter, part in zip(self._shared, parts):
            gradient = part.view(parameter.shape).to(parameter.dtype)
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._shared = []


class GradientBalancer(balancers.GradientBalancer):
    """Weighs the gradients of tasks where autograd's graph branches."""

    of_features, of_parameters = FeatureGradients, ParameterGradients

    def __init__(
        self,
        method: GramianMethod,
        spec: TaskSpec,
        device: torch.device,
        world: World,
        parameters: Mapping[str, Tensor],
    ) -> None:
        if any(name.startswith("_orig_mod.") for name in parameters):
            raise SpecError(COMPILED)
        super().__init__(method, spec, TorchArrays(device, world), world, parameters)
        self._parameters, self._device, self._trained = parameters, device, set(parameters.values())

    def differentiate(
        self, result: Any, state: RunState, scale: float = 1.0, timer: Timer = nullcontext
    ) -> None:
        with torch.no_grad():
            batch = Pass(result, self._branch(result, self._trained), scale, self._device)
            self._combine(result, batch, state)
        result.detach()

    def describe(self, result: Any, trained: Collection[str]) -> str:
        """Return what the tasks share of the `trained` parameters, for the plan.

        The gradients of `result` are not computed yet. Raises SpecError if the tasks share none, or if
        autograd's graph does not contain them all.
        """
        branch = self._branch(result, {self._parameters[name] for name in trained})
        if any(node.name().startswith("CheckpointFunction") for node in branch.nodes):
            raise SpecError(HIDDEN)
        size = sum(each.numel() * each.element_size() for each in branch.shared)
        names = {each: name for name, each in self._parameters.items()}
        return (
            f"tasks share {counted(len(branch.shared), 'parameter')} and branch at "
            f"{counted(len(branch.edges), 'tensor')}; shared: "
            f"{listing([names[each] for each in branch.shared])} ({memory(size)})"
        )

    def _branch(self, result: Any, trained: Collection[Tensor]) -> Branch:
        losses: list[list[Tensor]] = [[] for _ in self.tasks.names]
        for key, task in self.of_loss.items():
            objective = result.objectives.get(key)
            if objective is not None and objective.requires_grad:
                losses[task].append(objective)
        branch = Branch(losses, trained)
        if result.objectives and not branch.shared and sum(map(bool, losses)) != 1:
            raise SpecError(NOTHING_SHARED)
        return branch
