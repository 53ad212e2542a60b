"""Nesterov's accelerated gradient.

As in ``mx.optimizer.NAG``: SGD that also applies the momentum of the next update.

As in MXNet, the stored velocity contains the weight decay of the weight after the update.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import decayed, only_clipped, single, singles, subtract_scaled
from .group import Group
from .sgd import create as create  # the same states


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients, weights = only_clipped(options, group), group.weights
    rates, decays, momentum = singles(group.rates), singles(group.decays), single(options.momentum)
    steps = decayed(gradients, weights, decays)
    if momentum <= 0:
        subtract_scaled(weights, steps, rates)
        return
    (velocities,) = group.columns()
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(weights, velocities, alpha=momentum)
    subtract_scaled(weights, steps, [(1 + momentum) * rate for rate in rates])
    subtract_scaled(velocities, decayed(gradients, weights, decays), rates)
