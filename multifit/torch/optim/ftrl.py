"""FTRL.

As in ``mx.optimizer.Ftrl``; McMahan et al. 2013, https://dl.acm.org/doi/10.1145/2487575.2488200.

Weight decay is the L2 term of the objective that is minimised, never a part of a gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import only_clipped, set_to_minus_quotients, single, singles
from .group import Group, State, zeros


def create(options: Any, weight: torch.Tensor) -> State:
    """Return the sums of a parameter's adjusted gradients and of their squares."""
    return zeros(weight, 2)


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients, (sums, squares) = only_clipped(options, group), group.columns()
    rates, decays = singles(group.rates), singles(group.decays)
    before = torch._foreach_sqrt(squares)
    torch._foreach_addcmul_(squares, gradients, gradients)
    after = list(torch._foreach_sqrt(squares))
    torch._foreach_add_(sums, gradients)
    grown = torch._foreach_sub(after, before)
    torch._foreach_addcmul_(sums, grown, group.weights, [-1 / rate for rate in rates])
    torch._foreach_add_(after, single(options.beta))
    torch._foreach_div_(after, rates)
    torch._foreach_add_(after, decays)
    # sign(z) * l1 - z is 0 or more where |z| is at most l1: the weight is 0 there
    bound = single(options.lamda1)
    within = torch._foreach_clamp_min(torch._foreach_clamp_max(sums, bound), -bound)
    set_to_minus_quotients(group.weights, list(torch._foreach_sub(sums, within)), after)
