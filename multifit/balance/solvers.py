"""Small optimisation problems that methods of gradients solve."""

import math
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from ..utils.protocols import Numbers

# Eigenvalues of cosines below this share of the largest are rounding: the sum of a million products in
# float32 has a relative error of 4e-6.
DEPENDENT = 1e-5
ROUNDING = 1e-14  # of a slope, relative to the sum of its terms
EXCHANGES = 8  # 1 to 5 are enough unless more gradients are free than are independent
ITERATIONS = 100


def minimum(Q: Numbers, b: Numbers, total: float | None = None, start: Numbers | None = None) -> Numbers:
    r"""Return :math:`\arg\min_{w \ge 0} \frac12 w^T Q w + b^T w`; `total` fixes the sum of w.

    Q must be positive semidefinite; unless `total` is given, :math:`w^T Q w` must be positive for all
    :math:`w \ge 0` but 0. This is an active set method: it is exact, up to rounding, after a finite number of
    steps, fewer if `start`, w's without a `total`, is near the minimum. As many variables need many steps,
    `projected` and `shortest` first try a faster way.

    References
    ----------
    C. L. Lawson, R. J. Hanson: Solving Least Squares Problems. 1974, chapter 23.
    """
    if len(b) == 2:
        return _minimum_of_two(Q, b, total)
    w = np.zeros(len(b)) if start is None else start
    scale = float(np.abs(Q).max() + np.abs(b).max()) or 1.0
    sizes = np.abs(Q)
    if total is not None:
        w[np.argmin(np.diag(Q) * total / 2 + b)] = total
    free = np.flatnonzero(w).tolist()
    for step in range(20 * len(b) + 50):  # rounding could make it cycle
        if step or start is None:
            slope = Q @ w + b
            level = 0.0 if total is None else float(w @ slope) / total
            slope += ROUNDING * (sizes @ w + np.abs(b))
            slope[free] = np.inf
            enter = int(np.argmin(slope))
            if slope[enter] >= level:
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

    M' is `definite`; each row of `lower`, (N, K), is a u.
    """
    slopes = lower @ definite
    if len(definite) == 2:
        return np.array([u + minimum(definite, slope) for u, slope in zip(lower, slopes)])
    if slopes.min() >= 0:
        return lower
    lengths = np.sqrt(definite.diagonal())
    cosines, slopes = definite / np.outer(lengths, lengths), slopes / lengths
    identity, sizes = np.eye(len(definite)), np.abs(cosines)

    def solved_for(free: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
        systems = np.where(free[:, :, None] & free[:, None, :], cosines, identity)
        w = np.linalg.solve(systems, np.where(free, -slopes[rows], 0.0)[..., None])[..., 0]
        return w, w @ cosines + slopes[rows] + ROUNDING * (np.abs(w) @ sizes + np.abs(slopes[rows]))

    above, left = _exchanged(solved_for, slopes < 0)
    for row in left:
        above[row] = minimum(cosines, slopes[row], start=np.maximum(above[row], 0.0))
    return np.asarray(lower + above / lengths)


def shortest(inner: Numbers, radius: float = math.inf, mean: Numbers | None = None) -> tuple[Numbers, float]:
    r"""Return :math:`\arg\min_w \langle g_w, g_0 \rangle + r \|g_w\|` and the length of :math:`g_w`.

    :math:`g_w = \sum_k w_k g_k` is a weighted mean, :math:`w \ge 0` and :math:`\sum_k w_k = 1`;
    :math:`g_0` is the sum with the weights `mean`; r is `radius`. By default, :math:`g_w` is the shortest
    weighted mean. `inner` has the gradients' inner products, divided by their trace.
    """
    products = np.zeros(len(inner)) if mean is None else inner @ mean
    w = _mean_by_exchanges(inner, radius, products) if len(inner) > 2 else None
    if w is None and radius < math.inf:
        w = _bisected(inner, radius, products)
    elif w is None:
        w = minimum(inner, products, total=1.0)
    return w, math.sqrt(max(float(w @ inner @ w), 0.0))


def _mean_by_exchanges(inner: Numbers, radius: float, products: Numbers) -> Numbers | None:
    r"""Return w as `shortest` does, or None if exchanges do not find it; `products` are those with g_0.

    With :math:`t = \|g_w\| / r`, w minimises :math:`\|g_w\|^2 / 2 + t \langle g_w, g_0 \rangle`. While the
    same weights are positive, :math:`w = a + t c` and :math:`\|g_w\|^2 = \|g_a\|^2 + t^2 \|g_c\|^2`, from
    which t follows. The unknowns are the weights times the gradients' lengths, of which the shortest is 1.
    """
    count, lengths = len(inner), np.sqrt(inner.diagonal())
    unit, cosines = lengths.min(), inner / np.outer(lengths, lengths)
    shares, mean, square = unit / lengths, products / lengths / unit, (radius / unit) ** 2
    # At t = 0, each w that lets gradients cancel is a minimum; one of them remains for t above 0.
    least, most = 1e-6 * unit / radius, lengths.max() / radius
    identity, sizes = np.eye(count), np.abs(cosines)
    system, rights = np.zeros((count + 1, count + 1)), np.zeros((count + 1, 2))
    rights[count, 0] = 1.0

    def solved_for(free: Numbers, _: Numbers) -> tuple[Numbers, Numbers]:
        system[:count, :count] = np.where(free.T & free, cosines, identity)
        system[count, :count] = system[:count, count] = shares * free[0]
        rights[:count, 1] = -mean * free[0]
        a, c = np.linalg.solve(system, rights).T
        a_square, c_square = max(-a[count], 0.0), -float(c[:count] @ mean)
        root = math.sqrt(a_square / (square - c_square)) if square > c_square else most
        t = min(max(root, least), most)
        solution = a + t * c
        w, level = solution[:count], -solution[count]
        rounding = ROUNDING * (sizes @ np.abs(w) + t * np.abs(mean))
        return w[None], (cosines @ w + t * mean - level * shares + rounding)[None]

    first = int(lengths.argmin())
    (w,), left = _exchanged(solved_for, inner[first : first + 1] <= inner[first, first])
    return None if len(left) else w * shares


def _exchanged(
    solved_for: Callable[[Numbers, Numbers], tuple[Numbers, Numbers]], free: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the minima of several programs, (N, K), and the indexes of those that were not found.

    `solved_for` is given which variables are free, and the programs' indexes. It returns the variables, which
    are 0 unless they are free, and their slopes, which are at least 0 at a minimum. Exchanges each variable
    that is on the wrong side, all of them at once: block principal pivoting, which may cycle.

    References
    ----------
    J. Kim, H. Park: Fast Nonnegative Matrix Factorization: An Active-Set-Like Method and Comparisons. 2011,
    SIAM Journal on Scientific Computing 33.
    """
    found, left = np.zeros(free.shape), np.arange(len(free))
    for _ in range(EXCHANGES):
        try:
            found[left], slopes = solved_for(free[left], left)
        except np.linalg.LinAlgError:
            break
        wrong = np.where(free[left], found[left], slopes) < 0
        free[left] ^= wrong
        left = left[wrong.any(axis=1)]
        if not len(left):
            break
    return found, left


def _bisected(inner: Numbers, radius: float, products: Numbers) -> Numbers:
    r"""Return w as `shortest` does, by bisection with secants (the Illinois method).

    As :math:`\|g_w\| = \min_q (\|g_w\|^2 / q + q) / 2`, w minimises a quadratic function for the right q,
    which is the length itself. There alone, :math:`\|g_w\| - q` changes its sign.
    """
    low, high = 1e-150, float(np.sqrt(np.diag(inner).max())) * 2
    below, above = 1.0, -1.0
    q, side = high / 2, 0
    for _ in range(ITERATIONS):
        w = minimum(inner * radius / q, products, total=1.0)
        excess = float(np.sqrt(max(float(w @ inner @ w), 1e-300))) - q
        if abs(excess) <= 1e-14 * q or high - low <= 1e-14 * high:
            break
        if excess > 0:
            low, below, above = q, excess, above / 2 if side > 0 else above
        else:
            high, above, below = q, excess, below / 2 if side < 0 else below
        side = 1 if excess > 0 else -1
        q = (low * -above + high * below) / (below - above)
    return w


NEWTON_STEPS, TOLERANCE, LARGEST = 200, 1e-12, 1e8


def fair(cosines: Numbers, shares: Numbers, power: float) -> Numbers:
    r"""Return :math:`x > 0` with :math:`C x = s x^{-p}`, C being `cosines`, s the `shares` and p the `power`.

    Takes damped Newton steps from the solution for orthogonal gradients. Without a solution, x is large.
    """
    x = shares ** (1 / (1 + power))
    for _ in range(NEWTON_STEPS):
        residual = cosines @ x - shares * x**-power
        slope = cosines + np.diag(power * shares * x ** (-power - 1))
        change = np.linalg.lstsq(slope, -residual, rcond=None)[0]
        x = x + _length(cosines, shares, power, x, change, float(residual @ change)) * change
        if np.abs(change / x).max() < TOLERANCE or x.max() > LARGEST:
            break
    return np.asarray(x)


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
