"""The gradients of a batch: as they are, or scaled while float16 computes them."""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence

import torch

Tensors = Sequence[torch.Tensor]


class Scaling(Protocol):
    """Computes gradients, and calls the update from them."""

    def gradients(self, objectives: Tensors, parameters: Tensors) -> list[torch.Tensor]:
        """Return the gradients of the sum of objectives; where they reach nothing, these are 0."""

    def overflowed(self) -> bool:
        """Return whether gradients that were computed since the last update are not finite; may wait."""

    def update(self, overflowed: bool) -> None:
        """Set the scale for the next batch, as gradients of any process have `overflowed` or not."""

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

    def overflowed(self) -> bool:
        """Return False: nothing is skipped."""
        return False

    def update(self, overflowed: bool) -> None:
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
        self._scaler, self._device = torch.amp.GradScaler(device.type), device
        self._batches: list[_Batch] = []  # since the last update, as the scaler knows them by their ids

    def gradients(self, objectives: Tensors, parameters: Tensors) -> list[torch.Tensor]:
        """Return the gradients, scaled back."""
        scaled = [self._scaler.scale(objective) for objective in objectives]
        torch.autograd.backward(scaled, inputs=parameters)
        if any(parameter.grad is not None for parameter in parameters):
            self._unscale(parameters)
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        for parameter in parameters:
            parameter.grad = None
        return gradients

    def overflowed(self) -> bool:
        """Return whether gradients since the last update are not finite; this waits for the device."""
        for batch in self._batches:
            if batch.is_finite is None:
                batch.is_finite = False
                self._scaler.step(batch)
        return not all(batch.is_finite for batch in self._batches)

    def update(self, overflowed: bool) -> None:
        """Set the scale for the next batch; also where no sample was this process's."""
        verdict = torch.zeros(1, device=self._device)
        verdict.grad = torch.full_like(verdict, float("inf") if overflowed else 0.0)
        self._scaler.scale(verdict)  # makes the scale if nothing was scaled yet
        self._unscale([verdict])
        self._scaler.update()
        self._batches.clear()

    def state(self) -> dict[str, Any]:
        """Return the scale, and how many steps it has been right."""
        return dict(self._scaler.state_dict())

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on with a scale."""
        self._scaler.load_state_dict(dict(state))

    def _unscale(self, tensors: Tensors) -> None:
        self._batches.append(_Batch(tensors))
        self._scaler.unscale_(self._batches[-1])


class _Batch:
    """What `GradScaler` takes for an optimizer: parameters, and a step that it calls if all is finite."""

    def __init__(self, parameters: Tensors) -> None:
        self.param_groups = [{"params": list(parameters)}]
        self.is_finite: bool | None = None  # not known yet

    def step(self) -> None:
        """Note that the gradients are finite."""
        self.is_finite = True
