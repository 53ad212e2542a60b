"""Accumulate gradients over several batches before each update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...arguments import Count, checked
from ...errors import Problem, raise_problems
from ...events import EstimatorProtocol
from ..optim.gradients import fresh_flags, set_fresh, set_grad_req
from ..optim.parameters import trainable


class GradientAccumulation:
    """Adds up the gradients of `n` batches before all trainers update the parameters.

    An update uses the mean of the batches' gradients, as if they were one batch; only BatchNorm normalises
    each batch by itself. Batches are counted from the beginning of the fit: batches left over at the end of
    an epoch count for the next one, and batches left over at the end of the fit update nothing. Handlers that
    change gradients, and clipping, see the mean.

    Parameters
    ----------
    n : int
        Number of batches per update.

    Raises
    ------
    ValueError
        `n` is not a whole number of at least 1. At the beginning of a fit, a TrainerError is raised if a
        gradient is sparse, which MXNet cannot add up.
    """

    @checked
    def __init__(self, n: Count) -> None:
        self.n = n
        self._count = 0
        self._parameters: dict[str, Any] = {}
        self._grad_reqs: dict[str, str] = {}

    @property
    def batches_per_update(self) -> int:
        """The number of batches by which the step divides the gradients, right before the update.

        Until then they are not divided, so that methods of balancing compare them as for any other batch.
        """
        return self.n

    def train_begin(self, estimator: EstimatorProtocol, **arguments: Any) -> None:
        """Let MXNet add gradients up instead of overwriting them."""
        self._count = 0
        trained: dict[str, Any] = trainable(estimator.parameters)
        raise_problems(_sparse(name) for name, p in trained.items() if p._grad_stype != "default")
        self._parameters = trained
        self._grad_reqs = {name: parameter.grad_req for name, parameter in trained.items()}
        for parameter in trained.values():
            set_grad_req(parameter, "add")

    def hold_update(self, estimator: EstimatorProtocol, **arguments: Any) -> bool:
        """Count the batch, and return whether the update waits for more."""
        for name, parameter in trainable(estimator.parameters).items():
            if (
                parameter.grad_req == "write" and parameter._data is not None
            ):  # another handler has unfrozen it
                self._add(name, parameter)
        self._count = (self._count + 1) % self.n
        return self._count > 0

    def train_end(self, estimator: EstimatorProtocol, **arguments: Any) -> None:
        """Let MXNet overwrite gradients again, if it did before."""
        for name, parameter in self._parameters.items():
            if parameter.grad_req == "add":  # else another handler has frozen it
                set_grad_req(parameter, self._grad_reqs[name])
        self._parameters = {}

    def _add(self, name: str, parameter: Any) -> None:
        """Add later gradients of a parameter to its first one, which the backward pass has just written."""
        self._parameters[name], self._grad_reqs[name] = parameter, "write"
        first = [gradient.copy() for gradient in parameter.list_grad()]
        parameter.grad_req = "add"
        for gradient, written in zip(parameter.list_grad(), first):
            gradient[:] = written

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches since the last update, and their gradients."""
        waiting = self._parameters if self._count else {}
        gradients = {name: _gradients(parameter) for name, parameter in waiting.items()}
        return {
            "count": self._count,
            "gradients": {name: g for name, g in gradients.items() if g},
            "whole": True,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, into the parameters of the running fit."""
        self._count = state["count"]
        share = 1 if "whole" in state else self.n  # older checkpoints hold gradients that are divided already
        for name, gradients in state["gradients"].items():
            parameter = self._parameters[name]
            for data, gradient, saved in zip(parameter.list_data(), parameter.list_grad(), gradients):
                gradient[:] = saved.as_in_context(gradient.context) * share
                set_fresh(data, True)  # trainers ignore gradients that no batch has reached


def _sparse(name: str) -> Problem:
    message = f'GradientAccumulation: the gradient of "{name}" is sparse, and MXNet cannot add such gradients'
    return Problem("trainer", f"{message}; build its layer with sparse_grad=False")


def _gradients(parameter: Any) -> list[Any]:
    """Return copies of a parameter's gradients, one per device; none if no batch has reached it yet."""
    if parameter._data is None or not any(fresh_flags(parameter)):
        return []
    return [gradient.copy() for gradient in parameter.list_grad()]
