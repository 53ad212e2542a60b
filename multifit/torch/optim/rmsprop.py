"""RMSProp, plain or centered.

As in ``mx.optimizer.RMSProp``: Tieleman and Hinton 2012; centered, Graves 2013, https://arxiv.org/abs/1308.0850.

Epsilon is inside the square root.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import average, average_squares, decayed_then_clipped, roots_of_sums, single, singles
from .group import Group, State, zeros


def create(options: Any, weight: torch.Tensor) -> State:
    """Return the running mean of squares; if centered, also the mean of gradients and the velocity."""
    return zeros(weight, 3 if options.centered else 1)


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients, (squares, *centered) = decayed_then_clipped(options, group), group.columns()
    average_squares(squares, gradients, options.gamma1)
    epsilon, negative = single(options.epsilon), [-rate for rate in singles(group.rates)]
    if centered:
        means, velocities = centered
        average(means, gradients, options.gamma1)
        below = roots_of_sums(torch._foreach_addcmul(squares, means, means, -1), epsilon)
        torch._foreach_mul_(velocities, single(options.gamma2))
        torch._foreach_addcdiv_(velocities, gradients, below, negative)
        torch._foreach_add_(group.weights, velocities)
    else:
        below = roots_of_sums(squares, epsilon)
        torch._foreach_addcdiv_(group.weights, gradients, below, negative)
    bound = single(options.clip_weights or 0)
    if bound > 0:
        torch._foreach_clamp_max_(group.weights, bound)
        torch._foreach_clamp_min_(group.weights, -bound)
