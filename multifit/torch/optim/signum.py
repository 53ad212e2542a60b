"""Signum: the sign of the gradient, or of its running mean.

As in ``mx.optimizer.Signum``; Bernstein et al. 2018, https://arxiv.org/abs/1802.04434.

As in MXNet, the stored mean has the opposite sign. Without momentum, weight decay shrinks the weight itself;
with momentum, it is a part of the gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import average, clipped_then_decayed, single, singles, subtract_scaled
from .group import Group, State


def create(options: Any, weight: torch.Tensor) -> State:
    """Return minus the running mean of a parameter's gradient; None without momentum."""
    return torch.zeros_like(weight) if options.momentum else None


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    rates, decays = singles(group.rates), singles(group.decays)
    if options.momentum:
        (means,) = group.columns()
        gradients = list(torch._foreach_neg(clipped_then_decayed(options, group)))
        average(means, gradients, max(0, options.momentum))
        directions, decays = torch._foreach_sign(means), [single(options.wd_lh)] * len(rates)
    else:
        directions = torch._foreach_sign(torch._foreach_neg(group.gradients))
    if any(decays):
        torch._foreach_mul_(group.weights, [1 - rate * decay for rate, decay in zip(rates, decays)])
    subtract_scaled(group.weights, list(directions), [-rate for rate in rates])
