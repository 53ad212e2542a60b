"""MXNet's optimizers as optimizers of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .rules import RULES, Group


class MXNetOptimizer(torch.optim.Optimizer):
    """Updates parameters as one of MXNet's optimizers does.

    Each group has MXNet's ``wd`` as `weight_decay`, and its `momentum`, or `betas`; all are read in each
    step. Rates and decays are multiplied by those of Gluon's parameters.

    Parameters
    ----------
    parameters : iterable of torch.Tensor
        The parameters, or groups of them.
    options : mx.optimizer.Optimizer
        Has all other options. Its own schedule and states are not used.
    multipliers : callable
        Returns, for a parameter, an object with ``lr_mult`` and ``wd_mult``.
    counts : mapping of torch.Tensor to int
        How often parameters were updated before.
    states : mapping of torch.Tensor to NDArray, tuple of NDArray or None
        The states of parameters in MXNet that were updated before.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        options: Any,
        multipliers: Callable[[Tensor], Any],
        counts: Mapping[Tensor, int],
        states: Mapping[Tensor, Any] | None = None,
    ) -> None:
        self._options, self._rule = options, RULES[type(options).__name__.lower()]
        self._counts, self._states = counts, states or {}
        defaults: dict[str, Any] = {"lr": float(options.lr), "weight_decay": float(options.wd)}
        if hasattr(options, "momentum"):
            defaults["momentum"] = options.momentum
        elif hasattr(options, "beta1"):
            defaults["betas"] = (options.beta1, getattr(options, "beta2", 0.0))
        super().__init__(parameters, defaults)
        self._multipliers = {p: multipliers(p) for group in self.param_groups for p in group["params"]}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients; returns what `closure` does, which computes them."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            reached = [each for each in group["params"] if each.grad is not None]
            for dtype in dict.fromkeys(each.dtype for each in reached):
                with torch.no_grad():
                    self._update(group, [each for each in reached if each.dtype == dtype])
        return loss

    def _update(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        options, multipliers = self._options, [self._multipliers[each] for each in weights]
        options.lr, options.wd = group["lr"], group["weight_decay"]
        if "momentum" in group:
            options.momentum = group["momentum"]
        if "betas" in group:
            options.beta1, options.beta2 = group["betas"]
        states, count = [self.state[each] for each in weights], self._rule.states(options)
        for weight, state in zip(weights, states):
            state["step"] = state.get("step", self._counts.get(weight, 0)) + 1
            given = self._states.get(weight)
            begun = given if isinstance(given, (list, tuple)) else () if given is None else (given,)
            for number in range(count):
                if str(number) not in state:
                    first = torch.as_tensor(begun[number].asnumpy()) if begun else torch.zeros_like(weight)
                    state[str(number)] = first.to(weight)
            if not count:
                state.pop("0", None)  # a momentum that is raised from 0 begins anew
        rule_group = Group(
            weights,
            [each.grad for each in weights],
            [tuple(state[str(number)] for number in range(count)) for state in states],
            [group["lr"] * each.lr_mult for each in multipliers],
            [group["weight_decay"] * each.wd_mult for each in multipliers],
            [state["step"] for state in states],
        )
        self._rule.update(options, rule_group)
