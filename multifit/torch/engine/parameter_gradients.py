"""Compares the tasks' gradients of the parameters that they share."""

from __future__ import annotations

import copy
from typing import Any, Mapping, Sequence

import numpy as np
import torch

from ...errors import SpecError
from ...gluon.balance.task_gradients import matching, nothing_selected
from ...gluon.balance.tasks import Tasks
from .parting import Numbers, Parting, numbers, product
from .tensors import to_array, to_tensor


class ParameterGradients:
    """Compares exact gradients, at the cost of a backward pass for each task.

    Those of parameters whose names match `pattern` are compared; of all that are shared if it is None. Where
    gradients are added up over several batches, so are those of each task. Raises SpecError if a pattern
    matches none.
    """

    repeats = True

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any], device: torch.device) -> None:
        self._pattern, self._device = pattern, device
        self._chosen = set(parameters) if pattern is None else set(matching(pattern, parameters))
        self._rows: list[torch.Tensor] = []  # by parameter, in the batches that are measured
        self._losses: list[tuple[list[str], torch.Tensor]] = []  # of the batches whose rows are added

    def fork(self) -> ParameterGradients:
        """Return what goes on from here without changing this; rows are replaced, never changed."""
        return copy.copy(self)

    def measure(self, result: Any, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the tasks' losses (K,) and Gramian (K, K) in a batch; reads them at once."""
        (parting,) = result.partings
        self._rows = parting.parameter_rows(len(tasks.names))
        gramian, losses = self._read(parting, result.objectives)
        return tasks.losses(result, losses), gramian

    def combine(self, partings: Sequence[Any], weights: Numbers) -> None:
        """Combine the rows, or in a batch that was not measured pass the weighted sum back."""
        (parting,) = partings
        if self._rows:
            parting.combine(self._rows, weights)
        else:
            parting.backward(weights)
        self.forget()

    def add(self, result: Any, tasks: Tasks, weights: Numbers) -> None:
        """Add the tasks' gradients and losses of a batch to those that wait; reads nothing.

        The parameters have their sum by the `weights` that were the last.
        """
        (parting,) = result.partings
        rows = parting.parameter_rows(len(tasks.names))
        parting.combine(rows, weights)
        self._rows = list(torch._foreach_add(self._rows, rows)) if self._rows else rows
        pairs = zip(result.objective_losses, result.objectives)
        self._losses = [*self._losses, *((list(keys), objective.detach()) for keys, objective in pairs)]

    def measure_added(self, partings: Sequence[Any], tasks: Tasks, batches: int) -> tuple[Numbers, Numbers]:
        """Return losses and products of what was added; of the means, if `batches` are not 1."""
        (parting,), losses = partings, np.zeros(len(tasks.names))
        gramian, values = self._read(parting, [objective for _, objective in self._losses])
        for key, value in zip((key for keys, _ in self._losses for key in keys), values):
            losses[tasks.of_loss[key]] += value / batches
        return losses, gramian / batches**2

    @property
    def waits(self) -> bool:
        """Whether gradients were added up and not combined."""
        return bool(self._rows)

    def forget(self) -> None:
        """Begin to add anew."""
        self._rows, self._losses = [], []

    def state(self) -> dict[str, Any]:
        """Return what waits, as NDArrays; this waits for the device."""
        rows = [[to_array(row) for row in self._rows]] if self._rows else []
        return {"rows": rows, "losses": [[keys, to_array(objective)] for keys, objective in self._losses]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, of either engine."""
        self._rows = [to_tensor(row, self._device) for rows in state["rows"] for row in rows]
        self._losses = [(keys, to_tensor(each, self._device)) for keys, each in state["losses"]]

    def _read(self, parting: Parting, losses: Sequence[torch.Tensor]) -> tuple[Numbers, list[float]]:
        """Return the Gramian of the rows of the chosen parameters, and losses; reads them at once."""
        chosen = [row for name, row in zip(parting.parameters, self._rows) if name in self._chosen]
        if not chosen:
            raise SpecError(nothing_selected(self._pattern))
        count = len(chosen[0])
        gramian = torch.stack([product(rows).double() for rows in chosen]).sum(0)
        values = numbers([gramian, *losses])
        return values[: count * count].reshape(count, count), values[count * count :].tolist()
