"""Nadam: Adam with Nesterov momentum.

As in ``mx.optimizer.Nadam``; Dozat 2016, http://cs229.stanford.edu/proj2015/054_report.pdf.

As in MXNet, the product of the momenta so far, the option ``m_schedule``, is one number for all parameters:
the update of each parameter multiplies it again.
"""

from __future__ import annotations

from typing import Any

import torch

from .adam import create as create  # the same states
from .arithmetic import clipped, decayed, rescaled
from .group import Group


def update(options: Any, group: Group) -> None:
    """Update the parameters of a group."""
    gradients = decayed(rescaled(options, group.gradients), group.weights, group.decays)
    gradients, (means, squares) = clipped(options, gradients), group.columns()
    torch._foreach_mul_(means, options.beta1)
    torch._foreach_add_(means, gradients, alpha=1 - options.beta1)
    torch._foreach_mul_(squares, options.beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - options.beta2)
    of_gradients, of_means = _shares(options, group.counts)
    steps = torch._foreach_mul(gradients, of_gradients)
    torch._foreach_add_(steps, torch._foreach_mul(means, of_means))
    below = torch._foreach_div(squares, [1 - options.beta2**t for t in group.counts])
    torch._foreach_sqrt_(below)
    torch._foreach_add_(below, options.epsilon)
    torch._foreach_addcdiv_(group.weights, steps, below, [-rate for rate in group.rates])


def _shares(options: Any, counts: list[int]) -> tuple[list[float], list[float]]:
    """Return the factors of each gradient and of each mean; also updates the product of the momenta."""
    of_gradients, of_means = [], []
    for t in counts:
        now, following = (_momentum(options, t + ahead) for ahead in (0, 1))
        options.m_schedule *= now
        of_gradients.append((1 - now) / (1 - options.m_schedule))
        of_means.append(following / (1 - options.m_schedule * following))
    return of_gradients, of_means


def _momentum(options: Any, t: int) -> float:
    return float(options.beta1 * (1 - 0.5 * 0.96 ** (t * options.schedule_decay)))
