"""The optimizer's part of a step: a trainer's own update, in fewer or faster calls where there are such."""

from __future__ import annotations

import math
import operator
from typing import Any, Sequence

import numpy as np

from .compat import mx

__all__ = ["Update"]

# Elements up to which an array is moved together with others. MXNet's operators for many arrays take one
# element of each in turn: that saves calls, but with large arrays every element is out of the cache.
SMALL = 10_000
TOGETHER = 45  # arrays in a call; MXNet's operators end the process at 64


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

    def __str__(self) -> str:
        if self._rule() is None:
            return "one by one"
        small = sum(p._grad_req != "null" and _size(p) <= SMALL for p in self._trainer._params)
        return f"{small} in {-(-small // TOGETHER)} calls" if small > 1 else "one by one"

    def _rule(self) -> Any:
        trainer, stock = self._trainer, mx.gluon.Trainer
        rule = RULES.get(type(trainer.optimizer))
        own = type(trainer)._update is not stock._update or type(trainer).update is not stock.update
        if rule is None or own or getattr(trainer, "_amp_loss_scaler", None) is not None:
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
            held = self._held[device] = _Held(weights, gradients, states)
        optimizer._update_count(indices)
        rates = rule.rates(optimizer, indices)
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

    def __init__(self, weights: Sequence[Any], gradients: Sequence[Any], states: Sequence[Any]) -> None:
        self._arrays = [*weights, *gradients, *states]
        small = [i for i, weight in enumerate(weights) if weight.size <= SMALL]
        self.large = [i for i, weight in enumerate(weights) if weight.size > SMALL]
        self.small = [
            _Together(at, [weights[i] for i in at], [gradients[i] for i in at], [states[i] for i in at])
            for at in (small[start : start + TOGETHER] for start in range(0, len(small), TOGETHER))
        ]

    def holds(self, weights: Sequence[Any], gradients: Sequence[Any], states: Sequence[Any]) -> bool:
        """Whether these are the same arrays."""
        arrays = [*weights, *gradients, *states]
        return len(arrays) == len(self._arrays) and all(map(operator.is_, arrays, self._arrays))


class _Together:
    """Arrays that are moved in one call, in the orders in which MXNet's operators take them."""

    def __init__(self, positions: list[int], weights: list[Any], gradients: list[Any], states: Any) -> None:
        self.positions, self.weights, self.gradients, self.states = positions, weights, gradients, states
        columns = [weights, gradients] + ([] if states[0] is None else [states])
        self.flat = [array for arrays in zip(*columns) for array in arrays]


class _SGD:
    """``mx.optimizer.SGD``."""

    @staticmethod
    def rates(optimizer: Any, indices: Sequence[int]) -> list[float]:
        return optimizer._get_lrs(indices)

    @staticmethod
    def many(optimizer: Any, arrays: _Together, rates: list[float], decays: list[float]) -> None:
        call = mx.nd.multi_sgd_mom_update if optimizer.momentum > 0 else mx.nd.multi_sgd_update
        flat, weights = arrays.flat, arrays.weights
        call(*flat, out=weights, num_weights=len(weights), lrs=rates, wds=decays, **_SGD._options(optimizer))

    @staticmethod
    def one(optimizer: Any, weight: Any, gradient: Any, state: Any, rate: float, decay: float) -> None:
        call = mx.nd.sgd_mom_update if optimizer.momentum > 0 else mx.nd.sgd_update
        arrays = [weight, gradient] + ([] if state is None else [state])
        call(*arrays, out=weight, lr=rate, wd=decay, **_SGD._options(optimizer))

    @staticmethod
    def _options(optimizer: Any) -> dict[str, float]:
        momentum = {"momentum": optimizer.momentum} if optimizer.momentum > 0 else {}
        return {**momentum, **_common(optimizer)}


class _Adam:
    """``mx.optimizer.Adam``; without weight decay AdamW is the same."""

    @staticmethod
    def rates(optimizer: Any, indices: Sequence[int]) -> list[float]:
        counts, one = optimizer._index_update_count, optimizer.beta1
        scales = {
            t: math.sqrt(1.0 - optimizer.beta2**t) / (1.0 - one**t) for t in {counts[i] for i in indices}
        }
        return [rate * scales[counts[i]] for rate, i in zip(optimizer._get_lrs(indices), indices)]

    @staticmethod
    def many(optimizer: Any, arrays: _Together, rates: list[float], decays: list[float]) -> None:
        weights, states = arrays.weights, arrays.states
        if any(decays) or optimizer.rescale_grad == 0:  # AdamW takes a factor of 0 for an overflow
            for each in zip(weights, arrays.gradients, states, rates, decays):
                _Adam.one(optimizer, *each)
            return
        options = _Adam._options(optimizer)
        factor = mx.nd.full((1,), options.pop("rescale_grad"), ctx=weights[0].context)
        means, variances = zip(*states)
        mx.nd.contrib.multi_adamw_update(
            weights, arrays.gradients, means, variances, factor, out=weights,
            lrs=rates, wds=decays, etas=[1.0] * len(weights), **options,
        )  # fmt: skip

    @staticmethod
    def one(optimizer: Any, weight: Any, gradient: Any, state: Any, rate: float, decay: float) -> None:
        mx.nd.adam_update(
            weight, gradient, *state, out=weight, lr=rate, wd=decay, **_Adam._options(optimizer)
        )

    @staticmethod
    def _options(optimizer: Any) -> dict[str, float]:
        own = {name: getattr(optimizer, name) for name in ("beta1", "beta2", "epsilon")}
        return {**own, **_common(optimizer)}


RULES = {mx.optimizer.SGD: _SGD, mx.optimizer.Adam: _Adam}


def _common(optimizer: Any) -> dict[str, float]:
    clip = {"clip_gradient": optimizer.clip_gradient} if optimizer.clip_gradient else {}
    return {"rescale_grad": optimizer.rescale_grad, **clip}


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


def _size(parameter: Any) -> int:
    return int(np.prod(parameter.shape)) if parameter.shape else 0
