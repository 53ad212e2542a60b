"""Compare the tasks' gradients with respect to the parameters that they share."""

from __future__ import annotations

import copy
from typing import Any, Mapping, Sequence

import numpy as np
import torch

from ...distributed import World
from ...gluon.balance.chosen_parameters import ChosenParameters
from ...gluon.balance.task_gradients import summed
from ...gluon.balance.tasks import Tasks
from ...protocols import Numbers
from .collectives import all_reduce
from .shared_features import combined, numbers, product
from .tensors import Tensors, to_array, to_arrays, to_tensor


class ParameterGradients:
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the shared ones whose names match `pattern`, or all shared ones if it is
    None. If gradients are added up over several batches, so are those of each task. With several ranks, the
    compared rows are summed over the ranks. Raises SpecError if a pattern matches none.
    """

    repeats = True

    def __init__(
        self, pattern: str | None, parameters: Mapping[str, Any], world: World, device: torch.device
    ) -> None:
        self._parameters, self._world, self._device = parameters, world, device
        self._chosen = ChosenParameters(pattern, parameters, world)
        self._rows: Tensors = {}  # by parameter, in the batches that are measured
        self._losses: list[tuple[list[str], torch.Tensor]] = []  # of the batches whose rows are added
        self.waits = False

    def measure(self, result: Any, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return a batch's losses (K,) and Gramian (K, K) over all ranks; this waits for them."""
        self._rows = {}
        for features in result.features:  # none if this process has no samples
            self._rows = features.parameter_rows(len(tasks.names))
        gramian, values = self._read(len(tasks.names), result.objectives)
        return summed(self._world, tasks.losses(result, values), gramian)

    def combine(self, features: Sequence[Any], weights: Numbers) -> None:
        """Combine the rows; if the batch was not measured, pass the weighted sum back through the body."""
        for each in features:
            if self._rows:
                each.gradients = self._combined(self._rows, weights)
            else:
                each.backward(weights)
        self.forget()

    def add(self, result: Any, tasks: Tasks, weights: Numbers) -> None:
        """Add the tasks' gradients and losses of a batch to those that wait, without reading them.

        The parameters get the batch's gradients weighted by the last `weights`.
        """
        self.waits = True
        for features in result.features:
            rows, before = features.parameter_rows(len(tasks.names)), self._rows
            features.gradients = self._combined(rows, weights)
            both = [name for name in rows if name in before]
            sums = (
                torch._foreach_add(*([each[name] for name in both] for each in (before, rows)))
                if both
                else ()
            )
            self._rows = {**before, **rows, **dict(zip(both, sums))}
        # clones, because the next replay of a CUDA graph overwrites the objectives
        pairs = zip(result.objective_losses, result.objectives)
        self._losses = [*self._losses, *((list(keys), each.detach().clone()) for keys, each in pairs)]

    def measure_added(self, tasks: Tasks, batches: int) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian of what all ranks added, as means over `batches`."""
        losses = np.zeros(len(tasks.names))
        gramian, values = self._read(len(losses), [objective for _, objective in self._losses])
        for key, value in zip((key for keys, _ in self._losses for key in keys), values):
            losses[tasks.of_loss[key]] += value
        losses, gramian = summed(self._world, losses, gramian)
        return losses / batches, gramian / batches**2

    def combine_added(self, weights: Numbers) -> Tensors:
        """Return the weighted sums of the rows, by parameter."""
        gradients = self._combined(self._rows, weights)
        self.forget()
        return gradients

    def forget(self) -> None:
        """Discard what waits, to begin again."""
        self.waits = False
        self._rows, self._losses = {}, []

    def fork(self) -> ParameterGradients:
        """Return a copy that does not change this one: rows are replaced, never changed."""
        return copy.copy(self)

    def state(self) -> dict[str, Any]:
        """Return what waits, as NDArrays; this waits for the device."""
        losses = [[keys, to_array(objective)] for keys, objective in self._losses]
        return {"waits": self.waits, "rows": [to_arrays(self._rows)], "losses": losses}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, of either engine."""
        self.waits = state["waits"]
        every = (pair for rows in state["rows"] for pair in rows.items())
        self._rows = {name: to_tensor(row, self._device) for name, row in every}
        self._losses = [(keys, to_tensor(each, self._device)) for keys, each in state["losses"]]

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
            all_reduce(self._world, rows)
        gramian = torch.stack([product(each).double() for each in rows]).sum(0)
        values = numbers([gramian, *losses])
        products = values[: tasks * tasks].reshape(tasks, tasks)
        return products if self._world.first else np.zeros_like(products), values[tasks * tasks :].tolist()

    def _zeros(self, name: str, tasks: int) -> torch.Tensor:
        """Return the rows of a parameter that only other ranks' samples have reached."""
        parameter = self._parameters[name]
        dtype = getattr(torch, np.dtype(parameter.dtype).name)
        return torch.zeros((tasks, int(np.prod(parameter.shape))), dtype=dtype, device=self._device)
