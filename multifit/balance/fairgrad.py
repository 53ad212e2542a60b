"""Fair resource allocation (FairGrad), with Nash-MTL as its special case."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import Positive, checked
from ..protocols import Numbers
from .protocol import GramianMethod

ITERATIONS, TOLERANCE, LARGEST = 200, 1e-12, 1e8


class FairGrad(GramianMethod):
    r"""Shares the total decrease of the losses among the tasks, :math:`\alpha`-fairly.

    .. math:: M w = w^{-1/\alpha}, \qquad w > 0

    ``FairGrad(alpha=1)`` is Nash-MTL, the Nash bargaining solution. Solved by Newton's method for the cosines
    of the gradients, so that their lengths do not matter. The sum of the weights is not fixed: with
    orthogonal gradients and :math:`\alpha = 1`, the weights are :math:`1 / \|g_k\|`, so the net's learning
    rate is in units of normalised gradients. Opposite gradients cannot be balanced this way; the weights are
    then large.

    Parameters
    ----------
    alpha : float
        1 is proportional fairness; larger values come nearer to what is best for the task that is worst off.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    H. Ban, K. Ji: Fair Resource Allocation in Multi-Task Learning. 2024, arXiv:2402.15638. A. Navon et al.:
    Multi-Task Learning as a Bargaining Game. 2022, arXiv:2202.01017.
    """

    @checked
    def __init__(self, alpha: Positive = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.alpha = alpha

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the solution, by damped Newton steps that start at the one for orthogonal gradients."""
        power = 1 / self.alpha
        lengths = np.sqrt(np.diag(gramian))
        cosines = gramian / np.outer(lengths, lengths)
        shares = lengths ** (power - 1)
        x = shares ** (1 / (1 + power))  # the weights times the lengths
        for _ in range(ITERATIONS):
            residual = cosines @ x - shares * x**-power
            slope = cosines + np.diag(power * shares * x ** (-power - 1))
            change = np.linalg.lstsq(slope, -residual, rcond=None)[0]
            x = x + _length(cosines, shares, power, x, change, float(residual @ change)) * change
            if np.abs(change / x).max() < TOLERANCE or x.max() > LARGEST:
                break
        return np.asarray(x / lengths)


def _length(
    cosines: Numbers, shares: Numbers, power: float, x: Numbers, change: Numbers, slope: float
) -> float:
    """Return the share of a Newton step that keeps x positive and lets the potential fall."""
    largest = float(np.max(-change / x))
    length = min(1.0, 0.9 / largest) if largest > 0 else 1.0
    before = _potential(cosines, shares, power, x)
    while length > TOLERANCE:
        after = _potential(cosines, shares, power, x + length * change)
        if after <= before + 1e-4 * length * slope + 1e-14 * abs(before):
            break
        length /= 2
    return length


def _potential(cosines: Numbers, shares: Numbers, power: float, x: Numbers) -> float:
    """Return the convex function whose gradient is 0 at the solution."""
    integral = np.log(x) if power == 1 else x ** (1 - power) / (1 - power)
    return float(x @ cosines @ x / 2 - shares @ integral)
