"""How often trainers update parameters, and the gradients of trainers that wait."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from ...errors import Problem
from ..compat import mx
from .gradients import fresh_flags, set_fresh, set_grad_req
from .parameters import listing


class Rhythm(NamedTuple):
    """A trainer updates once in `every` batches; with `accumulate`, by the mean of their gradients."""

    every: int
    accumulate: bool = False

    def waits(self, step: int) -> bool:
        """Whether the trainer does not update after batch number `step` of the run, counted from 0."""
        return (step + 1) % self.every > 0


def rhythm_problems(where: str, declared: Any, parameters: Mapping[str, mx.gluon.Parameter]) -> list[Problem]:
    """Return why the gradients of a trainer cannot be added up; `where` is its name in messages."""
    adds = getattr(declared, "accumulate", False)
    if not isinstance(adds, (bool, np.bool_)) or not adds:  # other types are reported elsewhere
        return []
    sparse = [name for name, p in parameters.items() if p._grad_stype != "default"]
    message = (
        f"{where}: accumulate=True, but the gradients of {listing(sparse)} are sparse, and MXNet cannot "
    )
    message += "add such gradients; build the layer with sparse_grad=False, or leave accumulate out"
    return [Problem("trainer", message)] if sparse else []


class AddedGradients:
    """The gradients of trainers that accumulate: added up while training, and kept between fits."""

    def __init__(self, trainers: Sequence[mx.gluon.Trainer]) -> None:
        self._trainers = trainers
        # the parameters whose grad_req is "write" outside of training, and their lists of arrays
        self._added: dict[mx.gluon.Parameter, tuple[Any, Any]] = {}
        self._kept: dict[mx.gluon.Parameter, tuple[Sequence[Any], list[bool]]] = {}

    def begin(self) -> None:
        """Let MXNet add gradients up instead of overwriting them, starting with those of the last fit.

        Called again after a handler has set a ``grad_req``. If that was "add" only for the time of training,
        and the handler has set "write", what was added so far still counts.
        """
        for parameter in (p for each in self._trainers for p in each._params if p.grad_req == "write"):
            set_grad_req(parameter, "add")
            values, gradients = self._added.get(parameter, (None, None))
            if gradients and values is parameter._data:  # Gluon has replaced the gradients alone
                for old, new in zip(gradients, parameter._grad):
                    old.copyto(new)
            self._added[parameter] = parameter._data, parameter._grad
        for parameter, (kept, flags) in self._kept.items():
            if parameter.grad_req == "null":
                continue
            for values, gradient, old, fresh in zip(parameter._data, parameter._grad, kept, flags):
                old.copyto(gradient)
                set_fresh(values, fresh)
        self._kept = {}

    def remember(self) -> None:
        """Remember the arrays of gradients, as the first batch may have made them."""
        self._added = {p: (p._data, p._grad) for p in self._added}

    def declared_request(self, parameter: mx.gluon.Parameter) -> str:
        """Return a parameter's ``grad_req`` as it is outside of training."""
        return "write" if parameter in self._added and parameter.grad_req == "add" else parameter.grad_req

    def end(self) -> None:
        """Let MXNet overwrite gradients again, and keep the sums for the next fit."""
        for parameter in self._added:
            if parameter.grad_req != "add":  # a handler has frozen it
                continue
            if parameter._data is not None:
                self._kept[parameter] = [g.copy() for g in parameter._grad], fresh_flags(parameter)
            set_grad_req(parameter, "write")
        self._added = {}
