"""Update a trainer's parameters with fewer or faster calls than the trainer itself makes."""

from __future__ import annotations

import operator
from typing import Any, Iterator, Sequence

import numpy as np

from ...protocols import Array
from ..compat import mx
from .gradients import is_fresh, set_fresh
from .update_rules import RULES, ParameterGroup, UpdateRule

GROUP_SIZE = 45  # arrays in a call; MXNet's operators end the process at 64
STOCK = {name: getattr(mx.gluon.Trainer, name) for name in ("update", "_update")}


class FusedUpdate:
    """Updates the parameters of one trainer; their gradients must be reduced and normalised.

    It does what ``trainer.update(1, ignore_stale_grad=True)`` does, with the optimizer's own counts, rates
    and states. SGD and Adam update small arrays in groups (``multi_sgd_mom_update``, ``multi_adamw_update``)
    and large ones one by one; the result equals the trainer's own update within 1e-5. For other optimizers,
    subclasses, sparse arrays and dtypes other than float32, the trainer's own update is called.
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
            if not all(_is_dense_float32(parameter) for _, parameter in updated):
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
        rates = [rate for part in _count_updates(optimizer, indices) for rate in rule.rates(optimizer, part)]
        decays = optimizer._get_wds(indices)
        for group in groups.small:
            at = group.positions
            rule.update_group(optimizer, group, [rates[i] for i in at], [decays[i] for i in at])
        for i in groups.large:
            rule.update_one(optimizer, weights[i], gradients[i], states[i], rates[i], decays[i])
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


def _is_dense_float32(parameter: mx.gluon.Parameter) -> bool:
    dense = parameter._stype == parameter._grad_stype == "default"
    return dense and parameter.dtype in (np.float32, "float32")
