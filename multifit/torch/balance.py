"""Balances the losses of tasks, or their gradients."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..balance import Balance, GramianMethod, compared
from ..balance.answers import ask, ask_weights
from ..balance.compared import NOTHING_SHARED, ChosenParameters, summed
from ..balance.protocol import Measured, measured_losses
from ..balance.tasks import Tasks, check_method, tasks_of, weight_figure
from ..balance.weighing import weigh_losses
from ..checks.trainers import listing
from ..distributed import World
from ..engines import Timer, untimed
from ..errors import SpecError, counted, memory
from ..protocols import Numbers
from ..spec import TaskSpec
from ..state import RunState
from .branch import Branch, Feature, combined
from .sums import DeviceSum, Means

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
) -> AnyBalancer | None:
    """Return the balancer that runs a method, or None if `method` is None.

    Raises SpecError if `method` is not a method of balancing, or cannot weigh the losses of `spec`.
    """
    if method is None:
        return None
    check_method(method, spec)
    if method.needs == "gramian":
        return GradientBalancer(method, spec, device, world, parameters)
    return LossBalancer(method, spec, device, world)


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


class LossBalancer:
    """Runs a method that needs no gradients: its weights multiply the objectives.

    On a GPU, a method computes there if it can, so that nothing waits for the losses; everywhere else, it
    computes with NumPy. The losses are those of all ranks of `world`. The weights and what the method
    remembers are kept over all fits. In a batch for which no weights are computed, each task has its last
    one. Raises SpecError if the method cannot weigh the losses of `spec`.

    `means` are each task's weight, in the batches in which the task takes part. `looks_back` says whether
    :meth:`after_update` must be called.
    """

    def __init__(self, method: Balance, spec: TaskSpec, device: torch.device, world: World) -> None:
        self.method, self.tasks = method, tasks_of(method, spec)
        self.looks_back = callable(getattr(method, "after_update", None))
        self._device, self._world, count = device, world, len(self.tasks.names)
        self._on_host = device.type in ON_HOST or not method.on_device
        self._F: Any = np if self._on_host else Operators()
        self._ones = self._array(np.ones(count))
        self._weights = self._array(self.tasks.first_weights(method))
        start = ask(method, "start", count)
        self._memory = {name: self._array(each) for name, each in start.items()}
        self._is_new, self._is_due = True, False
        self._measured: Measured | None = None
        self._new_figures()

    def fork(self) -> LossBalancer:
        """Return a balancer that continues from this one's state without changing it."""
        fork = copy.copy(self)  # arrays are replaced, never changed
        fork._new_figures()
        return fork

    def weigh(self, result: Any, state: RunState) -> None:
        """Multiply the objectives of a batch by the weights of their tasks."""
        self._is_due = self._is_new or state.step % self.method.every == 0
        self._is_new = False
        weights, there = self._weigh(result, state) if self._is_due else (self._weights, None)
        there = tasks_with_labels(result, self.tasks) if there is None else there
        self.means[0].add(weight_rows(weights, there))
        numbers = weights.tolist() if self._on_host else weights.unbind()
        for key, objective in result.objectives.items():
            number = numbers[self.tasks.of_loss[key]]
            factor = number if self._on_host else number.to(objective.dtype)
            result.objectives[key] = objective * factor

    def _weigh(self, result: Any, state: RunState) -> tuple[Any, Any]:
        """Return new weights, and 1 for each task that takes part, else 0; None for those with labels."""
        count, epochs, F = len(self.tasks.names), self._ones * state.epoch, self._F
        if self.method.needs == "nothing" and not self.method.on_device:
            self._measured = Measured(count, self._ones, self._ones, epochs, state.step)
            weights, self._memory = ask_weights(self.method, self._measured, self._memory)
            self._weights = np.asarray(weights)
            return self._weights, None
        losses = (
            self._losses(result)
            if self.method.needs == "losses"
            else self._array(tasks_with_labels(result, self.tasks))
        )
        measured = measured_losses(F, count, losses, epochs, state.step)
        measured = self._measured = measured._replace(present=measured.present * self._ones)  # in float64
        options: dict[str, Any] = {"counted": len(self.tasks.weighed)}
        if not self._on_host:
            options["shape"] = lambda value: tuple(value.shape) if isinstance(value, Tensor) else None
        weights, self._memory = weigh_losses(self.method, measured, self._weights, self._memory, **options)
        self._weights = F.where(measured.present == 1, weights, self._weights)
        return weights, (losses != 0) * self._ones

    def after_update(self, again: Any) -> None:
        """Give the method the losses of the same batch, `again`, computed after the update."""
        if self._is_due:
            losses = self._losses(again)
            self._memory = ask(self.method, "after_update", self._measured, losses, self._memory)

    def never_met(self) -> None:
        """Return None: no gradients are compared."""

    def state(self) -> dict[str, Any]:
        """Return the weights and what the method remembers, for a checkpoint: NumPy arrays."""
        memory = {name: _saved(each) for name, each in self._memory.items()}
        return {"weights": _saved(self._weights), "memory": memory, "new": self._is_new}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._weights, self._is_new = self._array(state["weights"]), state["new"]
        self._memory = {name: self._array(each) for name, each in state["memory"].items()}

    def _new_figures(self) -> None:
        self.means = (Means([weight_figure(name) for name in self.tasks.names]),)

    def _losses(self, result: Any) -> Any:
        """Return the tasks' losses over all ranks."""
        with torch.no_grad():
            losses = task_losses(result, self.tasks, self._device).double()
        if not self._world.alone:
            self._world.all_reduce_tensors([losses])
        return losses.cpu().numpy() if self._on_host else losses

    def _array(self, value: Any) -> Any:
        """Return an array where the method computes; a number stays one."""
        if self._on_host or not isinstance(value, np.ndarray):
            return value
        return torch.as_tensor(value, device=self._device)


def _saved(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def tasks_with_labels(result: Any, tasks: Tasks) -> Any:
    """Return 1 for each task that has a loss with labels in a batch of any rank, else 0, as float64 (K,).

    A loss of weight 0 does not count. It is an array of NumPy, unless labels were counted on a GPU.
    """
    sums = tasks.normalizers(result.scale)
    on_gpu = [each for each in sums if isinstance(each, Tensor) and each.device.type not in ON_HOST]
    if not on_gpu:
        return (np.array([float(each) for each in sums]) != 0).astype(np.float64)
    device = on_gpu[0].device
    return (torch.stack([torch.as_tensor(each, device=device).double() for each in sums]) != 0).double()


def weight_rows(weights: Any, there: Any) -> Any:
    """Return the rows to add to the means of weights; `there` is 1 for tasks that take part, else 0."""
    devices = [each.device for each in (weights, there) if isinstance(each, Tensor)]
    if not devices:
        return np.stack([weights * there, there])
    weights, there = (torch.as_tensor(each, device=devices[0]) for each in (weights, there))
    return torch.stack([weights * there, there])


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

    def __init__(self, world: World) -> None:
        self._world = world
        self.sharing: set[tuple[int, ...]] = set()  # the tasks that take the same features
        self._features: list[Feature] | None = None  # in the batches that are measured

    def measure(self, batch: Pass, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian, each summed over the ranks."""
        self._features = batch.branch.features(batch.scale)
        losses, products = batch.read(tasks, [each.rows @ each.rows.T for each in self._features])
        gramian = np.zeros((len(losses), len(losses)))
        for feature, product in zip(self._features, products):
            gramian[np.ix_(feature.tasks, feature.tasks)] += product
            self.sharing.add(tuple(feature.tasks))
        return summed(self._world, losses, gramian)

    def combine(self, batch: Pass, weights: Numbers) -> None:
        """Pass the weighted sum of the features' gradients back."""
        features, self._features = self._features, None
        batch.branch.pass_back(batch.branch.features(batch.scale) if features is None else features, weights)


class ParameterGradients(FeatureGradients):
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the shared ones whose names match `pattern`, or all shared ones if it is
    None. With several ranks, the compared rows are summed over the ranks. Raises SpecError if a pattern
    matches none.
    """

    def __init__(self, pattern: str | None, parameters: Mapping[str, Tensor], world: World) -> None:
        super().__init__(world)
        self._parameters, self._names = parameters, {each: name for name, each in parameters.items()}
        self._chosen = ChosenParameters(pattern, parameters, world)
        self._shared: list[Tensor] = []  # in the batches that are measured
        self._rows = torch.empty(0)  # the tasks' gradients of these, one after the other

    def measure(self, batch: Pass, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian of the gradients summed over all ranks."""
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
        return summed(self._world, losses, gramian if self._world.first else np.zeros_like(gramian))

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


class GradientBalancer(compared.GradientBalancer):
    """Runs a method that needs the inner products of the tasks' gradients, of all ranks of `world`.

    `parameters` are those of the net and its losses by name.
    """

    def __init__(
        self,
        method: GramianMethod,
        spec: TaskSpec,
        device: torch.device,
        world: World,
        parameters: Mapping[str, Tensor],
    ) -> None:
        on = getattr(method, "on", "parameters")
        if any(name.startswith("_orig_mod.") for name in parameters):
            raise SpecError(COMPILED)
        gradients: Any = FeatureGradients(world)
        if on != "features":
            gradients = ParameterGradients(None if on == "parameters" else on, parameters, world)
        super().__init__(
            method,
            spec,
            gradients,
            lambda batch, tasks, weights: weight_rows(weights, tasks_with_labels(batch.result, tasks)),
            DeviceSum,
        )
        self._parameters, self._device, self._trained = parameters, device, set(parameters.values())

    def differentiate(self, result: Any, state: RunState, scale: float = 1.0, timer: Timer = untimed) -> None:
        """Add a batch's gradients to `grad` of all parameters; all ranks must call this.

        Shared parameters get the weighted sum of the tasks' gradients, and a task's own parameters the
        gradient of its loss, all multiplied by `scale`. Raises SpecError if the tasks share no parameter.
        """
        with torch.no_grad():
            self.combine(Pass(result, self._branch(result, self._trained), scale, self._device), state)

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
        for key in self._weighed:
            objective = result.objectives.get(key)
            if objective is not None and objective.requires_grad:
                losses[self.tasks.of_loss[key]].append(objective)
        branch = Branch(losses, trained)
        if result.objectives and not branch.shared and sum(map(bool, losses)) != 1:
            raise SpecError(NOTHING_SHARED)
        return branch


AnyBalancer = LossBalancer | GradientBalancer
