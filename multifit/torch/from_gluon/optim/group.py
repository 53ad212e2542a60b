"""What a rule gets, the parameters of a group, and how it reads options and gradients: as MXNet does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

Column = list[torch.Tensor]
"""A tensor for each parameter, in the order of the group."""
State = torch.Tensor | tuple[torch.Tensor, ...] | None
"""An optimizer's state of one parameter, laid out as MXNet's ``create_state`` does."""


@dataclass
class Group:
    """The parameters of a trainer that are updated together, all on one device and of one dtype.

    Attributes
    ----------
    weights, gradients : list of torch.Tensor
        The values, which are updated in place, and their gradients, which are only read.
    states : list
        The optimizer's state of each parameter, see :data:`State`.
    rates, decays : list of float
        The learning rate and the weight decay of each parameter, with its own multipliers.
    counts : list of int
        The number of updates of each parameter, including this one.
    """

    weights: Column
    gradients: Column
    states: list[Any] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    decays: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def columns(self) -> list[Column]:
        """Return the states in columns: the first state of all parameters, the second of all, and so on.

        Do not call this if states are None.
        """
        if isinstance(self.states[0], torch.Tensor):
            return [list(self.states)]
        return [list(column) for column in zip(*self.states)]


def zeros(weight: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """Return `count` tensors of zeros like a weight."""
    return tuple(torch.zeros_like(weight) for _ in range(count))


@lru_cache(maxsize=4096)
def single(number: float) -> float:
    """Return a number rounded to float32, in which MXNet's operators keep their options."""
    return float(np.float32(number))


def rest(share: float) -> float:
    """Return 1 minus a share, both in float32: for 0.999, the result differs from 0.001 by 5e-5 of that."""
    return float(np.float32(1) - np.float32(share))


def singles(numbers: Sequence[float]) -> list[float]:
    """Return numbers rounded to float32."""
    return [single(number) for number in numbers]


def rescaled(options: Any, gradients: Column) -> Column:
    """Return gradients times the option ``rescale_grad``; the same tensors if it is 1."""
    factor = single(options.rescale_grad)
    return gradients if factor == 1 else list(torch._foreach_mul(gradients, factor))


def clipped(options: Any, gradients: Column) -> Column:
    """Return gradients within plus and minus ``clip_gradient``; the same tensors without that option.

    As in MXNet's operators, gradients are not clipped if it is 0 or less. For Adamax and others, MXNet clips
    in Python, where a negative bound would reverse gradients.
    """
    bound = single(options.clip_gradient or 0)
    if bound <= 0:
        return gradients
    return list(torch._foreach_clamp_min(torch._foreach_clamp_max(gradients, bound), -bound))


def decayed(gradients: Column, weights: Column, decays: Sequence[float]) -> Column:
    """Return gradients plus each weight times its weight decay; the same tensors if there is none."""
    return add_scaled(gradients, weights, decays) if any(decays) else gradients


def only_clipped(options: Any, group: Group) -> Column:
    """Rescale and clip gradients, without weight decay."""
    return clipped(options, rescaled(options, group.gradients))


def clipped_then_decayed(options: Any, group: Group) -> Column:
    """Prepare gradients as SGD and its variants do: weight decay is added after clipping."""
    return decayed(only_clipped(options, group), group.weights, singles(group.decays))


def decayed_then_clipped(options: Any, group: Group) -> Column:
    """Prepare gradients as Adam and its variants do: weight decay is added before clipping."""
    gradients = rescaled(options, group.gradients)
    return clipped(options, decayed(gradients, group.weights, singles(group.decays)))


def add_scaled(tensors: Column, others: Column, factors: Sequence[float]) -> Column:
    """Return the tensors plus the others, each times its factor."""
    if len(set(factors)) == 1:
        return list(torch._foreach_add(tensors, others, alpha=factors[0]))
    return list(torch._foreach_add(tensors, torch._foreach_mul(others, list(factors))))


def subtract_scaled(tensors: Column, others: Column, factors: Sequence[float]) -> None:
    """Subtract others from tensors in place, each times its factor."""
    if len(set(factors)) == 1:
        torch._foreach_add_(tensors, others, alpha=-factors[0])
    else:
        torch._foreach_sub_(tensors, torch._foreach_mul(others, list(factors)))


def shrink(weights: Column, rates: Sequence[float], decays: Sequence[float]) -> None:
    """Subtract from weights, in place, their shares of rate times weight decay: the decay is decoupled."""
    if any(decays):
        torch._foreach_mul_(weights, [1 - rate * decay for rate, decay in zip(rates, decays)])


def average(means: Column, values: Column, share: float) -> None:
    """Update running means in place: `share` times the old means plus the rest times new values."""
    torch._foreach_mul_(means, single(share))
    torch._foreach_add_(means, values, alpha=rest(share))


def average_squares(means: Column, values: Column, share: float) -> None:
    """Update running means of squares in place: `share` times the old plus the rest times new squares."""
    torch._foreach_mul_(means, single(share))
    torch._foreach_addcmul_(means, values, values, rest(share))


def moments(options: Any, group: Group, gradients: Column) -> list[Column]:
    """Update Adam's states, the running means of gradients and of their squares; return both."""
    means, squares = group.columns()
    average(means, gradients, options.beta1)
    average_squares(squares, gradients, options.beta2)
    return [means, squares]


def roots(squares: Column, epsilon: float | list[float]) -> Column:
    """Return sqrt(tensor) + epsilon for each tensor; epsilon, or one for each, is rounded to float32."""
    below = list(torch._foreach_sqrt(squares))
    torch._foreach_add_(below, singles(epsilon) if isinstance(epsilon, list) else single(epsilon))
    return below


def roots_of_sums(squares: Column, epsilon: float) -> Column:
    """Return sqrt(tensor + epsilon) for each tensor; epsilon is not rounded to float32."""
    below = list(torch._foreach_add(squares, epsilon))
    torch._foreach_sqrt_(below)
    return below


def set_to_minus_quotients(weights: Column, above: Column, below: Column) -> None:
    """Set weights to the negative quotients of two lists of tensors."""
    torch._foreach_copy_(weights, torch._foreach_div(above, below))
    torch._foreach_neg_(weights)
