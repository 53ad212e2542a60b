"""The gradients of a batch, and the update from them: as they are, or scaled while float16 computes them."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping, Protocol, Sequence

import torch

Tensors = Sequence[torch.Tensor]


class Scaling(Protocol):
    """Computes gradients, and calls the update from them."""

    def gradients(self, objectives: Tensors, parameters: Tensors) -> list[torch.Tensor]:
        """Return the gradients of the sum of objectives; where they reach nothing, these are 0."""

    def step(self, update: Callable[[], None]) -> None:
        """Call the update from the gradients that were computed since the last step."""

    def skip(self) -> None:
        """Let the gradients that were computed since the last step move nothing."""

    def state(self) -> dict[str, Any]:
        """Return what the next step depends on; this waits for the device."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""


class Unscaled:
    """Gradients as autograd computes them."""

    def gradients(self, objectives: Tensors, parameters: Tensors) -> list[torch.Tensor]:
        """Return the gradients."""
        gradients = torch.autograd.grad(objectives, parameters, allow_unused=True, materialize_grads=True)
        return list(gradients)

    def step(self, update: Callable[[], None]) -> None:
        """Call the update."""
        update()

    def skip(self) -> None:
        """Do nothing."""

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take nothing."""


class Scaled:
    """Gradients of an objective that is scaled up, so that they do not vanish in float16, and scaled back.

    It is :class:`torch.amp.GradScaler`: if a gradient is not finite, nothing moves, no update is counted, and
    the scale is halved; after 2,000 steps without one it doubles. Like that class, it waits for the device in
    each step, to know whether the update is to be called.
    """

    def __init__(self, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        self._unscaled: list[_Holder] = []

    def gradients(self, objectives: Tensors, parameters: Tensors) -> list[torch.Tensor]:
        """Return the gradients, scaled back."""
        scaled = [self._scaler.scale(objective) for objective in objectives]
        torch.autograd.backward(scaled, inputs=parameters)
        if any(parameter.grad is not None for parameter in parameters):
            holder = _Holder(parameters)
            self._scaler.unscale_(holder)
            self._unscaled.append(holder)
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        for parameter in parameters:
            parameter.grad = None
        return gradients

    def step(self, update: Callable[[], None]) -> None:
        """Call the update if the gradients of every batch since the last step are finite."""
        for holder in self._unscaled:
            holder.update, update = update, partial(self._scaler.step, holder)
        update()
        self.skip()

    def skip(self) -> None:
        """Set the scale for the next batch."""
        if self._unscaled:
            self._unscaled.clear()
            self._scaler.update()

    def state(self) -> dict[str, Any]:
        """Return the scale, and how many steps it has been right."""
        return dict(self._scaler.state_dict())

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on with a scale."""
        self._scaler.load_state_dict(dict(state))


class _Holder:
    """What `GradScaler` takes for an optimizer: it has parameters, and a step."""

    def __init__(self, parameters: Tensors) -> None:
        self.param_groups = [{"params": list(parameters)}]
        self.update: Callable[[], None] | None = None

    def step(self) -> None:
        """Call the update, which is set by then."""
        assert self.update is not None
        self.update()
