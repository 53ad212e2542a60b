"""Update arrays as SGD and Adam do: small ones in groups, large ones one by one.

MXNet's operators for groups process one element of each array in turn. That saves calls, but with large
arrays every element misses the cache. `small` is the number of elements up to which a rule uses groups.
"""

from __future__ import annotations

import math
from typing import Any, Sequence, Union

from ...protocols import Array
from ..compat import mx
from ..in_place_call import InPlaceCall


class ParameterGroup:
    """Arrays that are updated in one call: those at `positions` among all arrays of a trainer."""

    def __init__(
        self,
        positions: list[int],
        weights: Sequence[Array],
        gradients: Sequence[Array],
        states: Sequence[Any],
    ) -> None:
        self.positions = positions
        self.weights, self.gradients, self.states = (
            [arrays[i] for i in positions] for arrays in (weights, gradients, states)
        )
        self._operator: tuple[str, float | None] | None = None
        self._call: InPlaceCall | None = None

    def call(self, operator: str, *columns: Sequence[Array], factor: float | None = None) -> InPlaceCall:
        """Return the call of an operator that updates the weights.

        The operator takes the arrays in rows, one of each column, then the `factor`, if there is one, as an
        array. For an operator, the columns must be the same at each call.
        """
        if self._call is None or self._operator != (operator, factor):
            arrays = [array for row in zip(*columns) for array in row]
            if factor is not None:
                arrays.append(mx.nd.full((1,), factor, ctx=self.weights[0].context))
            self._operator, self._call = (operator, factor), InPlaceCall(operator, arrays, self.weights)
        return self._call


class SGD:
    """``mx.optimizer.SGD``; arrays of at most `small` elements are updated in groups."""

    small = 10_000

    @staticmethod
    def rates(optimizer: mx.optimizer.SGD, indices: Sequence[int]) -> list[float]:
        """Return the learning rate of each array."""
        return optimizer._get_lrs(indices)

    @staticmethod
    def update_group(
        optimizer: mx.optimizer.SGD, group: ParameterGroup, rates: list[float], decays: list[float]
    ) -> None:
        """Update the arrays of a group, with a learning rate and a weight decay for each."""
        columns = [group.weights, group.gradients]
        if optimizer.momentum > 0:
            call = group.call("multi_sgd_mom_update", *columns, group.states)
        else:
            call = group.call("multi_sgd_update", *columns)
        call(num_weights=len(group.weights), lrs=rates, wds=decays, **SGD._options(optimizer))

    @staticmethod
    def update_one(
        optimizer: mx.optimizer.SGD, weight: Array, gradient: Array, state: Any, rate: float, decay: float
    ) -> None:
        """Update one array."""
        options = {"lr": rate, "wd": decay, **SGD._options(optimizer)}
        if optimizer.momentum > 0:
            mx.nd.sgd_mom_update(weight, gradient, state, out=weight, **options)
        else:
            mx.nd.sgd_update(weight, gradient, out=weight, **options)

    @staticmethod
    def _options(optimizer: mx.optimizer.SGD) -> dict[str, float]:
        momentum = {"momentum": optimizer.momentum} if optimizer.momentum > 0 else {}
        return {**momentum, **_common_options(optimizer)}


class Adam:
    """``mx.optimizer.Adam``; its groups use MXNet's operator for AdamW: without weight decay, both are equal.

    Kingma and Ba 2015, https://arxiv.org/abs/1412.6980; Loshchilov and Hutter 2019,
    https://arxiv.org/abs/1711.05101.
    """

    small = 4096

    @staticmethod
    def rates(optimizer: mx.optimizer.Adam, indices: Sequence[int]) -> list[float]:
        """Return the learning rate of each array, with Adam's bias correction."""
        counts, beta1, beta2 = optimizer._index_update_count, optimizer.beta1, optimizer.beta2
        steps = {counts[i] for i in indices}
        corrections = {t: math.sqrt(1.0 - beta2**t) / (1.0 - beta1**t) for t in steps}
        return [rate * corrections[counts[i]] for rate, i in zip(optimizer._get_lrs(indices), indices)]

    @staticmethod
    def update_group(
        optimizer: mx.optimizer.Adam, group: ParameterGroup, rates: list[float], decays: list[float]
    ) -> None:
        """Update the arrays of a group, with a learning rate and a weight decay for each."""
        weights, states = group.weights, group.states
        if any(decays) or optimizer.rescale_grad == 0:  # AdamW takes a factor of 0 for an overflow
            for arrays in zip(weights, group.gradients, states, rates, decays):
                Adam.update_one(optimizer, *arrays)
            return
        options = Adam._options(optimizer)
        columns = [weights, group.gradients, *zip(*states)]
        call = group.call("_multi_adamw_update", *columns, factor=options.pop("rescale_grad"))
        etas = [1.0] * len(weights)
        call(num_weights=len(weights), lrs=rates, wds=decays, etas=etas, **options)

    @staticmethod
    def update_one(
        optimizer: mx.optimizer.Adam, weight: Array, gradient: Array, state: Any, rate: float, decay: float
    ) -> None:
        """Update one array."""
        options = {"lr": rate, "wd": decay, **Adam._options(optimizer)}
        mx.nd.adam_update(weight, gradient, *state, out=weight, **options)

    @staticmethod
    def _options(optimizer: mx.optimizer.Adam) -> dict[str, float]:
        betas = {name: getattr(optimizer, name) for name in ("beta1", "beta2", "epsilon")}
        return {**betas, **_common_options(optimizer)}


UpdateRule = Union[type[SGD], type[Adam]]

RULES: dict[type, UpdateRule] = {mx.optimizer.SGD: SGD, mx.optimizer.Adam: Adam}


def _common_options(optimizer: mx.optimizer.Optimizer) -> dict[str, float]:
    clip = {"clip_gradient": optimizer.clip_gradient} if optimizer.clip_gradient else {}
    return {"rescale_grad": optimizer.rescale_grad, **clip}
