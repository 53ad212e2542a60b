"""LAMB.

As in ``mx.optimizer.LAMB``; You et al. 2020, https://arxiv.org/abs/1904.00962.

The rate of each array is multiplied by the array's norm over the norm of its step, without waiting for these.
"""

from __future__ import annotations

from typing import Any

import torch

from .adam import create as create  # the same states
from .arithmetic import add_scaled, moments, only_clipped, roots, single, singles
from .group import Column, Group


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    means, squares = moments(options, group, only_clipped(options, group))
    if options.bias_correction:
        means = _corrected(means, options.beta1, group.counts)
        squares = _corrected(squares, options.beta2, group.counts)
    steps = list(torch._foreach_div(means, roots(squares, options.epsilon)))
    steps = add_scaled(steps, group.weights, singles(group.decays))
    torch._foreach_mul_(steps, _ratios(options, group.weights, steps))
    torch._foreach_mul_(steps, singles(group.rates))
    torch._foreach_sub_(group.weights, steps)


def _corrected(means: Column, share: float, counts: list[int]) -> Column:
    return list(torch._foreach_div(means, [1 - single(share) ** t for t in counts]))


def _ratios(options: Any, weights: Column, steps: Column) -> Column:
    """Return each weight's norm, within its bounds, over its step's norm; 1 if one of them is 0."""
    above, below = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, steps))
    if options.lower_bound:
        above.clamp_min_(single(options.lower_bound))
    if (options.upper_bound or 0) > 0:
        above.clamp_max_(single(options.upper_bound))
    return list(torch.where((above == 0) | (below == 0), 1.0, above / below).unbind())
