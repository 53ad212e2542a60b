"""AdaMax: Adam with the largest gradient in place of the mean square.

As in ``mx.optimizer.Adamax``; Kingma and Ba 2015, section 7, https://arxiv.org/abs/1412.6980.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import clipped, decayed, rescaled
from .group import Group, State, zeros


def create(options: Any, weight: torch.Tensor) -> State:
    """Return the running mean of a parameter's gradient, and its largest absolute value so far, decayed."""
    return zeros(weight, 2)


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients = decayed(rescaled(options, group.gradients), group.weights, group.decays)
    gradients, (means, largest) = clipped(options, gradients), group.columns()
    torch._foreach_mul_(means, options.beta1)
    torch._foreach_add_(means, gradients, alpha=1 - options.beta1)
    torch._foreach_mul_(largest, options.beta2)
    torch._foreach_maximum_(largest, torch._foreach_abs(gradients))
    factors = [-rate / (1 - options.beta1**t) for rate, t in zip(group.rates, group.counts)]
    torch._foreach_addcdiv_(group.weights, means, largest, factors)
