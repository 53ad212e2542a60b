"""Optimizers that MXNet lacks, registered there by name: AdamW, RAdam and Lion."""

import math
from typing import Any

import numpy as np

from ...utils.protocols import Array
from ..compat import mx


def corrections(optimizer: mx.optimizer.Adam, count: int) -> tuple[float, float]:
    """Return Adam's corrections of the running means of gradients, and of the roots of their squares.

    MXNet's operators round the shares of the past to float32; 1 minus 0.999 then differs by 5e-5 of that.
    """
    beta1, beta2 = (float(np.float32(beta)) for beta in (optimizer.beta1, optimizer.beta2))
    return 1.0 - beta1**count, math.sqrt(1.0 - beta2**count)


@mx.optimizer.register
class AdamW(mx.optimizer.Adam):
    """AdamW: Adam with decoupled weight decay, which shrinks a weight by the share ``learning_rate * wd``.

    Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101. Numbers and defaults are those of
    ``torch.optim.AdamW``: epsilon is added to the root of the corrected second moment.
    """

    def __init__(self, wd: float = 0.01, **options: Any) -> None:
        super().__init__(wd=wd, **options)

    def update(self, index: int, weight: Array, grad: Array, state: Any) -> None:
        """Update one array."""
        self._update_count(index)
        count = self._index_update_count[index]
        self.update_array(weight, grad, state, self._get_lr(index), self._get_wd(index), count)

    def update_array(
        self, weight: Array, gradient: Array, state: Any, rate: float, decay: float, count: int
    ) -> None:
        """Update one array, whose updates were counted."""
        if decay:
            weight *= 1.0 - rate * decay
        rate, epsilon = self.numbers(rate, count)
        self._adam(weight, gradient, state, rate, epsilon=epsilon)

    def numbers(self, rate: float, count: int) -> tuple[float, float]:
        """Return the rate and the epsilon with which Adam's uncorrected means are used."""
        of_mean, of_root = corrections(self, count)
        return rate * of_root / of_mean, self.epsilon * of_root

    def _adam(self, weight: Array, gradient: Array, state: Any, rate: float, **options: float) -> None:
        """Call MXNet's operator for Adam, which corrects nothing."""
        betas = {"beta1": self.beta1, "beta2": self.beta2, "lazy_update": self.lazy_update}
        bounds = {"rescale_grad": self.rescale_grad, "clip_gradient": self.clip_gradient or -1.0}
        options = {"epsilon": self.epsilon, **betas, **bounds, **options}
        mx.nd.adam_update(weight, gradient, *state, out=weight, lr=rate, **options)


@mx.optimizer.register
class RAdam(AdamW):
    """RAdam: Adam whose rate is rectified by the variance of its second moment, in place of a warm-up.

    Liu et al. 2020, https://arxiv.org/abs/1908.03265. Numbers and defaults are those of
    ``torch.optim.RAdam``: weight decay is a part of the gradient.
    """

    def __init__(self, wd: float = 0.0, **options: Any) -> None:
        super().__init__(wd=wd, **options)

    def update_array(
        self, weight: Array, gradient: Array, state: Any, rate: float, decay: float, count: int
    ) -> None:
        """Update one array, whose updates were counted."""
        of_means, of_steps = self.factors(rate, count)
        self._adam(weight, gradient, state, of_steps, wd=decay)
        if of_means:
            weight -= of_means * state[0]

    def factors(self, rate: float, count: int) -> tuple[float, float]:
        """Return the rates of the mean gradients and of Adam's steps; one of them is 0.

        The first updates have too few squares to divide by the roots of their means.
        """
        (of_mean, of_root), past = corrections(self, count), self.beta2**count
        last = 2.0 / (1.0 - self.beta2) - 1.0
        length = last - 2.0 * count * past / (1.0 - past)
        if length <= 5.0:
            return rate / of_mean, 0.0
        above, below = ((each - 4.0) * (each - 2.0) / each for each in (length, last))
        return 0.0, rate * math.sqrt(above / below) * of_root / of_mean


@mx.optimizer.register
class Lion(mx.optimizer.Optimizer):
    """Lion: the sign of a running mean of gradients, with decoupled weight decay.

    Chen et al. 2023, https://arxiv.org/abs/2302.06675, with their defaults. As with MXNet's Signum, the state
    is minus the mean.
    """

    def __init__(
        self, learning_rate: float = 1e-4, beta1: float = 0.9, beta2: float = 0.99, **options: Any
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.beta1, self.beta2 = beta1, beta2

    def create_state(self, index: int, weight: Array) -> Array:
        """Return the running mean of a parameter's gradient."""
        return mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

    def update(self, index: int, weight: Array, grad: Array, state: Array) -> None:
        """Update one array."""
        self._update_count(index)
        options = {"rescale_grad": self.rescale_grad, "clip_gradient": self.clip_gradient or -1.0}
        rate, decay = self._get_lr(index), self._get_wd(index)
        # Signum's operator, for a mean that is used once; then, with a rate of 0, for the mean to keep
        mx.nd.signum_update(
            weight, grad, state.copy(), out=weight, lr=rate, momentum=self.beta1, wd_lh=decay, **options
        )
        mx.nd.signum_update(weight, grad, state, out=weight, lr=0.0, momentum=self.beta2, **options)
