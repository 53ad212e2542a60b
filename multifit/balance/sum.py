"""The sum of the gradients, to see whether they conflict."""

from __future__ import annotations

import numpy as np

from ..protocols import Numbers
from .protocol import GramianMethod


class Sum(GramianMethod):
    r"""Leaves all weights at 1, so that training is as without a method, and measures the gradients.

    .. math:: w_k = 1

    With ``Sum(every=50)``, the figures of norms, cosines and conflicts are measured in every fiftieth batch,
    at hardly any cost. The sum of the weights is K.

    References
    ----------
    That tuned sums are as good as most methods: V. Kurin et al.: In Defense of the Unitary Scalarization for
    Deep Multi-Task Learning. 2022, arXiv:2201.04122.
    """

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return ones."""
        return np.ones(len(gramian))
