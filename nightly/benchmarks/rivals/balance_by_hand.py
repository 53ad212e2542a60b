"""Methods of balancing for two tasks, written by hand with LibMTL's formulas and defaults."""

from __future__ import annotations

import math
import random
from typing import Any, Callable

import torch
from scipy.optimize import minimize
from torch import nn

__all__ = ["DWA", "LOSSES", "SOLVERS", "Uncertainty"]

TASKS = 2
Gramian = list[list[float]]


class Uncertainty(nn.Module):
    """Learns how uncertain each task is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((TASKS,), -0.5))

    def forward(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the loss to minimise."""
        return (losses / (2 * self.scale.exp()) + self.scale / 2).sum()


class DWA(nn.Module):
    """Weighs tasks by how slowly their losses fall from epoch to epoch."""

    def __init__(self, temperature: float = 2.0) -> None:
        super().__init__()
        self._temperature, self._means = temperature, list[torch.Tensor]()
        self._weights, self._batches = torch.ones(TASKS), 0

    def new_epoch(self) -> None:
        """Weigh by the mean losses of the epochs so far; call it before each epoch, including the first."""
        if self._means:
            self._means[-1] /= self._batches
        if len(self._means) > 1:
            ratios = self._means[-1] / self._means[-2] / self._temperature
            self._weights = TASKS * ratios.softmax(0)
        self._means.append(torch.zeros(TASKS))
        self._batches = 0

    def forward(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the loss to minimise."""
        self._means[-1] += losses.detach()
        self._batches += 1
        return (losses * self._weights).sum()


def pcgrad(gramian: Gramian) -> list[float]:
    """Return the sum of the gradients, each without the components that conflict with the others."""
    weights = [1.0] * TASKS
    for i in range(TASKS):
        others = [j for j in range(TASKS) if j != i]
        random.shuffle(others)
        for j in others:
            weights[j] -= min(gramian[i][j], 0.0) / (gramian[j][j] + 1e-8)
    return weights


def mgda(gramian: Gramian) -> list[float]:
    """Return the weights of the shortest mean."""
    (one, both), (_, other) = gramian
    if both >= one:
        return [1.0, 0.0]
    if both >= other:
        return [0.0, 1.0]
    first = (other - both) / (one + other - 2 * both)
    return [first, 1 - first]


def cagrad(gramian: Gramian, c: float = 0.5) -> list[float]:
    """Return the weights of the direction near the mean by which the slower loss falls most."""
    (one, both), (_, other) = gramian
    to_mean = [(one + both) / TASKS, (both + other) / TASKS]
    radius = c * math.sqrt(sum(to_mean) / TASKS + 1e-8)

    def length(w: Any) -> float:
        return math.sqrt(w[0] * w[0] * one + 2 * w[0] * w[1] * both + w[1] * w[1] * other + 1e-8)

    def slowest(w: Any) -> float:
        return float(w[0] * to_mean[0] + w[1] * to_mean[1] + radius * length(w))

    sums_to_one = {"type": "eq", "fun": lambda w: 1 - sum(w)}
    w = minimize(slowest, [1 / TASKS] * TASKS, bounds=[(0, 1)] * TASKS, constraints=sums_to_one).x
    scale = radius / (length(w) + 1e-4)
    return [(1 / TASKS + scale * float(each)) / (1 + c**2) for each in w]


LOSSES: dict[str, Callable[[], nn.Module]] = {"UW": Uncertainty, "DWA": DWA}
SOLVERS: dict[str, Callable[[Gramian], list[float]]] = {"PCGrad": pcgrad, "MGDA": mgda, "CAGrad": cagrad}
