"""Methods that weigh the gradients of tasks, by their inner products."""

from typing import Annotated, Any

import numpy as np

from ..utils.arguments import NotNegative, Positive, Seed, checked, known_arguments, one_of
from ..utils.protocols import Numbers
from .protocol import GramianMethod, Measured, State, options_of
from .solvers import equal_projections, fair, projected, rank, regularized, shortest


def _mean(gramian: Numbers, preference: Numbers | float) -> Numbers:
    """Return the weights of the gradients' mean, in which each counts by its preference."""
    return np.full(len(gramian), 1 / len(gramian)) * preference


class Sum(GramianMethod):
    r"""Leaves all weights at 1, so that training is as without a method, and measures the gradients.

    .. math:: w_k = p_k

    where p is the preference, 1 for each task by default. With ``Sum(every=50)``, the figures of norms,
    cosines and conflicts are measured in every fiftieth batch, at hardly any cost. The sum of the weights is
    K.

    References
    ----------
    That tuned sums are as good as most methods: V. Kurin et al.: In Defense of the Unitary Scalarization for
    Deep Multi-Task Learning. 2022, arXiv:2201.04122.
    """

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the preference: ones by default."""
        return np.ones(len(gramian)) * preference


LEAST = 1e-8  # replaces a weight that a step would make 0 or negative
ROUNDING = 1e-9  # relative difference up to which two lengths count as equal


class GradNorm(GramianMethod):
    r"""Keeps the tasks' weighted gradients near a common length, longer for tasks that train more slowly.

    .. math:: \min_w \sum_k \bigl| w_k \|g_k\| - \bar G p_k r_k^\alpha \bigr|, \qquad
        r_k = \frac{\ell_k / \ell_k(0)}{\mathrm{mean}_j\; \ell_j / \ell_j(0)}

    where :math:`\bar G`, the mean of :math:`w_k \|g_k\|`, counts as constant, and p is the preference. The
    weights take a step of gradient descent after each batch, and are then scaled so that their sum is K.

    Parameters
    ----------
    alpha : float
        How strongly tasks that train slowly are favoured.
    learning_rate : float
        The learning rate of the weights.
    **options
        Those of :class:`GramianMethod`. The paper uses the norms of the last shared layer's gradients.

    References
    ----------
    Z. Chen et al.: GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask Networks.
    2018, arXiv:1711.02257.
    """

    @checked
    def __init__(self, alpha: NotNegative = 1.5, learning_rate: Positive = 0.025, **options: Any) -> None:
        super().__init__(**options)
        self.alpha, self.learning_rate = alpha, learning_rate

    def start(self, tasks: int) -> State:
        """Return the weights before the first batch; the losses of a task's first batch are not known yet."""
        return {"weights": np.ones(tasks), "first": np.full(tasks, np.nan)}

    def weights(self, measured: Measured, state: State) -> tuple[Numbers, State]:
        """Return the weights, and the state with the weights after a step."""
        weights, first = state["weights"], state["first"]
        first = np.where(np.isnan(first), measured.losses, first)
        norms = np.sqrt(np.diag(measured.gramian))
        rates = measured.losses / first
        preference = measured.preference / np.mean(measured.preference)
        targets = np.mean(weights * norms) * preference * (rates / rates.mean()) ** self.alpha
        excess = weights * norms - targets
        excess[np.abs(excess) <= ROUNDING * targets] = 0  # however small it is, its step is as long
        updated = weights - self.learning_rate * np.sign(excess) * norms
        updated = np.maximum(updated, LEAST)
        return weights, {"weights": updated * weights.sum() / updated.sum(), "first": first}


class PCGrad(GramianMethod):
    r"""Removes from each task's gradient what conflicts with the other tasks' gradients, one after the other.

    .. math:: c_i \leftarrow c_i - \min\bigl(0, \langle c_i, g_j \rangle\bigr) / \|g_j\|^2 \; g_j
        \quad \text{for all } j \ne i \text{ in random order}, \qquad g = \sum_i p_i c_i

    where p is the preference. The order depends on the seed and the number of batches trained before. The sum
    of the weights is at least K, and K if no two gradients conflict.

    Parameters
    ----------
    seed : int
        The seed of the order.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    T. Yu et al.: Gradient Surgery for Multi-Task Learning. 2020, arXiv:2001.06782.
    """

    @checked
    def __init__(self, seed: Seed = 0, **options: Any) -> None:
        super().__init__(**options)
        self.seed = seed

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the weighted sum of the rows c, each a combination of the gradients."""
        rows = np.eye(len(gramian))
        for i, order in enumerate(self.orders(step, len(gramian))):
            for j in order:
                product = gramian[j] @ rows[i]
                if j != i and product < 0:
                    rows[i, j] -= product / gramian[j, j]
        return np.asarray(np.sum(rows.T * preference, axis=1))

    def orders(self, step: int, tasks: int) -> list[Any]:
        """Return, for each task, the order in which its conflicts with the other tasks are removed."""
        if tasks == 2:  # there is only one order, and making a generator takes long
            return [[1], [0]]
        random = np.random.default_rng([self.seed, step])
        return [random.permutation(tasks) for _ in range(tasks)]


class MGDA(GramianMethod):
    r"""Takes the shortest weighted mean of the tasks' gradients.

    .. math:: w = \arg\min_{w \ge 0,\; \sum_k w_k = 1} w^T M w

    No task's loss grows along it, to first order. Solved exactly. The sum of the weights is 1. Tasks with
    small gradients get the most weight. With a preference p, the gradients are divided by it: the losses that
    limit the mean then fall in proportion to p.

    References
    ----------
    J.-A. Désidéri: Multiple-Gradient Descent Algorithm (MGDA) for Multiobjective Optimization. 2012, Comptes
    Rendus Mathematique 350. O. Sener, V. Koltun: Multi-Task Learning as Multi-Objective Optimization. 2018,
    arXiv:1810.04650.
    """

    averages = True

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the weights of the shortest mean."""
        inner = gramian / np.outer(preference, preference)
        weights = shortest(inner / np.trace(inner))[0] / preference
        return np.asarray(weights * np.mean(preference) / weights.sum())


NOISE = 1e-3  # a sum this short, relative to its terms, is rounding: the root of a Gramian's error in float32


class CAGrad(GramianMethod):
    r"""Takes the gradient near the mean that maximizes the smallest decrease of a task's loss.

    .. math:: g = g_0 + c \|g_0\| \frac{g_w}{\|g_w\|}, \qquad
        w = \arg\min_{w \ge 0,\; \sum_k w_k = 1} \langle g_w, g_0 \rangle + c \|g_0\| \|g_w\|

    where :math:`g_w = \sum_k w_k g_k`, and :math:`g_0` is the mean of the gradients, weighted by the
    preference. Solved exactly. The sum of the weights is not fixed: the gradient is at most :math:`1 + c`
    times as long as the mean, which is 1/K of the sum of the gradients. Where gradients cancel, so that
    :math:`g_w` is only rounding, its direction means nothing, and the mean is taken.

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

    averages = True

    @checked
    def __init__(self, c: NotNegative = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self.c = c

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the weights of the mean plus those of the direction that is added to it."""
        inner = gramian / np.trace(gramian)
        mean = _mean(gramian, preference)
        radius = self.c * float(np.sqrt(max(mean @ inner @ mean, 0.0)))
        if not radius:
            return mean
        mixture, length = shortest(inner, radius, mean)
        if length <= NOISE * float(mixture @ np.sqrt(np.diag(inner))):
            return mean
        return np.asarray(mean + radius / length * mixture)


class IMTLG(GramianMethod):
    r"""Takes the combination of gradients with equal projections on all of them.

    .. math:: w = v / \sum_k v_k, \qquad v = D^{-1} R^+ p

    where D has the gradients' lengths and R their cosines, and p is the preference, to which the projections
    are proportional: ones by default. Then this is :math:`M^{-1} \sqrt{\mathrm{diag}\, M}`, but accurate even
    where the lengths differ by many powers of ten. Weights may be negative; their sum is 1. Where the sum of
    v is 0, v cannot be scaled to a sum of 1, and the mean of the gradients is taken.

    References
    ----------
    L. Liu et al.: Towards Impartial Multi-Task Learning. 2021, ICLR.
    """

    averages = True

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the weights with equal projections."""
        lengths, weights = np.sqrt(np.diag(gramian)), equal_projections(gramian, preference)
        total = float(weights.sum())
        if abs(total) <= 1e-12 * float(np.sum(preference / lengths)):
            return _mean(gramian, preference)
        return np.asarray(weights * np.mean(preference) / total)


class FairGrad(GramianMethod):
    r"""Shares the total decrease of the losses among the tasks, :math:`\alpha`-fairly.

    .. math:: M w = (w / p)^{-1/\alpha}, \qquad w > 0

    where p is the preference: a task counts as if there were :math:`p_k` tasks of its kind.
    ``FairGrad(alpha=1)`` is :class:`NashMTL`. Solved by Newton's method for the cosines of the gradients, so
    that their lengths do not matter. The sum of the weights is not fixed: with orthogonal gradients and
    :math:`\alpha = 1`, the weights are :math:`1 / \|g_k\|`, so the net's learning rate is in units of
    normalised gradients. Opposite gradients cannot be balanced this way; the weights are then large.

    Parameters
    ----------
    alpha : float
        1 is proportional fairness; larger values come nearer to what is best for the task that is worst off.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    H. Ban, K. Ji: Fair Resource Allocation in Multi-Task Learning. 2024, arXiv:2402.15638.
    """

    @checked
    def __init__(self, alpha: Positive = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.alpha = alpha

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the solution."""
        power, lengths = 1 / self.alpha, np.sqrt(np.diag(gramian))
        shares = lengths ** (power - 1) * preference**power
        return np.asarray(fair(gramian / np.outer(lengths, lengths), shares, power) / lengths)


class NashMTL(FairGrad):
    r"""Takes the Nash bargaining solution: :class:`FairGrad` with :math:`\alpha = 1`, solved exactly.

    .. math:: M w = p / w, \qquad w > 0

    This maximizes :math:`\prod_k \langle g, g_k \rangle^{p_k}` over combinations g of the gradients of a
    given length, p being the preference. The sum of the weights is not fixed, and is that of
    :class:`FairGrad`.

    References
    ----------
    A. Navon et al.: Multi-Task Learning as a Bargaining Game. 2022, arXiv:2202.01017.
    """

    def __init__(self, **options: Any) -> None:
        known_arguments(type(self).__name__, options, options_of(GramianMethod))
        super().__init__(1.0, **options)


class AlignedMTL(GramianMethod):
    r"""Makes the gradients orthogonal and equally long, with the least change, and takes their mean.

    .. math:: w = \sqrt{\sigma}\; V \Lambda^{-1/2} V^T u, \qquad M = V \Lambda V^T, \quad u_k = p_k/K

    p being the preference, over the eigenvalues that are not 0, of which :math:`\sigma` is the smallest, the
    median or the mean. The sum of the weights is not fixed; with orthogonal gradients of equal length, it is
    1.

    Parameters
    ----------
    scale : {"min", "median", "rmse"}
        The eigenvalue that all are scaled to: the smallest, the median or the mean.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    D. Senushkin, N. Patakin, A. Kuznetsov, A. Konushin: Independent Component Alignment for Multi-Task
    Learning. 2023, arXiv:2305.19000.
    """

    averages = True

    @checked
    def __init__(
        self, scale: Annotated[str, one_of("min", "median", "rmse")] = "min", **options: Any
    ) -> None:
        super().__init__(**options)
        self.scale = scale

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the weights of the aligned gradients' mean."""
        tasks = len(gramian)
        values, vectors = np.linalg.eigh(gramian, UPLO="U")
        positive = values > values.max() * tasks * np.finfo(np.float64).eps
        # More may be rounding, as the cosines show: the Gramian's own are small for short gradients too.
        positive[: tasks - rank(gramian)] = False
        values, vectors = values[positive], vectors[:, positive]
        scales = {"min": values[0], "median": values[(len(values) - 1) // 2], "rmse": values.mean()}
        mean = _mean(gramian, preference)
        return np.asarray(np.sqrt(scales[self.scale]) * (vectors / np.sqrt(values)) @ vectors.T @ mean)


AT_ONCE = 10**7  # coefficients of systems of equations that are solved together, 80 MB


class UPGrad(GramianMethod):
    r"""Projects each task's gradient, so that it conflicts with no other task's, and takes the mean.

    .. math:: w = \sum_i \arg\min_{v \ge p_i e_i / K} v^T M' v, \qquad M' = M / \mathrm{tr}(M) + \varepsilon I

    where p is the preference, 1 for each task by default. No task's loss grows along the mean, to first
    order, and tasks count in proportion to their gradients. The sum of the weights is at least 1, and 1 if no
    two gradients conflict.

    Parameters
    ----------
    regularization : float
        :math:`\varepsilon`. TorchJD uses 1e-4, which hides tasks whose gradients are a hundred times shorter
        than others'; in float64 a much smaller one is enough.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    P. Quinton, V. Rey: Jacobian Descent for Multi-Objective Optimization. 2024, arXiv:2406.16232.
    """

    averages = True

    @checked
    def __init__(self, regularization: Positive = 1e-12, **options: Any) -> None:
        super().__init__(**options)
        self.regularization = regularization

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the sum of the projected gradients' weights."""
        mean = _mean(gramian, preference)
        if gramian.min() >= 0:  # no conflict: the projection changes nothing
            return mean
        definite = regularized(gramian, self.regularization)
        each, some = np.diag(mean), 1 + AT_ONCE // len(mean) ** 2
        parts = [projected(definite, each[i : i + some]).sum(axis=0) for i in range(0, len(mean), some)]
        return np.asarray(sum(parts))


class DualProj(GramianMethod):
    r"""Projects the mean of the gradients, so that it conflicts with no task's gradient.

    .. math:: w = \arg\min_{v \ge p / K} v^T M' v, \qquad M' = M / \mathrm{tr}(M) + \varepsilon I

    where p is the preference, 1 for each task by default. No task's loss grows along it, to first order. The
    sum of the weights is at least 1, and 1 if the mean conflicts with no gradient.

    Parameters
    ----------
    regularization : float
        :math:`\varepsilon`; TorchJD uses 1e-4, see :class:`UPGrad`.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    D. Lopez-Paz, M. Ranzato: Gradient Episodic Memory for Continual Learning. 2017, arXiv:1706.08840.
    """

    averages = True

    @checked
    def __init__(self, regularization: Positive = 1e-12, **options: Any) -> None:
        super().__init__(**options)
        self.regularization = regularization

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the weights of the projected mean."""
        mean = _mean(gramian, preference)
        return np.asarray(projected(regularized(gramian, self.regularization), mean[None])[0])


class ConFIG(GramianMethod):
    r"""Takes the direction with equal cosines to all gradients, and the sum of their projections as length.

    .. math:: w = a \, \frac{1^T M a}{a^T M a}, \qquad a = D^{-1} R^+ p

    where D has the gradients' lengths and R their cosines, and p is the preference, to which the cosines are
    proportional: ones by default. The sum of the weights is not fixed: without conflicts, the gradient is
    about as long as the sum of the gradients projected on it. Opposite gradients have no such direction, and
    their mean is taken.

    References
    ----------
    Q. Liu, M. Chu, N. Thuerey: ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks.
    2024, arXiv:2408.11104.
    """

    def solve(self, gramian: Numbers, step: int = 0, preference: Numbers | float = 1.0) -> Numbers:
        """Return the weights of the conflict-free direction."""
        direction = equal_projections(gramian, preference)
        if np.abs(direction * np.sqrt(np.diag(gramian))).max() <= 1e-8:  # only rounding
            return _mean(gramian, preference)
        square = float(direction @ gramian @ direction)
        return np.asarray(direction * float(np.sum(gramian @ direction)) / square)
