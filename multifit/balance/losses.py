"""Methods that weigh the losses of tasks."""

import math
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from ..utils.arguments import Count, NotNegative, Positive, Seed, checked, one_of
from ..utils.protocols import Numbers
from .protocol import LARGEST, LossMethod, Measured, State

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


class Uncertainty(LossMethod):
    r"""Learns how uncertain each task is, and weighs it with the inverse of its variance.

    .. math:: \min_{\theta, s} \sum_k \tfrac12 e^{-s_k} \ell_k + \tfrac12 s_k, \qquad w_k = \tfrac12 e^{-s_k}

    An optimizer of its own updates :math:`s_k`, the logarithm of a variance, after each batch. The sum of the
    weights is not fixed: it starts at K/2, and grows as the losses fall.

    Parameters
    ----------
    start : float
        :math:`s_k` at the beginning: 0 makes every weight 1/2, and -0.69 makes it 1.
    learning_rate : float
        The learning rate of :math:`s_k`. In the paper, the net's own optimizer learns it.
    optimizer : {"adam", "sgd"}
        The optimizer of :math:`s_k`.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    A. Kendall, Y. Gal, R. Cipolla: Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry
    and Semantics. 2018, arXiv:1705.07115.
    """

    @checked
    def __init__(
        self,
        start: float = 0.0,
        learning_rate: Positive = 1e-3,
        optimizer: Annotated[str, OPTIMIZERS] = "adam",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.at_start, self.learning_rate, self.optimizer = start, learning_rate, optimizer

    def start(self, tasks: int) -> State:
        """Return the logarithms of the variances before the first batch."""
        return started(self.at_start, tasks, self.optimizer)

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return half the inverse variances, and the state after a step."""
        weights = 0.5 * measured.F.exp(-state["values"])
        gradient = 0.5 - weights * measured.losses
        return weights, descended(measured, state, gradient, self.learning_rate, self.optimizer)


class IMTLL(LossMethod):
    r"""Learns factors that scale all losses to the same size.

    .. math:: \min_{\theta, s} \sum_k e^{s_k} \ell_k - s_k, \qquad w_k = e^{s_k}

    At the minimum over s, every weighted loss is 1. An optimizer of its own updates :math:`s_k` after each
    batch. The sum of the weights is not fixed: it starts at K, and grows as the losses fall.

    Parameters
    ----------
    learning_rate : float
        The learning rate of :math:`s_k`, which starts at 0. In the paper, the net's own optimizer learns it.
    optimizer : {"adam", "sgd"}
        The optimizer of :math:`s_k`.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    L. Liu et al.: Towards Impartial Multi-Task Learning. 2021, ICLR.
    """

    @checked
    def __init__(
        self, learning_rate: Positive = 1e-3, optimizer: Annotated[str, OPTIMIZERS] = "adam", **options: Any
    ) -> None:
        super().__init__(**options)
        self.learning_rate, self.optimizer = learning_rate, optimizer

    def start(self, tasks: int) -> State:
        """Return the logarithms of the weights before the first batch."""
        return started(0.0, tasks, self.optimizer)

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the weights, and their logarithms after a step."""
        weights = measured.F.exp(state["values"])
        gradient = weights * measured.losses - 1.0
        return weights, descended(measured, state, gradient, self.learning_rate, self.optimizer)


class GLS(LossMethod):
    r"""Minimises the geometric mean of the losses, which does not depend on how they are scaled.

    .. math:: L = \Bigl(\prod_k \ell_k\Bigr)^{1/K}, \qquad w_k = \partial L / \partial \ell_k = L / (K \ell_k)

    All losses must be positive; one that is not makes the weights NaN. The sum of the weights is not fixed;
    it is at least 1, and 1 if all losses are equal.

    References
    ----------
    S. Chennupati et al.: MultiNet++: Multi-Stream Feature Aggregation and Geometric Loss Strategy for
    Multi-Task Learning. 2019, arXiv:1904.08492.
    """

    averages = True

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the derivatives of the geometric mean."""
        F = measured.F
        tasks = F.maximum(measured.total(F.ones_like(measured.losses)), 1.0)
        mean = F.exp(measured.total(F.log(measured.losses)) / tasks)
        return mean / (tasks * measured.losses), state


class DWA(LossMethod):
    r"""Gives more weight to tasks whose losses fall more slowly from epoch to epoch.

    .. math:: w_k = K \, \mathrm{softmax}(r / T)_k, \qquad r_k = L_k(t - 1) / L_k(t - 2)

    where :math:`L_k(t)` is the mean loss of epoch t. In the first two epochs all weights are 1. The sum of
    the weights is K.

    Parameters
    ----------
    temperature : float
        T: the higher, the more equal the weights.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    S. Liu, E. Johns, A. J. Davison: End-to-End Multi-Task Learning with Attention. 2019, arXiv:1803.10704.
    """

    @checked
    def __init__(self, temperature: Positive = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.temperature = temperature

    def start(self, tasks: int) -> State:
        """Return the sums of this epoch, and the means of the two before it."""
        arrays = {name: np.zeros(tasks) for name in ("sums", "counts")}
        means = {name: np.ones(tasks) for name in ("last", "before")}
        return {**arrays, **means, "epoch": np.full(tasks, -1.0), "done": np.full(tasks, -1.0)}

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the weights of the epoch, and the state with the losses of this batch added."""
        F, next_epoch = measured.F, self._after_epoch(measured.F, state)
        is_new = state["epoch"] != measured.epoch
        state = {name: F.where(is_new, next_epoch[name], state[name]) for name in next_epoch}
        state["sums"] = state["sums"] + measured.losses * measured.present
        state["counts"] = state["counts"] + measured.present
        state["epoch"] = measured.epoch
        ratios = F.exp(state["last"] / state["before"] / self.temperature)
        weights = measured.tasks * ratios / measured.repeated(F.sum(ratios, axis=0, keepdims=True))
        return F.where(state["done"] < 2, F.ones_like(weights), weights), state

    def _after_epoch(self, F: Any, state: State) -> State:
        mean = F.where(state["counts"] > 0, state["sums"] / F.maximum(state["counts"], 1.0), state["last"])
        zeros = F.zeros_like(mean)
        ended = {"sums": zeros, "counts": zeros, "before": state["last"], "last": mean}
        return {**ended, "done": state["done"] + 1}


BLOCK = 256  # batches whose weights are drawn at once


class RLW(LossMethod):
    r"""Draws new weights for every batch.

    .. math:: w = \mathrm{softmax}(z), \qquad z_k \sim \mathcal N(0, 1)

    The weights depend on the seed and the number of batches trained before. Their sum is 1.

    Parameters
    ----------
    seed : int
        The seed of the weights.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    B. Lin et al.: Reasonable Effectiveness of Random Weighting: A Litmus Test for Multi-Task Learning. 2022,
    arXiv:2111.10603.
    """

    needs, on_device = "nothing", False

    @checked
    def __init__(self, seed: Seed = 0, **options: Any) -> None:
        super().__init__(**options)
        self.seed = seed

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return weights that were drawn for this batch."""
        return _block(self.seed, measured.step // BLOCK, measured.tasks)[measured.step % BLOCK], state


@lru_cache(maxsize=4)
def _block(seed: int, number: int, tasks: int) -> Numbers:
    """Return the weights of many batches at once: making a generator takes much longer than drawing."""
    return softmax(np.random.default_rng([seed, number]).standard_normal((BLOCK, tasks)))


def softmax(rows: Numbers) -> Numbers:
    """Return the softmax of each row of moderate numbers."""
    values = np.exp(rows)
    return np.asarray(values / values.sum(axis=1, keepdims=True))


TINY = 1e-8
LEAST = 1e-300  # sums are divided by at least this: they are 0 if no task is present


class FAMO(LossMethod):
    r"""Lets all losses fall at the same relative rate, at the cost of a second forward pass.

    .. math:: z = \mathrm{softmax}(\omega), \qquad w_k = \frac{c\,z_k}{\ell_k + 10^{-8}}, \qquad
        c = 1 \Big/ \sum_k \frac{z_k}{\ell_k + 10^{-8}}

    After the parameters were updated, the losses of the same batch are computed again, and Adam updates
    :math:`\omega` along :math:`J^T (\log \ell - \log \ell')`, J being the Jacobian of the softmax. All losses
    must be positive. The sum of the weights is 1.

    Parameters
    ----------
    learning_rate : float
        The learning rate of :math:`\omega`.
    weight_decay : float
        How strongly :math:`\omega` is pulled to 0: 1e-3 in the paper, 1e-5 in its authors' code.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    B. Liu, Y. Feng, P. Stone, Q. Liu: FAMO: Fast Adaptive Multitask Optimization. 2023, arXiv:2306.03792.
    """

    averages = True

    @checked
    def __init__(
        self, learning_rate: Positive = 0.025, weight_decay: NotNegative = 1e-3, **options: Any
    ) -> None:
        super().__init__(**options)
        self.learning_rate, self.weight_decay = learning_rate, weight_decay

    def start(self, tasks: int) -> State:
        """Return the logits of the softmax before the first batch."""
        return started(0.0, tasks, "adam")

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the weights; the logits change in `after_update`."""
        shares = _shares(measured, state["values"]) / (measured.losses + TINY)
        return shares / measured.F.maximum(measured.total(shares), LEAST), state

    def after_update(self, measured: Measured, after: Any, state: State) -> State:
        """Return the new state; `after` are the losses of the same batch after the update."""
        F, shares = measured.F, _shares(measured, state["values"])
        after = F.where(measured.present == 1, after, F.ones_like(after))
        falls = F.log(measured.losses + TINY) - F.log(after + TINY)
        gradient = shares * (falls - measured.total(shares * falls)) + self.weight_decay * state["values"]
        return descended(measured, state, gradient, self.learning_rate)


class STCH(LossMethod):
    r"""Minimises a smooth maximum of the losses, each relative to its mean in a reference epoch.

    .. math:: L = K \mu \log \sum_k (\ell_k / \ell^0_k)^{1/\mu}, \qquad
        w_k = \partial L / \partial \ell_k = K \, \mathrm{softmax}(z)_k / \ell_k, \qquad
        z_k = \log(\ell_k / \ell^0_k) / \mu

    where K is the number of tasks that are present: smooth Tchebycheff scalarization of the logarithms, as
    its authors use it for several tasks. Before, in the epochs of the warm-up, the sum of the logarithms is
    minimised: :math:`w_k = 1 / \ell_k`. The mean of a task's losses over the batches of the last of these
    epochs is :math:`\ell^0_k`; if it was absent from them all, its first loss after them. All losses must be
    positive; one that is not makes the weights NaN. The sum of the weights is not fixed; that of the weighted
    losses is K. Whatever multiplies a loss, such as its declared weight, has no effect.

    Parameters
    ----------
    mu : float
        :math:`\mu`: the smaller, the more the task with the largest relative loss counts alone. 1 is the
        authors' choice for several tasks.
    warmup : int
        The number of epochs of the warm-up; 5 in the authors' code.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    X. Lin et al.: Smooth Tchebycheff Scalarization for Multi-Objective Optimization. 2024, arXiv:2402.19078.
    """

    @checked
    def __init__(self, mu: Positive = 1.0, warmup: Count = 1, **options: Any) -> None:
        super().__init__(**options)
        self.mu, self.warmup = mu, warmup

    def start(self, tasks: int) -> State:
        """Return the sums of the losses in the reference epoch, and the numbers of batches."""
        return {"sums": np.zeros(tasks), "counts": np.zeros(tasks)}

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the derivatives of the smooth maximum, and the state with the reference's losses added."""
        F, losses, is_later = measured.F, measured.losses, measured.epoch >= self.warmup
        counts_now = F.maximum(measured.epoch == self.warmup - 1, is_later * (state["counts"] == 0))
        counts_now = counts_now * measured.present
        state = {"sums": state["sums"] + counts_now * losses, "counts": state["counts"] + counts_now}
        reference = F.where(state["counts"] > 0, state["sums"] / F.maximum(state["counts"], 1.0), losses)
        shares = _shares(measured, F.log(losses / reference) / self.mu)
        tasks = measured.total(F.ones_like(losses))
        return F.where(is_later, tasks * shares, F.ones_like(losses)) / losses, state


def _shares(measured: Measured, logits: Any) -> Any:
    """Return the softmax over the tasks that are present; 0 for the others."""
    F, there = measured.F, measured.present
    largest = measured.repeated(F.max(logits * there - LARGEST * (1 - there), axis=0, keepdims=True))
    powers = F.exp((logits - largest) * there) * there
    return powers / F.maximum(measured.total(powers), LEAST)
