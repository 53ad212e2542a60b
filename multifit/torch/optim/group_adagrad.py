"""AdaGrad with one rate for each row of a matrix.

As in ``mx.optimizer.contrib.GroupAdaGrad``, for matrices such as embeddings; it has no weight decay.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import only_clipped, roots_of_sums
from .group import Group, State


def create(options: Any, weight: torch.Tensor) -> State:
    """Return the sum of the mean squares of each row's gradients."""
    return weight.new_zeros((len(weight), 1))


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients, (sums,) = only_clipped(options, group), group.columns()
    torch._foreach_add_(sums, [gradient.square().mean(1, keepdim=True) for gradient in gradients])
    below = roots_of_sums(sums, options.float_stable_eps)
    for weight, gradient, root, rate in zip(group.weights, gradients, below, group.rates):
        weight.addcdiv_(gradient, root, value=-rate)
