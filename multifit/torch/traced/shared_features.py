"""The tensors where the tasks of a batch branch, and each task's gradients with respect to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...gluon.execution.split_graph import split_measured
from ...protocols import Numbers
from .backward_pass import BackwardPass
from .scaling import Scaling, Unscaled
from .tensors import Tensors


class SharedFeatures:
    """The tensors of a batch where the tasks branch, with the tasks' copies of them.

    `parameters` are those of the body, by name. `rows`, once set, are the tasks' gradients with respect to
    each tensor, of shape (its tasks, its size). `gradients`, once combined, are those of the parameters.
    `scaling` computes gradients.
    """

    def __init__(
        self, copies: Sequence[Mapping[int, torch.Tensor]], through_body: BackwardPass, parameters: Tensors
    ) -> None:
        self._through_body: BackwardPass | None = through_body
        self._shapes = [next(iter(of_feature.values())).shape for of_feature in copies]
        self._tasks = [list(of_feature) for of_feature in copies]
        self.copies = [copy for of_feature in copies for copy in of_feature.values()]
        self.parameters, self.gradients = parameters, Tensors()
        self.scaling: Scaling = Unscaled()
        self.rows: list[torch.Tensor] = []

    def set_gradients(self, gradients: Sequence[torch.Tensor]) -> None:
        """Set the gradients of the copies, in order."""
        rest = iter(gradients)
        self.rows = [torch.stack([next(rest).reshape(-1) for _ in tasks]) for tasks in self._tasks]

    def measure(self, losses: Sequence[torch.Tensor]) -> tuple[list[Any], list[float]]:
        """Return the tasks and the Gramian of each tensor's gradients, and the losses, all read in one go."""
        products = [product(rows).reshape(-1) for rows in self.rows]
        return split_measured(numbers([*products, *losses]), self._tasks)

    def backward(self, weights: Numbers) -> None:
        """Pass the weighted sum of the tasks' gradients back through the body."""
        heads = [
            combined(rows, weights[tasks]).reshape(shape)
            for rows, tasks, shape in zip(self.rows, self._tasks, self._shapes)
        ]
        self.gradients = dict(zip(self.parameters, self._passed_back(heads)))

    def parameter_rows(self, count: int) -> Tensors:
        """Return for each parameter the tasks' gradients, of shape (count, size).

        There is a backward pass for each task.
        """
        rows = {name: each.new_zeros((count, each.numel())) for name, each in self.parameters.items()}
        for task in sorted({task for tasks in self._tasks for task in tasks}):
            heads = [
                (own[tasks.index(task)] if task in tasks else own.new_zeros(own.shape[1])).reshape(shape)
                for own, tasks, shape in zip(self.rows, self._tasks, self._shapes)
            ]
            for row, gradient in zip(rows.values(), self._passed_back(heads)):
                row[task] = gradient.reshape(-1)
        return rows

    def detach(self) -> None:
        """Free what the backward pass needed, and the gradients, which are stored elsewhere by now."""
        self._through_body, self.copies, self.rows, self.gradients = None, [], [], {}

    def _passed_back(self, heads: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the parameters' gradients for gradients of the features."""
        assert self._through_body is not None
        return self.scaling.gradients(self._through_body, heads)


def product(rows: torch.Tensor) -> torch.Tensor:
    """Return the inner products of rows; lower precisions are computed in float32."""
    exact = rows if rows.dtype == torch.float64 else rows.float()
    return exact @ exact.T


def combined(rows: torch.Tensor, weights: Numbers) -> torch.Tensor:
    """Return the weighted sum of rows."""
    exact = rows if rows.dtype == torch.float64 else rows.float()
    factors = torch.from_numpy(weights).to(exact.device, exact.dtype, non_blocking=True)
    return (factors @ exact).to(rows.dtype)


def numbers(tensors: Sequence[torch.Tensor]) -> Numbers:
    """Return the elements of tensors as float64, read at once; this waits for the device."""
    return torch.cat([each.detach().double().reshape(-1) for each in tensors]).cpu().numpy()
