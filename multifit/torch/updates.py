"""The phases of a step of the trainers, after the backward pass: gradients are summed, clipped and used."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from .. import engines
from ..distributed import ALONE, World
from ..engines.trainers import JointGradients, OwnGradients
from .selection import Named


class GradAttributes(JointGradients):
    """The gradients of several ranks, which are in ``parameter.grad``."""

    def is_reached(self, parameter: torch.Tensor) -> bool:
        """Whether samples of this rank have reached a parameter."""
        return parameter.grad is not None

    def reach(self, parameter: torch.Tensor) -> None:
        """Give a parameter a gradient of 0."""
        parameter.grad = torch.zeros_like(parameter)

    def sum(self, parameters: Sequence[Any]) -> None:
        """Replace the gradients of parameters by their sums over the ranks."""
        for each in parameters:
            each.grad = each.grad.to_dense()
        self._world.all_reduce_tensors([each.grad for each in parameters])


class Updates(engines.Trainers):
    """Updates the parameters of trainers by their gradients, which are in ``parameter.grad``.

    A parameter that no sample has reached has no gradient.
    """

    def __init__(self, declared: Any, accumulate: int, world: World = ALONE) -> None:
        super().__init__(declared, accumulate, OwnGradients() if world.alone else GradAttributes(world))
        self.loss_scale: LossScale | None = None  # in float16
        self._trained: dict[str, Named] = {}

    @property
    def scale(self) -> float:  # type: ignore[override]
        """By what gradients are multiplied while they are computed: more than 1 in float16."""
        return self.loss_scale.scale if self.loss_scale else 1.0

    def learning(self, name: str) -> Iterable[torch.Tensor]:
        """Return the parameters that a trainer updates now."""
        return self._trained[name].values()

    def make_room(self, samples: int) -> None:
        """Before the backward pass of a batch: scale the gradients that wait, discard others."""
        super().make_room(samples)
        waiting = self.added_gradients.waiting()
        for name in self.handles:
            if name in waiting:
                self._multiply(name, self.scale)
            else:
                self._discard(name)

    def due(self, step: int, samples: int, ends: bool) -> list[str]:
        """Return the trainers that update after a batch, as for any library."""
        if self.loss_scale:
            self.loss_scale.unscale([each for name in self.handles for each in self._reached(name)])
        return super().due(step, samples, ends)

    def agree(self, holds: bool, due: Collection[str]) -> bool:
        """Return whether the update does not happen, also as gradients in float16 have overflowed."""
        if self.loss_scale is None:
            return super().agree(holds, due)
        holds, overflowed = self._gradients.agree(
            [holds, bool(self.loss_scale.overflowed)], due, self.learning
        )
        self.loss_scale.update(overflowed)
        return holds or overflowed

    def clip(self, name: str) -> None:
        """Scale a trainer's gradients down to its largest global norm, without a wait.

        It equals ``torch.nn.utils.clip_grad_norm_``, in half the time for small nets.
        """
        if gradients := self._reached(name):
            total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            factor = self.clip_norms[name] / (total + 1e-6)
            torch._foreach_mul_(gradients, torch.clamp(factor, max=1.0))

    def _update(self, name: str) -> None:
        """Update a trainer's parameters; if no sample has reached any, the update does not count."""
        handle = self.handles[name]
        reached: list[Any] = [each for each in self.learning(name) if each.grad is not None]
        if handle.optimizer.defaults.get("fused"):  # whose operators take the memory in its order
            for each in reached:
                if each.grad.stride() != each.stride():
                    each.grad = torch.empty_like(each).copy_(each.grad)
        if reached:
            handle.update()
        self._discard(name)

    def _reached(self, name: str) -> list[torch.Tensor]:
        return [each.grad for each in self.learning(name) if each.grad is not None]

    def _multiply(self, name: str, factor: float) -> None:
        _multiply(self._reached(name), factor)

    def _discard(self, name: str, keeps_own_sums: bool = False) -> None:
        for each in self.learning(name):
            each.grad = None


class LossScale:
    """Scales losses up, so that gradients in float16 do not vanish, by the rule of ``torch.amp.GradScaler``.

    If a gradient is not finite, there is no update, and the scale is halved. After 2,000 batches in which all
    were finite, it doubles. It waits for the device in each step, as GradScaler does.
    """

    def __init__(self, scale: float = 2.0**16) -> None:
        self.scale, self.finite = scale, 0  # and the number of batches since it changed
        self.overflowed: bool | None = None  # in the batch since the last update(), if there was one

    def unscale(self, gradients: Sequence[torch.Tensor]) -> None:
        """Scale gradients back."""
        _multiply(gradients, 1 / self.scale)
        norms = torch._foreach_norm(gradients, float("inf")) if gradients else []
        self.overflowed = bool(norms) and not bool(torch.stack(norms).isfinite().all())

    def update(self, overflowed: bool) -> None:
        """Set the scale for the next batch, unless there was no batch since the last call."""
        if self.overflowed is not None:
            self.finite = 0 if overflowed else (self.finite + 1) % 2000
            self.scale *= 0.5 if overflowed else 1.0 if self.finite else 2.0
            self.overflowed = None


def _multiply(gradients: Sequence[torch.Tensor], factor: float) -> None:
    if gradients and factor != 1:
        torch._foreach_mul_(gradients, factor)
