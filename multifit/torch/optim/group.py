"""The input of a rule: parameters with their gradients, states, rates, weight decays and update counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

import torch

Column = list[torch.Tensor]
"""A tensor for each parameter, in the order of the group."""
State = Union[None, torch.Tensor, tuple[torch.Tensor, ...]]
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
