"""Add noise to the gradients."""

import math
from collections.abc import Callable
from typing import Any

from ..utils.arguments import NotNegative, checked
from ..utils.protocols import MultiEstimator
from .handler import Handler


class GradientNoise(Handler):
    r"""Adds Gaussian noise to all gradients, which decays during training.

    .. math:: g_t \leftarrow g_t + \mathcal N(0, \sigma_t^2), \qquad \sigma_t^2 = \eta / (1 + t)^\gamma

    where t is the number of batches trained before, over all fits. All devices, and all processes that train
    together, get the same noise, so that their parameters stay equal. It is added before gradients are
    clipped.

    Parameters
    ----------
    eta : float
        Variance of the noise in the first batch, at least 0. The paper uses 0.01, 0.3 and 1.
    gamma : float
        How fast the noise decays, at least 0.
    random : callable, optional
        Draws the noise, with the arguments of ``mx.nd.random.normal``, or for a PyTorch net of
        ``torch.normal``, which are the defaults.

    Raises
    ------
    ValueError
        An argument is not valid, or a gradient is sparse: noise would make it dense.

    References
    ----------
    A. Neelakantan et al.: Adding Gradient Noise Improves Learning for Very Deep Networks. 2015,
    arXiv:1511.06807.
    """

    @checked
    def __init__(
        self,
        eta: NotNegative = 0.01,
        gamma: NotNegative = 0.55,
        random: Callable[..., Any] | None = None,
    ) -> None:
        self.eta, self.gamma = eta, gamma
        self._random = random

    def change_gradients(self, estimator: MultiEstimator) -> None:
        """Add the noise."""
        sigma = math.sqrt(self.eta / (1 + estimator.state.step) ** self.gamma)
        gradients = {
            name: arrays
            for parameters in estimator.gradients().values()
            for name, arrays in parameters.items()
        }
        functions = estimator.arrays
        for name, (first, *_) in gradients.items():
            if functions.is_sparse(first):
                raise ValueError(
                    f'GradientNoise: the gradient of "{name}" is sparse; build its layer with '
                    "sparse_grad=False, or in PyTorch with sparse=False"
                )
        noises = functions.noise([arrays[0] for arrays in gradients.values()], sigma, self._random)
        for arrays, noise in zip(gradients.values(), noises):
            for gradient in arrays:
                functions.add(gradient, noise)
