"""Compute the gradients of a batch: as they are, or scaled while they are computed in float16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .backward_pass import BackwardPass, ones_like
from .tensors import copies_of


class Unscaled:
    """Gradients as autograd computes them."""

    def gradients(
        self, backward_pass: BackwardPass, head_gradients: Sequence[torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """Return the gradients of a backward pass."""
        return backward_pass.gradients(head_gradients)

    def overflowed(self) -> bool:
        """Return False: gradients that overflow are used as they are."""
        return False

    def remember(self, overflowed: bool) -> None:
        """Do nothing: there is no scale."""

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
        # whether gradients since the last update did, on another process or before the run was resumed
        self._had_overflowed = False

    def gradients(
        self, backward_pass: BackwardPass, head_gradients: Sequence[torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """Return the gradients, scaled back; float16 becomes float32, in which they do not vanish."""
        objectives = backward_pass.objectives
        heads = ones_like(objectives) if head_gradients is None else head_gradients
        scaled = [self._scaler.scale(head).to(each.dtype) for head, each in zip(heads, objectives)]
        gradients = backward_pass.gradients(scaled)
        gradients = [each.float() if each.dtype == torch.float16 else each for each in gradients]
        if not gradients or not objectives:  # the scaler has no scale yet, and refuses what has no gradients
            return gradients
        own = copies_of(gradients)  # two may share memory, and those of a CUDA graph are overwritten
        self._unscale(own)
        return own

    def overflowed(self) -> bool:
        """Return whether gradients since the last update are not finite; this waits for the device."""
        for batch in self._batches:
            if batch.is_finite is None:
                batch.is_finite = False
                self._scaler.step(batch)
        return self._had_overflowed or not all(batch.is_finite for batch in self._batches)

    def remember(self, overflowed: bool) -> None:
        """Remember until the update whether gradients of any process did."""
        self._had_overflowed = overflowed

    def update(self, overflowed: bool) -> None:
        """Set the scale for the next batch; `overflowed` says whether gradients of any process did."""
        verdict = torch.full((1,), float("inf") if overflowed else 0.0, device=self._device)
        self._scaler.scale(verdict)  # makes the scale, if this process had no samples so far
        self._unscale([verdict])
        self._scaler.update()
        self._batches.clear()
        self._had_overflowed = False

    def state(self) -> dict[str, Any]:
        """Return the scale, the number of steps since it last changed, and whether gradients overflowed."""
        return {**self._scaler.state_dict(), "overflowed": self.overflowed()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        scale = dict(state)
        self._had_overflowed = scale.pop("overflowed")
        self._scaler.load_state_dict(scale)

    def _unscale(self, gradients: Sequence[torch.Tensor]) -> None:
        self._batches.append(_Batch(gradients))
        self._scaler.unscale_(self._batches[-1])


Scaling = Unscaled | Scaled
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
