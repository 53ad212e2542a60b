"""Compute the gradients of a batch: as they are, or scaled while they are computed in float16."""

from __future__ import annotations

from typing import Any, Mapping, Sequence, Union

import torch


class Unscaled:
    """Gradients as autograd computes them."""

    def gradients(
        self,
        tensors: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        heads: Sequence[torch.Tensor] | None = None,
        again: bool = False,
    ) -> list[torch.Tensor]:
        """Return the gradients of the sum of tensors times `heads`, by default 1; 0 for leaves not reached.

        `again` keeps the graph for another backward pass.
        """
        options = {"retain_graph": again, "allow_unused": True, "materialize_grads": True}
        return list(torch.autograd.grad(tensors, leaves, heads, **options))

    def overflowed(self) -> bool:
        """Return False: gradients that overflow are used as they are."""
        return False

    def update(self, overflowed: bool) -> None:
        """Do nothing: there is no scale."""

    def state(self) -> dict[str, Any]:
        """Return an empty dict: there is no scale."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no scale."""


class Scaled:
    """Gradients of an objective that is scaled up, so that they do not vanish in float16, and scaled back.

    It uses :class:`torch.amp.GradScaler`: if a gradient is not finite, no parameter is updated, no update is
    counted, and the scale is halved; after 2,000 steps in which all were finite, it doubles. Like that class,
    it waits for the device in each step, to know whether to update.
    """

    def __init__(self, device: torch.device) -> None:
        self._scaler, self._device = torch.amp.GradScaler(device.type), device
        self._batches: list[_Batch] = []  # since the last update; kept, as the scaler knows them by their ids

    def gradients(
        self,
        tensors: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        heads: Sequence[torch.Tensor] | None = None,
        again: bool = False,
    ) -> list[torch.Tensor]:
        """Return the gradients, scaled back; float16 becomes float32, in which they do not vanish."""
        ones = [torch.ones_like(tensor) for tensor in tensors]
        scaled = [self._scaler.scale(head).to(each.dtype) for head, each in zip(heads or ones, tensors)]
        torch.autograd.backward(tensors, scaled, again, inputs=leaves)
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in leaves]
        gradients = [each.float() if each.dtype == torch.float16 else each for each in gradients]
        if any(leaf.grad is not None for leaf in leaves):
            self._unscale(gradients)
        for leaf in leaves:
            leaf.grad = None
        return gradients

    def overflowed(self) -> bool:
        """Return whether gradients since the last update are not finite; this waits for the device."""
        for batch in self._batches:
            if batch.is_finite is None:
                batch.is_finite = False
                self._scaler.step(batch)
        return not all(batch.is_finite for batch in self._batches)

    def update(self, overflowed: bool) -> None:
        """Set the scale for the next batch; `overflowed` says whether gradients of any process did."""
        verdict = torch.full((1,), float("inf") if overflowed else 0.0, device=self._device)
        self._scaler.scale(verdict)  # makes the scale, if this process had no samples so far
        self._unscale([verdict])
        self._scaler.update()
        self._batches.clear()

    def state(self) -> dict[str, Any]:
        """Return the scale, and the number of steps since it last changed."""
        return dict(self._scaler.state_dict())

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._scaler.load_state_dict(dict(state))

    def _unscale(self, gradients: Sequence[torch.Tensor]) -> None:
        self._batches.append(_Batch(gradients))
        self._scaler.unscale_(self._batches[-1])


Scaling = Union[Unscaled, Scaled]
"""Computes gradients, and knows whether the update must be skipped."""


class _Batch:
    """Stands for an optimizer in `GradScaler`: has gradients, and a step that is called if all are finite."""

    def __init__(self, gradients: Sequence[torch.Tensor]) -> None:
        carriers = [gradient.detach() for gradient in gradients]
        for carrier, gradient in zip(carriers, gradients):
            carrier.grad = gradient
        self.param_groups = [{"params": carriers}]
        self.is_finite: bool | None = None  # not known yet

    def step(self) -> None:
        """Remember that the gradients are finite."""
        self.is_finite = True
