"""SGD with momentum.

As in ``mx.optimizer.SGD``; ``torch.optim.SGD`` differs where the rate changes.

The rate is a part of the velocity: a new rate does not affect the gradients of earlier updates.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import clipped_then_decayed, single, singles, subtract_scaled
from .group import Group, State


def create(options: Any, weight: torch.Tensor) -> State:
    """Return the velocity of a parameter; None without momentum."""
    return torch.zeros_like(weight) if options.momentum else None


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients, rates = clipped_then_decayed(options, group), singles(group.rates)
    if options.momentum <= 0:
        subtract_scaled(group.weights, gradients, rates)
        return
    (velocities,) = group.columns()
    torch._foreach_mul_(velocities, single(options.momentum))
    subtract_scaled(velocities, gradients, rates)
    torch._foreach_add_(group.weights, velocities)
