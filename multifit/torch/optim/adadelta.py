"""AdaDelta.

As in ``mx.optimizer.AdaDelta``; Zeiler 2012, https://arxiv.org/abs/1212.5701.

It uses no learning rate: weight decay is subtracted unscaled.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import add_scaled, only_clipped, roots_of_sums
from .group import Group, State, zeros


def create(options: Any, weight: torch.Tensor) -> State:
    """Return the running means of the squares of a parameter's gradients and of its steps."""
    return zeros(weight, 2)


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients = only_clipped(options, group)
    of_gradients, of_steps = group.columns()
    _average_squares(of_gradients, gradients, options.rho)
    steps = roots_of_sums(of_steps, options.epsilon)
    torch._foreach_div_(steps, roots_of_sums(of_gradients, options.epsilon))
    torch._foreach_mul_(steps, gradients)
    _average_squares(of_steps, steps, options.rho)
    torch._foreach_sub_(group.weights, add_scaled(steps, group.weights, group.decays))


def _average_squares(means: list[torch.Tensor], values: list[torch.Tensor], share: float) -> None:
    torch._foreach_mul_(means, share)
    torch._foreach_addcmul_(means, values, values, 1 - share)
