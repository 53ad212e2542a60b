"""Conflict-averse gradient descent (CAGrad)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import NotNegative, checked
from ..protocols import Numbers
from .protocol import GramianMethod
from .solvers import minimum

ITERATIONS = 100
NOISE = 1e-3  # a sum this short, relative to its terms, is rounding: the root of a Gramian's error in float32


class CAGrad(GramianMethod):
    r"""Takes the gradient near the mean that maximizes the smallest decrease of a task's loss.

    .. math:: g = g_0 + c \|g_0\| \frac{g_w}{\|g_w\|}, \qquad
        w = \arg\min_{w \ge 0,\; \sum_k w_k = 1} \langle g_w, g_0 \rangle + c \|g_0\| \|g_w\|

    where :math:`g_w = \sum_k w_k g_k`, and :math:`g_0` is the mean of the gradients. Solved exactly. The sum
    of the weights is not fixed: the gradient is at most :math:`1 + c` times as long as the mean, which is 1/K
    of the sum of the gradients. Where gradients cancel, so that :math:`g_w` is only rounding, its direction
    means nothing, and the mean is taken.

    Parameters
    ----------
    c : float
        The largest distance from the mean, relative to the mean's length: 0 gives the mean; from 1 on, MGDA
        is the limit.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    B. Liu, X. Liu, X. Jin, P. Stone, Q. Liu: Conflict-Averse Gradient Descent for Multi-task Learning. 2021,
    arXiv:2110.14048.
    """

    @checked
    def __init__(self, c: NotNegative = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self.c = c

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the weights of the mean plus those of the direction that is added to it."""
        tasks, inner = len(gramian), gramian / np.trace(gramian)
        radius = self.c * float(np.sqrt(max(inner.mean(), 0.0)))
        if not radius:
            return np.full(tasks, 1 / tasks)
        mixture, length = _mixture(inner, radius)
        if length <= NOISE * float(mixture @ np.sqrt(np.diag(inner))):
            return np.full(tasks, 1 / tasks)
        return 1 / tasks + radius / length * mixture


def _mixture(inner: Numbers, radius: float) -> tuple[Numbers, float]:
    r"""Return w and the length of :math:`g_w`.

    As :math:`\|g_w\| = \min_q (\|g_w\|^2 / q + q) / 2`, w minimises a quadratic function for the right q,
    which is the length itself. There alone, :math:`\|g_w\| - q` changes its sign, so that q is found by
    bisection with secants (the Illinois method).
    """

    def solved(q: float) -> tuple[Numbers, float]:
        w = minimum(inner * radius / q, inner.mean(axis=1), total=1.0)
        return w, float(np.sqrt(max(float(w @ inner @ w), 1e-300)))

    low, high = 1e-150, float(np.sqrt(np.diag(inner).max())) * 2
    below, above = 1.0, -1.0
    q, side = high / 2, 0
    for _ in range(ITERATIONS):
        w, length = solved(q)
        excess = length - q
        if abs(excess) <= 1e-14 * q or high - low <= 1e-14 * high:
            break
        if excess > 0:
            low, below, above = q, excess, above / 2 if side > 0 else above
        else:
            high, above, below = q, excess, below / 2 if side < 0 else below
        side = 1 if excess > 0 else -1
        q = (low * -above + high * below) / (below - above)
    return w, length
