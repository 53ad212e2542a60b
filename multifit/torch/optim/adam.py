"""Adam.

As in ``mx.optimizer.Adam``; ``torch.optim.Adam`` differs in epsilon.

Epsilon is added to the square root of the biased second moment; the bias correction is a part of the rate.
Kingma and Ba 2015, https://arxiv.org/abs/1412.6980.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .arithmetic import decayed_then_clipped, moments, roots, single
from .group import Group, State, zeros


def create(options: Any, weight: torch.Tensor) -> State:
    """Return the running means of a parameter's gradient and of its square."""
    return zeros(weight, 2)


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    means, squares = moments(options, group, decayed_then_clipped(options, group))
    factors = [
        -single(rate * math.sqrt(1 - options.beta2**t) / (1 - options.beta1**t))
        for rate, t in zip(group.rates, group.counts)
    ]
    torch._foreach_addcdiv_(group.weights, means, roots(squares, options.epsilon), factors)
