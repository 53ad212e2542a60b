"""AdaGrad with one rate for each row of a matrix.

As in ``mx.optimizer.contrib.GroupAdaGrad``, for matrices such as embeddings; it has no weight decay.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import clipped, rescaled
from .group import Group, State


def create(options: Any, weight: torch.Tensor) -> State:
    """Return the sum of the mean squares of each row's gradients."""
    return weight.new_zeros((len(weight), 1))


def move(options: Any, group: Group) -> None:
    """Move the parameters of a group."""
    gradients, (sums,) = clipped(options, rescaled(options, group.gradients)), group.columns()
    torch._foreach_add_(sums, [gradient.square().mean(1, keepdim=True) for gradient in gradients])
    below = torch._foreach_add(sums, options.float_stable_eps)
    torch._foreach_sqrt_(below)
    for weight, gradient, root, rate in zip(group.weights, gradients, below, group.rates):
        weight.addcdiv_(gradient, root, value=-rate)
