"""The backward pass of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class BackwardPass(Protocol):
    """Computes the gradients of leaves from those of objectives."""

    @property
    def objectives(self) -> Sequence[torch.Tensor]:
        """What is differentiated."""

    def gradients(self, head_gradients: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Return the gradients of the leaves; `head_gradients`, those of the objectives, are 1 by default."""


class AutogradPass:
    """Passes back from objectives to leaves; gradients are 0 for leaves that it does not reach.

    Objectives that do not require gradients are left out. `again` keeps the graph for another pass.
    """

    def __init__(
        self, objectives: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], again: bool = False
    ) -> None:
        self.objectives, self._leaves, self._again = objectives, leaves, again

    def gradients(self, head_gradients: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Return the gradients of the leaves."""
        heads = ones_like(self.objectives) if head_gradients is None else head_gradients
        pairs = [(each, head) for each, head in zip(self.objectives, heads) if each.requires_grad]
        objectives, heads = [each for each, _ in pairs], [head for _, head in pairs]
        options = {"retain_graph": self._again, "allow_unused": True, "materialize_grads": True}
        return list(torch.autograd.grad(objectives, self._leaves, heads, **options))


def ones_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a tensor of ones for each tensor."""
    return [torch.ones_like(tensor) for tensor in tensors]
