"""FTML: follow the moving leader.

As in ``mx.optimizer.FTML``; Zheng and Kwok 2017, https://proceedings.mlr.press/v70/zheng17a.html.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import (
    average,
    average_squares,
    decayed_then_clipped,
    set_to_minus_quotients,
    single,
    singles,
)
from .group import Group, State, zeros


def create(options: Any, weight: torch.Tensor) -> State:
    """Return a parameter's denominator, mean square and numerator."""
    return zeros(weight, 3)


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients, (denominators, squares, sums) = decayed_then_clipped(options, group), group.columns()
    beta1, beta2 = single(options.beta1), single(options.beta2)
    average_squares(squares, gradients, options.beta2)
    new = torch._foreach_div(squares, [1 - beta2**t for t in group.counts])
    torch._foreach_sqrt_(new)
    torch._foreach_add_(new, single(options.epsilon))
    rates = singles(group.rates)
    torch._foreach_mul_(new, [(1 - beta1**t) / rate for rate, t in zip(rates, group.counts)])
    average(sums, gradients, options.beta1)
    grown = torch._foreach_add(new, denominators, alpha=-beta1)
    torch._foreach_addcmul_(sums, grown, group.weights, -1)
    torch._foreach_copy_(denominators, new)
    set_to_minus_quotients(group.weights, sums, new)
