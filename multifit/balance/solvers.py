"""Small optimisation problems that methods of gradients solve."""

import math
from contextlib import suppress
from typing import Any

import numpy as np

from ..arguments import one_of
from ..protocols import Numbers
from .protocol import Measured, State

# Eigenvalues of cosines below this share of the largest are rounding: the sum of a million products in
# float32 has a relative error of 4e-6.
DEPENDENT = 1e-5


def minimum(Q: Numbers, b: Numbers, total: float | None = None) -> Numbers:
    r"""Return :math:`\arg\min_{w \ge 0} \frac12 w^T Q w + b^T w`; `total` fixes the sum of w.

    Q must be positive semidefinite; unless `total` is given, :math:`w^T Q w` must be positive for all
    :math:`w \ge 0` but 0. This is an active set method: it is exact, up to rounding, after a finite number of
    steps.

    References
    ----------
    C. L. Lawson, R. J. Hanson: Solving Least Squares Problems. 1974, chapter 23.
    """
    if len(b) == 2:
        return _minimum_of_two(Q, b, total)
    count, w, free = len(b), np.zeros(len(b)), []
    scale = float(np.abs(Q).max() + np.abs(b).max()) or 1.0
    if total is not None:
        free = [int(np.argmin(np.diag(Q) * total / 2 + b))]
        w[free] = total
    for _ in range(20 * count + 50):  # rounding could make it cycle
        slope = Q @ w + b
        level = 0.0 if total is None else float(np.min(slope[free]))
        enter = int(np.argmin(slope))
        if enter in free or slope[enter] >= level - 1e-14 * scale:
            break
        free.append(enter)
        while free:
            candidate = _stationary(Q, b, free, total, scale)
            if (candidate > 0).all():
                w[:] = 0.0
                w[free] = candidate
                break
            w, free = _step_to_bound(w, free, candidate)
    return w


def _minimum_of_two(Q: Numbers, b: Numbers, total: float | None) -> Numbers:
    """Return the minimum for two variables, in plain Python: calls of NumPy would take most of the time."""
    (p, q), (_, r) = Q.tolist()
    c, d = b.tolist()
    if total is not None:  # on a line between (total, 0) and (0, total)
        bend, slope = p - 2 * q + r, (r - q) * total + d - c
        first = total if slope >= bend * total else max(slope / bend, 0.0)
        return np.array([first, total - first])
    if c >= 0 and d >= 0:
        return np.zeros(2)
    if c < 0 and d - q * c / p >= 0:
        return np.array([-c / p, 0.0])
    if d < 0 and c - q * d / r >= 0:
        return np.array([0.0, -d / r])
    first = (q * d - r * c) / (p * r - q * q)
    return np.array([first, -(d + q * first) / r])


def _stationary(Q: Numbers, b: Numbers, free: list[int], total: float | None, scale: float) -> Numbers:
    """Return the free variables where the slope is 0, or equal in all of them if their sum is fixed."""
    count, extra = len(free), 0 if total is None else 1
    system = np.full((count + extra, count + extra), scale)
    system[:count, :count] = Q[np.ix_(free, free)]
    right = -b[free]
    if total is not None:
        system[count, count] = 0.0
        right = np.append(right, scale * total)
    return solved(system, right)[:count]


def solved(system: Numbers, right: Numbers) -> Numbers:
    """Return a solution of a system of equations that may be singular."""
    with suppress(np.linalg.LinAlgError):
        solution = np.linalg.solve(system, right)
        if np.abs(system @ solution - right).max() <= 1e-10 * np.abs(right).max():
            return np.asarray(solution)
    return np.asarray(np.linalg.lstsq(system, right, rcond=1e-15)[0])


def rank(gramian: Numbers) -> int:
    """Return how many of the gradients are linearly independent, as far as float32 can tell."""
    return len(_independent(gramian)[1])


def equal_projections(gramian: Numbers, targets: Numbers | float = 1.0) -> Numbers:
    """Return, up to a factor, the weights of a sum whose projections on the gradients are the `targets`.

    The weights are :math:`D^{-1} R^+ p`, D being the gradients' lengths, R their cosines and p the targets.
    """
    lengths, values, vectors = _independent(gramian)
    return np.asarray(vectors @ (np.sum(vectors.T * targets, axis=1) / values) / lengths)


def _independent(gramian: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the gradients' lengths, and the eigenvalues and eigenvectors of their cosines.

    Eigenvalues that are only rounding are left out.
    """
    lengths = np.sqrt(np.diag(gramian))
    values, vectors = np.linalg.eigh(gramian / np.outer(lengths, lengths))
    kept = values > DEPENDENT * values[-1]
    return lengths, values[kept], vectors[:, kept]


def _step_to_bound(w: Numbers, free: list[int], candidate: Numbers) -> tuple[Numbers, list[int]]:
    """Move w towards the candidate until a variable reaches 0; return w and the variables still free."""
    falls = [(w[i] / (w[i] - value), at) for at, (i, value) in enumerate(zip(free, candidate)) if value <= 0]
    share, at = min(falls)
    w = w.copy()
    w[free] += share * (candidate - w[free])
    w[free[at]] = 0.0
    return w, free[:at] + free[at + 1 :]


def regularized(gramian: Numbers, regularization: float) -> Numbers:
    r"""Return :math:`M' = M / \mathrm{tr}(M) + \varepsilon I`, :math:`\varepsilon` being `regularization`."""
    definite: Numbers = gramian / gramian.trace()
    definite.flat[:: len(gramian) + 1] += regularization
    return definite


def projected(definite: Numbers, lower: Numbers) -> Numbers:
    r"""Return :math:`\arg\min_{v \ge u} v^T M' v`, the weights whose gradient conflicts with no task's.

    u is `lower`, and M' is `definite`.
    """
    slope = definite @ lower
    return lower + minimum(definite, slope) if min(slope.tolist()) < 0 else lower


OPTIMIZERS = one_of("adam", "sgd")
MEAN, SQUARE, EPSILON = 0.9, 0.999, 1e-8


def started(values: float, tasks: int, optimizer: str) -> State:
    """Return the state of `tasks` numbers that all start at `values`."""
    names = ("mean", "square", "count") if optimizer == "adam" else ()
    return {"values": np.full(tasks, values), **{name: np.zeros(tasks) for name in names}}


def descended(measured: Measured, state: State, gradient: Any, rate: float, optimizer: str = "adam") -> State:
    """Return the state after one step against the gradient; the numbers of absent tasks do not change.

    "adam" has the usual constants; each task counts its own steps.

    References
    ----------
    D. P. Kingma, J. Ba: Adam: A Method for Stochastic Optimization. 2015, arXiv:1412.6980.
    """
    F, there = measured.F, measured.present
    gradient = gradient * there
    if optimizer == "sgd":
        return {"values": state["values"] - rate * gradient}
    count = state["count"] + there
    mean = state["mean"] + (1 - MEAN) * (gradient - state["mean"]) * there
    square = state["square"] + (1 - SQUARE) * (gradient * gradient - state["square"]) * there
    at_least_1 = F.maximum(count, 1.0)
    corrected = F.sqrt(square / (1 - _power(F, SQUARE, at_least_1))) + EPSILON
    step = rate * there * mean / (1 - _power(F, MEAN, at_least_1)) / corrected
    return {"values": state["values"] - step, "mean": mean, "square": square, "count": count}


def _power(F: Any, base: float, exponent: Any) -> Any:
    return F.exp(math.log(base) * exponent)
