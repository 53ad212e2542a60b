"""The gradients of a step: of parameters, over ranks, and by task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import torch

from ...balance.compared import ChosenParameters, summed
from ...balance.tasks import Tasks
from ...distributed import World
from ...gluon.distributed.joint_gradients import of_any_rank
from ...protocols import Numbers
from .parameters import Parameters
from .shared_features import combined, numbers, product
from .tensors import Tensors, copied


class Gradients:
    """Holds gradients as tensors, by the names of the parameters, and as the net's arrays for handlers.

    A later batch's gradient replaces an earlier one, or is added to it if the parameter's `grad_req` says so;
    `added` says whether any gradient of the last batch was to be added.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters, self.added = parameters, False
        self._published = False  # whether the net has these gradients, where handlers may change them
        self.tensors = parameters.take_gradients()

    def add(self, computed: Mapping[str, torch.Tensor]) -> None:
        """Add the gradients of a backward pass, or replace those before."""
        self._published = False
        adds = [name for name in computed if self._parameters.adds(name)]
        both, self.added = [name for name in adds if name in self.tensors], bool(adds)
        sums: Iterable[torch.Tensor] = ()
        if both:
            pairs = ([tensors[name] for name in both] for tensors in (self.tensors, computed))
            sums = torch._foreach_add(*pairs)
        self.tensors.update({**computed, **dict(zip(both, sums))})

    def keep(self) -> None:
        """Copy gradients that wait for a later batch: the next replay of a CUDA graph overwrites them."""
        self.tensors = copied(self.tensors)

    def scale(self, names: Iterable[str], factor: float) -> None:
        """Multiply the gradients of some parameters, if they have one, by a factor."""
        present = [name for name in names if name in self.tensors]
        if present:
            scaled = torch._foreach_mul([self.tensors[name] for name in present], factor)
            self.tensors.update(zip(present, scaled))

    def drop(self, names: Iterable[str]) -> None:
        """Discard the gradients of some parameters."""
        for name in names:
            self.tensors.pop(name, None)

    def drop_written(self) -> None:
        """Discard gradients that are not added up, as later batches may not replace them."""
        self.drop([name for name in self.tensors if not self._parameters.adds(name)])

    def keep_trained(self) -> None:
        """Discard the gradients of parameters that were frozen."""
        self.drop(self.tensors.keys() - self._parameters.trained)

    def clear(self) -> None:
        """Discard all gradients."""
        self.tensors = {}

    @property
    def arrays(self) -> dict[str, Any]:
        """The net's own gradient arrays on the CPU, set to the same values; this waits for the device."""
        if not self._published:
            self.give_back()
            self._published = True
        return self._parameters.gradients(self.tensors)

    def give_back(self) -> None:
        """Copy the gradients to the net; this waits for the device."""
        self._parameters.give_back_gradients(self.tensors)

    def take(self) -> None:
        """Copy the gradients from the net."""
        self.tensors, self._published = self._parameters.take_gradients(), False

    def take_changes(self) -> None:
        """Copy the gradients from the net if handlers have read, and so may have changed, them."""
        if self._published:
            self.take()


class JointGradients:
    """Adds up gradients over the ranks, in the same order on all ranks; with one rank, does nothing."""

    def __init__(self, world: World, parameters: Parameters) -> None:
        self._world, self._parameters = world, parameters

    def agree(
        self, held_back: bool, overflowed: bool, gradients: Gradients, due: Collection[str]
    ) -> tuple[bool, bool]:
        """Return whether a handler on any rank holds back the update, and whether any gradient overflowed.

        Also sets ``gradients.added`` if any rank adds gradients up. If the update is not held back,
        parameters that only other ranks' samples have reached get gradients of 0. `due` are the names of the
        parameters whose trainers update.
        """
        if self._world.alone:
            return held_back, overflowed
        names = sorted(due)
        reached_here = [name in gradients.tensors for name in names]
        reached, (held_back, overflowed, gradients.added) = of_any_rank(
            self._world, reached_here, held_back, overflowed, gradients.added
        )
        for name in compress(names, reached):
            if not held_back and name not in gradients.tensors:
                gradients.tensors[name] = torch.zeros_like(self._parameters.tensors[name])
        return held_back, overflowed

    def add_up(self, gradients: Gradients, due: Collection[str]) -> None:
        """Replace gradients by their sums over the ranks."""
        if self._world.alone:
            return
        tensors: dict[int, torch.Tensor] = {}
        for name in sorted(gradients.tensors.keys() & due):
            tensor = gradients.tensors[name].detach().contiguous()
            if tensor.data_ptr() in tensors:  # two parameters may share one gradient
                tensor = tensor.clone()
            tensors[tensor.data_ptr()] = gradients.tensors[name] = tensor
        self._world.all_reduce_tensors(list(tensors.values()))


class ParameterGradients:
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the shared ones whose names match `pattern`, or all shared ones if it is
    None. With several ranks, the compared rows are summed over the ranks. Raises SpecError if a pattern
    matches none.
    """

    repeats = True

    def __init__(
        self, pattern: str | None, parameters: Mapping[str, Any], world: World, device: torch.device
    ) -> None:
        self._parameters, self._world, self._device = parameters, world, device
        self._chosen = ChosenParameters(pattern, parameters, world)
        self._rows: Tensors = {}  # by parameter, in the batches that are measured

    def measure(self, result: Any, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return a batch's losses (K,) and Gramian (K, K) over all ranks; this waits for them."""
        self._rows = {}
        for features in result.features:  # none if this process has no samples
            self._rows = features.parameter_rows(len(tasks.names))
        gramian, values = self._read(len(tasks.names), result.objectives)
        return summed(self._world, tasks.losses(result, values), gramian)

    def combine(self, result: Any, weights: Numbers) -> None:
        """Combine the rows; if the batch was not measured, pass the weighted sum back through the body."""
        for each in result.features:
            if self._rows:
                each.gradients = self._combined(self._rows, weights)
            else:
                each.backward(weights)
        self._rows = {}

    def _combined(self, rows: Tensors, weights: Numbers) -> Tensors:
        return {
            name: combined(own, weights).reshape(self._parameters[name].shape) for name, own in rows.items()
        }

    def _read(self, tasks: int, losses: Sequence[torch.Tensor]) -> tuple[Numbers, list[float]]:
        """Return the Gramian of the ranks' summed rows, 0 on all ranks but the first, and the losses."""
        names = self._chosen.reached(self._rows)
        rows = [self._rows[name] if name in self._rows else self._zeros(name, tasks) for name in names]
        if not self._world.alone:
            rows = [row.clone() for row in rows]
            self._world.all_reduce_tensors(rows)
        gramian = torch.stack([product(each).double() for each in rows]).sum(0)
        values = numbers([gramian, *losses])
        products = values[: tasks * tasks].reshape(tasks, tasks)
        return products if self._world.first else np.zeros_like(products), values[tasks * tasks :].tolist()

    def _zeros(self, name: str, tasks: int) -> torch.Tensor:
        """Return the rows of a parameter that only other ranks' samples have reached."""
        parameter = self._parameters[name]
        dtype = getattr(torch, np.dtype(parameter.dtype).name)
        return torch.zeros((tasks, int(np.prod(parameter.shape))), dtype=dtype, device=self._device)
