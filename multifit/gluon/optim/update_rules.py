"""How SGD and Adam move arrays: many small ones in a call, a large one by itself.

MXNet's operators for many arrays take one element of each in turn. That saves calls, but with large arrays
every element is out of the cache: each rule says how many elements are `small`.
"""

from __future__ import annotations

import math
from typing import Any, Sequence

from ..compat import mx

__all__ = ["RULES", "ParameterGroup"]


class ParameterGroup:
    """Arrays that are moved in one call.

    Parameters
    ----------
    positions : list of int
        Where they stand among all of a trainer's arrays.
    weights, gradients, states : sequence
        Of all these arrays.
    """

    def __init__(
        self, positions: list[int], weights: Sequence[Any], gradients: Sequence[Any], states: Sequence[Any]
    ) -> None:
        self.positions = positions
        self.weights, self.gradients, self.states = (
            [arrays[i] for i in positions] for arrays in (weights, gradients, states)
        )
        self._rows: dict[bool, list[Any]] = {}
        self._numbers: tuple[list[float], ...] = ()
        self._written: list[str] = []
        self._factor: tuple[float, Any] = (0.0, None)

    def rows(self, states: bool) -> list[Any]:
        """Return weight, gradient and perhaps state of each row, one behind the other."""
        if states not in self._rows:
            columns = [self.weights, self.gradients] + [self.states] * states
            self._rows[states] = [array for row in zip(*columns) for array in row]
        return self._rows[states]

    def written(self, *numbers: list[float]) -> list[str]:
        """Return lists of numbers as MXNet reads them; most steps have the rates of the step before."""
        if numbers != self._numbers:
            self._numbers, self._written = numbers, [str(own) for own in numbers]
        return self._written

    def factor(self, number: float) -> Any:
        """Return a number as an array on the weights' device, for operators that take it so."""
        if number != self._factor[0]:
            self._factor = number, mx.nd.full((1,), number, ctx=self.weights[0].context)
        return self._factor[1]


class SGD:
    """``mx.optimizer.SGD``."""

    small = 10_000

    @staticmethod
    def rates(optimizer: Any, indices: Sequence[int]) -> list[float]:
        """Return the learning rate of each array."""
        return optimizer._get_lrs(indices)

    @staticmethod
    def many(optimizer: Any, arrays: ParameterGroup, rates: list[float], decays: list[float]) -> None:
        """Move small arrays."""
        weights, moved = arrays.weights, bool(optimizer.momentum > 0)
        call = mx.nd.multi_sgd_mom_update if moved else mx.nd.multi_sgd_update
        lrs, wds = arrays.written(rates, decays)
        call(
            *arrays.rows(moved),
            out=weights,
            num_weights=len(weights),
            lrs=lrs,
            wds=wds,
            **SGD._options(optimizer),
        )

    @staticmethod
    def one(optimizer: Any, weight: Any, gradient: Any, state: Any, rate: float, decay: float) -> None:
        """Move a large array."""
        options = {"lr": rate, "wd": decay, **SGD._options(optimizer)}
        if optimizer.momentum > 0:
            mx.nd.sgd_mom_update(weight, gradient, state, out=weight, **options)
        else:
            mx.nd.sgd_update(weight, gradient, out=weight, **options)

    @staticmethod
    def _options(optimizer: Any) -> dict[str, float]:
        momentum = {"momentum": optimizer.momentum} if optimizer.momentum > 0 else {}
        return {**momentum, **_common(optimizer)}


class Adam:
    """``mx.optimizer.Adam``; without weight decay AdamW, which has an operator for many arrays, is the same.

    Kingma and Ba 2015, https://arxiv.org/abs/1412.6980; Loshchilov and Hutter 2019,
    https://arxiv.org/abs/1711.05101.
    """

    small = 4096

    @staticmethod
    def rates(optimizer: Any, indices: Sequence[int]) -> list[float]:
        """Return the learning rate of each array, with the correction of the young means' bias."""
        counts, beta1, beta2 = optimizer._index_update_count, optimizer.beta1, optimizer.beta2
        steps = {counts[i] for i in indices}
        scales = {t: math.sqrt(1.0 - beta2**t) / (1.0 - beta1**t) for t in steps}
        return [rate * scales[counts[i]] for rate, i in zip(optimizer._get_lrs(indices), indices)]

    @staticmethod
    def many(optimizer: Any, arrays: ParameterGroup, rates: list[float], decays: list[float]) -> None:
        """Move small arrays."""
        weights, states = arrays.weights, arrays.states
        if any(decays) or optimizer.rescale_grad == 0:  # AdamW takes a factor of 0 for an overflow
            for each in zip(weights, arrays.gradients, states, rates, decays):
                Adam.one(optimizer, *each)
            return
        options = Adam._options(optimizer)
        factor = arrays.factor(options.pop("rescale_grad"))
        wds, etas = arrays.written(decays, [1.0] * len(weights))
        mx.nd.contrib.multi_adamw_update(
            weights, arrays.gradients, *zip(*states), factor, out=weights,
            lrs=str(rates), wds=wds, etas=etas, **options,
        )  # fmt: skip

    @staticmethod
    def one(optimizer: Any, weight: Any, gradient: Any, state: Any, rate: float, decay: float) -> None:
        """Move a large array."""
        options = {"lr": rate, "wd": decay, **Adam._options(optimizer)}
        mx.nd.adam_update(weight, gradient, *state, out=weight, **options)

    @staticmethod
    def _options(optimizer: Any) -> dict[str, float]:
        own = {name: getattr(optimizer, name) for name in ("beta1", "beta2", "epsilon")}
        return {**own, **_common(optimizer)}


RULES = {mx.optimizer.SGD: SGD, mx.optimizer.Adam: Adam}


def _common(optimizer: Any) -> dict[str, float]:
    clip = {"clip_gradient": optimizer.clip_gradient} if optimizer.clip_gradient else {}
    return {"rescale_grad": optimizer.rescale_grad, **clip}
