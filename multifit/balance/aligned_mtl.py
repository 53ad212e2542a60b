"""Aligned multi-task learning (Aligned-MTL)."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..arguments import checked, one_of
from ..protocols import Numbers
from .protocol import GramianMethod
from .solvers import rank

SCALES = one_of("min", "median", "rmse")


class AlignedMTL(GramianMethod):
    r"""Makes the gradients orthogonal and equally long, with the least change, and takes their mean.

    .. math:: w = \sqrt{\sigma}\; V \Lambda^{-1/2} V^T u, \qquad M = V \Lambda V^T, \quad u_k = 1/K

    over the eigenvalues that are not 0, of which :math:`\sigma` is the smallest, the median or the mean. The
    sum of the weights is not fixed; with orthogonal gradients of equal length it is 1: with K tasks, a
    learning rate that was tuned for the sum of the losses is then too low.

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

    @checked
    def __init__(self, scale: Annotated[str, SCALES] = "min", **options: Any) -> None:
        super().__init__(**options)
        self.scale = scale

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the weights of the aligned gradients' mean."""
        tasks = len(gramian)
        values, vectors = np.linalg.eigh(gramian, UPLO="U")
        positive = values > values.max() * tasks * np.finfo(np.float64).eps
        # More may be rounding, as the cosines show: the Gramian's own are small for short gradients too.
        positive[: tasks - rank(gramian)] = False
        values, vectors = values[positive], vectors[:, positive]
        scales = {"min": values[0], "median": values[(len(values) - 1) // 2], "rmse": values.mean()}
        mean = np.full(tasks, 1 / tasks)
        return np.asarray(np.sqrt(scales[self.scale]) * (vectors / np.sqrt(values)) @ vectors.T @ mean)
