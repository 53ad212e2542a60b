"""Update once for several batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arguments import whole_number
from ..errors import Problem, raise_problems

__all__ = ["GradientAccumulation"]


class GradientAccumulation:
    """Lets gradients add up over `n` batches before all trainers move the parameters once.

    The update is that by the mean of the batches' objectives, as if they had been one batch, BatchNorm
    excepted, which normalises each by itself. Batches are counted from the fit's begin: what an epoch leaves
    over goes on in the next, and what the fit leaves over in the end moves nothing. Handlers that change
    gradients, and clipping, see the sum. Gradients are kept only within the fit.

    Parameters
    ----------
    n : int
        Number of batches per update.

    Raises
    ------
    ValueError
        `n` is no whole number of at least 1; or, at the begin of a fit, a gradient is sparse (a
        TrainerError): MXNet cannot add these up.
    """

    priority = 900.0  # after those that change the objective: all of it is scaled

    def __init__(self, n: int) -> None:
        self.n = whole_number("GradientAccumulation: n", n)
        self._count = 0
        self._parameters: dict[str, Any] = {}
        self._before: dict[str, str] = {}

    def train_begin(self, estimator: Any, **facts: Any) -> None:
        """Let gradients add up."""
        self._count = 0
        trained = {name: p for name, p in estimator.parameters.items() if p.grad_req != "null"}
        raise_problems(_sparse(name) for name, p in trained.items() if p._grad_stype != "default")
        self._parameters = trained
        self._before = {name: parameter.grad_req for name, parameter in self._parameters.items()}
        for parameter in self._parameters.values():
            parameter.grad_req = "add"

    def change_objective(self, estimator: Any, objectives: list[Any], **views: Any) -> list[Any]:
        """Let a batch count for its share of the update."""
        return [objective * (1.0 / self.n) for objective in objectives]

    def hold_update(self, estimator: Any, **facts: Any) -> bool:
        """Count the batch, and say whether more are to come before the update."""
        self._count = (self._count + 1) % self.n
        return self._count > 0

    def train_end(self, estimator: Any, **facts: Any) -> None:
        """Let gradients be written as before."""
        for name, parameter in self._parameters.items():
            parameter.grad_req = self._before[name]
        self._parameters = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the count, and the gradients that wait for the update."""
        found = self._parameters.items() if self._count else ()
        waiting = {name: _gradients(parameter) for name, parameter in found}
        return {"count": self._count, "gradients": {name: own for name, own in waiting.items() if own}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state_dict` returned; the parameters are there already."""
        self._count = state["count"]
        for name, gradients in state["gradients"].items():
            parameter = self._parameters[name]
            for data, own, kept in zip(parameter.list_data(), parameter.list_grad(), gradients):
                kept.copyto(own)
                data._fresh_grad = True  # a trainer takes no gradient but those that a batch has reached


def _sparse(name: str) -> Problem:
    message = f'GradientAccumulation: the gradient of "{name}" is sparse, and MXNet cannot add such up'
    return Problem("trainer", f"{message}; build its layer with sparse_grad=False")


def _gradients(parameter: Any) -> list[Any]:
    """Return a parameter's gradients, one per device; none where no batch has reached it yet."""
    if parameter._data is None or not any(data._fresh_grad for data in parameter.list_data()):
        return []
    return [gradient.copy() for gradient in parameter.list_grad()]
