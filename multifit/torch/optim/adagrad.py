"""AdaGrad.

As in ``mx.optimizer.AdaGrad``; Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html.

Epsilon is inside the square root, and weight decay is not divided by the root.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import add_scaled, only_clipped, roots_of_sums, subtract_scaled
from .group import Group, State


def create(options: Any, weight: torch.Tensor) -> State:
    """Return the sum of the squares of a parameter's gradients."""
    return torch.zeros_like(weight)


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients, (sums,) = only_clipped(options, group), group.columns()
    torch._foreach_addcmul_(sums, gradients, gradients)
    below = roots_of_sums(sums, options.float_stable_eps)
    steps = add_scaled(list(torch._foreach_div(gradients, below)), group.weights, group.decays)
    subtract_scaled(group.weights, steps, group.rates)
