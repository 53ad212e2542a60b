"""BERTAdam: Adam with decoupled weight decay and without bias correction.

As in ``gluonnlp.optimizer.BERTAdam``; Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101.
"""

from __future__ import annotations

from typing import Any

import torch

from .adam import create as create  # the same states
from .arithmetic import add_scaled, moments, only_clipped, roots, singles, subtract_scaled
from .group import Group


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    means, squares = moments(options, group, only_clipped(options, group))
    steps = list(torch._foreach_div(means, roots(squares, options.epsilon)))
    steps = add_scaled(steps, group.weights, singles(group.decays))
    subtract_scaled(group.weights, steps, singles(group.rates))
