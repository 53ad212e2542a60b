"""The optimizer's part of a step: a trainer's own update, in fewer or faster calls where there are such."""

from __future__ import annotations

import operator
from typing import Any, Iterator, Sequence

import numpy as np

from ..compat import mx
from .update_rules import RULES, ParameterGroup

__all__ = ["Update"]

TOGETHER = 45  # arrays in a call; MXNet's operators end the process at 64
STOCK = {name: getattr(mx.gluon.Trainer, name) for name in ("update", "_update")}  # what somebody may replace


class Update:
    """Moves the parameters of one trainer by gradients that are ready and normalised.

    It does what ``trainer.update(1, ignore_stale_grad=True)`` does, with the optimizer's own counts, rates
    and states. SGD and Adam move small arrays together (``multi_sgd_mom_update``, ``multi_adamw_update``)
    and large ones one by one; equal to the trainer's own update within 1e-5. Other optimizers, subclasses,
    sparse arrays and other types than float32 are left to the trainer itself.

    Parameters
    ----------
    trainer : gluon.Trainer
        One that does not update on its kvstore.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._held: dict[int, _Held] = {}
        self._moved: list[tuple[int, Any]] = []
        self._plain: list[Any] = []  # gradients that were looked at, and are nothing special

    def __call__(self) -> None:
        """Move all parameters whose gradient is fresh."""
        trainer, rule = self._trainer, self._rule()
        if rule is None:
            trainer.update(1, ignore_stale_grad=True)
            return
        trainer._check_and_rescale_grad(trainer._scale)
        for device, updater in enumerate(trainer._updaters):
            fresh = [
                (index, parameter._data[device], parameter._grad[device])
                for index, parameter in self._moved
                if parameter._grad is not None and parameter._data[device]._fresh_grad
            ]
            if fresh:
                self._move(rule, device, updater, *zip(*fresh))

    @property
    def calls(self) -> int | None:
        """How many calls move all parameters on one device; None where they are the trainer's own."""
        rule = self._rule()
        if rule is None:
            return None
        sizes = [parameter.list_data()[0].size for _, parameter in self._moved]
        small = sum(size <= rule.small for size in sizes)
        return -(-small // TOGETHER) + len(sizes) - small

    def _rule(self) -> Any:
        trainer = self._trainer
        rule = RULES.get(type(trainer.optimizer))
        stock = all(getattr(getattr(trainer, n), "__func__", None) is STOCK[n] for n in STOCK)
        if rule is None or not stock or getattr(trainer, "_amp_loss_scaler", None) is not None:
            return None
        gradients = [parameter._grad for parameter in trainer._params]
        if len(gradients) != len(self._plain) or not all(map(operator.is_, gradients, self._plain)):
            if not all(map(_is_plain, trainer._params)):
                return None
            self._plain = gradients
            self._moved = [(i, p) for i, p in enumerate(trainer._params) if p._grad is not None]
        return rule

    def _move(self, rule: Any, device: int, updater: Any, indices: Any, weights: Any, gradients: Any) -> None:
        optimizer = self._trainer.optimizer
        optimizer._set_current_context(weights[0].context.device_id)
        held, states = self._held.get(device), [updater.states.get(index) for index in indices]
        if held is None or not held.holds(weights, gradients, states):
            states = [_state(updater, index, weight) for index, weight in zip(indices, weights)]
            held = self._held[device] = _Held(weights, gradients, states, rule.small)
        rates = [
            rate for some in _counted_at_once(optimizer, indices) for rate in rule.rates(optimizer, some)
        ]
        decays = optimizer._get_wds(indices)
        for together in held.small:
            at = together.positions
            rule.many(optimizer, together, [rates[i] for i in at], [decays[i] for i in at])
        for i in held.large:
            rule.one(optimizer, weights[i], gradients[i], states[i], rates[i], decays[i])
        for weight in weights:
            weight._fresh_grad = False


class _Held:
    """The arrays of one device, sorted out once for as long as they are the same."""

    def __init__(
        self, weights: Sequence[Any], gradients: Sequence[Any], states: Sequence[Any], limit: int
    ) -> None:
        self._arrays = [*weights, *gradients, *states]
        small = [i for i, weight in enumerate(weights) if weight.size <= limit]
        self.large = [i for i, weight in enumerate(weights) if weight.size > limit]
        self.small = [
            ParameterGroup(small[start : start + TOGETHER], weights, gradients, states)
            for start in range(0, len(small), TOGETHER)
        ]

    def holds(self, weights: Sequence[Any], gradients: Sequence[Any], states: Sequence[Any]) -> bool:
        """Whether these are the same arrays."""
        arrays = [*weights, *gradients, *states]
        return len(arrays) == len(self._arrays) and all(map(operator.is_, arrays, self._arrays))


def _counted_at_once(optimizer: Any, indices: Any) -> Iterator[Any]:
    """Count the updates of so many arrays as MXNet counts together: a schedule looks at the counts so far."""
    size = len(indices) if optimizer.lr_scheduler is None else max(1, optimizer.aggregate_num)
    for start in range(0, len(indices), size):
        optimizer._update_count(indices[start : start + size])
        yield indices[start : start + size]


def _state(updater: Any, index: int, weight: Any) -> Any:
    if index not in updater.states:
        updater.states[index] = updater.optimizer.create_state_multi_precision(index, weight)
    elif not updater.states_synced.get(index, True):
        updater.states[index] = updater.sync_state_context(updater.states[index], weight.context)
    updater.states_synced[index] = True
    return updater.states[index]


def _is_plain(parameter: Any) -> bool:
    dense = parameter._stype == parameter._grad_stype == "default"
    return dense and parameter.dtype in (np.float32, "float32")
