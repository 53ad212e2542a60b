"""Update a trainer's parameters with fewer or faster calls than the trainer itself makes.

MXNet's operators for groups of arrays process one element of each array in turn. That saves calls, but with
large arrays every element misses the cache. So a rule updates small arrays in groups, and large ones one by
one; its `small` is the number of elements up to which it uses groups.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...protocols import Array
from ..compat import mx
from ..in_place_call import InPlaceCall
from . import own_optimizers
from .gradients import is_fresh, set_fresh

GROUP_SIZE = 45  # arrays in a call; MXNet's operators end the process at 64
STOCK = {name: getattr(mx.gluon.Trainer, name) for name in ("update", "_update")}


class ParameterGroup:
    """Arrays that are updated in one call: those at `positions` among all arrays of a trainer.

    Learning rates, weight decays and numbers of updates, including this one, are set before each update.
    """

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
        self.rates: list[float] = []
        self.decays: list[float] = []
        self.counts: list[int] = []
        self._operator: tuple[str, float | None] | None = None
        self._call: InPlaceCall | None = None

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Return for each array weight, gradient, state, rate, weight decay and number of updates."""
        return zip(self.weights, self.gradients, self.states, self.rates, self.decays, self.counts)

    def call(self, name: str, *columns: Sequence[Array], factor: float | None = None) -> InPlaceCall:
        """Return the call of an operator that updates the weights.

        The operator takes the arrays in rows, one of each column, then the `factor`, if there is one, as an
        array. For an operator, the columns must be the same at each call.
        """
        if self._call is None or self._operator != (name, factor):
            arrays = [array for row in zip(*columns) for array in row]
            if factor is not None:
                arrays.append(mx.nd.full((1,), factor, ctx=self.weights[0].context))
            self._operator, self._call = (name, factor), InPlaceCall(name, arrays, self.weights)
        return self._call


class SGD:
    """``mx.optimizer.SGD``; arrays of at most `small` elements are updated in groups."""

    small = 10_000

    @staticmethod
    def update_group(optimizer: mx.optimizer.SGD, group: ParameterGroup) -> None:
        """Update the arrays of a group."""
        columns = [group.weights, group.gradients]
        if optimizer.momentum > 0:
            call = group.call("multi_sgd_mom_update", *columns, group.states)
        else:
            call = group.call("multi_sgd_update", *columns)
        call(num_weights=len(group.weights), lrs=group.rates, wds=group.decays, **SGD._options(optimizer))

    @staticmethod
    def update_one(optimizer: mx.optimizer.SGD, *row: Any) -> None:
        """Update one array; see :meth:`ParameterGroup.rows`."""
        weight, gradient, state, rate, decay, _ = row
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
    def update_group(optimizer: mx.optimizer.Adam, group: ParameterGroup) -> None:
        """Update the arrays of a group."""
        if any(group.decays) or optimizer.rescale_grad == 0:  # AdamW takes a factor of 0 for an overflow
            for row in group.rows():
                Adam.update_one(optimizer, *row)
        else:
            factors = {count: Adam._factor(optimizer, count) for count in set(group.counts)}
            rates = [rate * factors[count] for rate, count in zip(group.rates, group.counts)]
            Adam._call(optimizer, group, rates, group.decays)

    @staticmethod
    def update_one(optimizer: mx.optimizer.Adam, *row: Any) -> None:
        """Update one array; see :meth:`ParameterGroup.rows`."""
        weight, gradient, state, rate, decay, count = row
        options = {"lr": rate * Adam._factor(optimizer, count), "wd": decay, **Adam._options(optimizer)}
        mx.nd.adam_update(weight, gradient, *state, out=weight, **options)

    @staticmethod
    def _call(
        optimizer: mx.optimizer.Adam, group: ParameterGroup, rates: Any, shares: Any, **epsilon: float
    ) -> None:
        """Update the arrays of a group with corrected rates; weight decay takes these shares of them."""
        options = {**Adam._options(optimizer), **epsilon}
        columns = [group.weights, group.gradients, *zip(*group.states)]
        call = group.call("_multi_adamw_update", *columns, factor=options.pop("rescale_grad"))
        etas = [1.0] * len(rates)
        call(num_weights=len(rates), lrs=rates, wds=shares, etas=etas, **options)

    @staticmethod
    def _factor(optimizer: mx.optimizer.Adam, count: int) -> float:
        """Return Adam's bias correction of the rate, as MXNet computes it."""
        return math.sqrt(1.0 - optimizer.beta2**count) / (1.0 - optimizer.beta1**count)

    @staticmethod
    def _options(optimizer: mx.optimizer.Adam) -> dict[str, float]:
        betas = {name: getattr(optimizer, name) for name in ("beta1", "beta2", "epsilon")}
        return {**betas, **_common_options(optimizer)}


class AdamW(Adam):
    """:class:`own_optimizers.AdamW`; a group has one epsilon, so its arrays must have equal counts."""

    @staticmethod
    def update_group(optimizer: own_optimizers.AdamW, group: ParameterGroup) -> None:
        """Update the arrays of a group."""
        if len(set(group.counts)) > 1 or optimizer.rescale_grad == 0:
            for row in group.rows():
                optimizer.update_array(*row)
        else:
            factor, epsilon = optimizer.numbers(1.0, group.counts[0])
            shares = [rate * decay for rate, decay in zip(group.rates, group.decays)]
            Adam._call(optimizer, group, [rate * factor for rate in group.rates], shares, epsilon=epsilon)

    @staticmethod
    def update_one(optimizer: own_optimizers.AdamW, *row: Any) -> None:
        """Update one array; see :meth:`ParameterGroup.rows`."""
        optimizer.update_array(*row)


UpdateRule = type[SGD] | type[Adam]

RULES: dict[type, UpdateRule] = {mx.optimizer.SGD: SGD, mx.optimizer.Adam: Adam, own_optimizers.AdamW: AdamW}


def _common_options(optimizer: mx.optimizer.Optimizer) -> dict[str, float]:
    clip = {"clip_gradient": optimizer.clip_gradient} if optimizer.clip_gradient else {}
    return {"rescale_grad": optimizer.rescale_grad, **clip}


class FusedUpdate:
    """Updates the parameters of one trainer; their gradients must be reduced and normalised.

    It does what ``trainer.update(1, ignore_stale_grad=True)`` does, with the optimizer's own counts, rates
    and states. SGD, Adam and AdamW update small arrays in groups (``multi_sgd_mom_update``,
    ``multi_adamw_update``) and large ones one by one; the result equals the trainer's own update within 1e-5.
    For other optimizers, subclasses, sparse arrays and dtypes other than float32, the trainer's own update is
    called.
    """

    def __init__(self, trainer: mx.gluon.Trainer) -> None:
        self._trainer = trainer
        self._groups: dict[int, _DeviceGroups] = {}
        self._parameters: list[tuple[int, mx.gluon.Parameter]] = []
        self._checked: list[Any] = []  # the gradients that were checked to be dense and float32

    def __call__(self) -> None:
        """Update all parameters whose gradient is fresh."""
        trainer, rule = self._trainer, self._rule()
        if rule is None:
            trainer.update(1, ignore_stale_grad=True)
            return
        trainer._check_and_rescale_grad(trainer._scale)
        for device, updater in enumerate(trainer._updaters):
            fresh = [
                (index, parameter._data[device], parameter._grad[device])
                for index, parameter in self._parameters
                if parameter._grad is not None and is_fresh(parameter._data[device])
            ]
            if fresh:
                self._update(rule, device, updater, *zip(*fresh))

    @property
    def calls(self) -> int | None:
        """How many calls update all parameters on one device; None for the trainer's own update."""
        rule = self._rule()
        if rule is None:
            return None
        sizes = [parameter.list_data()[0].size for _, parameter in self._parameters]
        small = sum(size <= rule.small for size in sizes)
        return -(-small // GROUP_SIZE) + len(sizes) - small

    def _rule(self) -> UpdateRule | None:
        """Return the rule for this trainer; None if it must update by itself."""
        trainer = self._trainer
        rule = RULES.get(type(trainer.optimizer))
        is_stock = all(getattr(getattr(trainer, n), "__func__", None) is STOCK[n] for n in STOCK)
        if rule is None or not is_stock or getattr(trainer, "_amp_loss_scaler", None) is not None:
            return None
        gradients = [parameter._grad for parameter in trainer._params]
        if len(gradients) != len(self._checked) or not all(map(operator.is_, gradients, self._checked)):
            updated = [(i, p) for i, p in enumerate(trainer._params) if p._grad is not None]
            if any(p._grad_stype != "default" or p.dtype not in (np.float32, "float32") for _, p in updated):
                return None
            self._checked, self._parameters = gradients, updated
        return rule

    def _update(
        self,
        rule: UpdateRule,
        device: int,
        updater: Any,
        indices: Sequence[int],
        weights: Sequence[Array],
        gradients: Sequence[Array],
    ) -> None:
        optimizer = self._trainer.optimizer
        optimizer._set_current_context(weights[0].context.device_id)
        # ... means no state yet; None is the state of SGD without momentum
        groups, states = self._groups.get(device), [updater.states.get(index, ...) for index in indices]
        if groups is None or not groups.match(weights, gradients, states):
            states = [_state(updater, index, weight) for index, weight in zip(indices, weights)]
            groups = self._groups[device] = _DeviceGroups(weights, gradients, states, rule.small)
        # a schedule may return any number
        rates = [float(r) for part in _count_updates(optimizer, indices) for r in optimizer._get_lrs(part)]
        decays = optimizer._get_wds(indices)
        counts = [optimizer._index_update_count[index] for index in indices]
        columns = weights, gradients, states, rates, decays, counts
        for group in groups.small:
            at = group.positions
            group.rates, group.decays = [rates[i] for i in at], [decays[i] for i in at]
            group.counts = [counts[i] for i in at]
            rule.update_group(optimizer, group)
        for i in groups.large:
            rule.update_one(optimizer, *(column[i] for column in columns))
        for weight in weights:
            set_fresh(weight, False)


class _DeviceGroups:
    """The arrays of one device, in groups; rebuilt only if an array was replaced."""

    def __init__(
        self, weights: Sequence[Array], gradients: Sequence[Array], states: Sequence[Any], limit: int
    ) -> None:
        self._arrays = [*weights, *gradients, *states]
        small = [i for i, weight in enumerate(weights) if weight.size <= limit]
        self.large = [i for i, weight in enumerate(weights) if weight.size > limit]
        self.small = [
            ParameterGroup(small[start : start + GROUP_SIZE], weights, gradients, states)
            for start in range(0, len(small), GROUP_SIZE)
        ]

    def match(self, weights: Sequence[Array], gradients: Sequence[Array], states: Sequence[Any]) -> bool:
        """Whether these are the same arrays."""
        arrays = [*weights, *gradients, *states]
        return len(arrays) == len(self._arrays) and all(map(operator.is_, arrays, self._arrays))


def _count_updates(optimizer: mx.optimizer.Optimizer, indices: Sequence[int]) -> Iterator[Sequence[int]]:
    """Count updates in the same groups as MXNet does, because a schedule reads the counts so far."""
    size = len(indices) if optimizer.lr_scheduler is None else max(1, optimizer.aggregate_num)
    for start in range(0, len(indices), size):
        optimizer._update_count(indices[start : start + size])
        yield indices[start : start + size]


def _state(updater: Any, index: int, weight: Array) -> Any:
    """Return the optimizer's state for a parameter, created or synchronised as by MXNet's updater."""
    if index not in updater.states:
        updater.states[index] = updater.optimizer.create_state_multi_precision(index, weight)
    elif not updater.states_synced.get(index, True):
        updater.states[index] = updater.sync_state_context(updater.states[index], weight.context)
    updater.states_synced[index] = True
    return updater.states[index]
