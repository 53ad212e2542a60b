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
        self._written: set[mx.gluon.Parameter] = set()  # whose grad_req is "write" outside of training
        self._kept: dict[mx.gluon.Parameter, tuple[Sequence[Any], list[bool]]] = {}

    def begin(self) -> None:
        """Let MXNet add gradients up instead of overwriting them, starting with those of the last fit.

        Called again when a handler has set a ``grad_req`` within the fit.
        """
        written = [p for each in self._trainers for p in each._params if p.grad_req == "write"]
        for parameter in written:
            set_grad_req(parameter, "add")
        self._written.update(written)
        still = {p: kept for p, kept in self._kept.items() if p.grad_req != "null"}
        self._kept = {}
        for parameter, (gradients, flags) in still.items():
            pairs = zip(parameter.list_data(), parameter.list_grad(), gradients, flags)
            for values, gradient, kept, fresh in pairs:
                kept.copyto(gradient)
                set_fresh(values, fresh)

    def declared_request(self, parameter: mx.gluon.Parameter) -> str:
        """Return a parameter's ``grad_req`` as it is outside of training."""
        return "write" if parameter in self._written and parameter.grad_req == "add" else parameter.grad_req

    def end(self) -> None:
        """Let MXNet overwrite gradients again, and keep the sums for the next fit."""
        added = [p for p in self._written if p.grad_req == "add"]
        reached = [p for p in added if p._data is not None]
        self._kept.update((p, ([g.copy() for g in p.list_grad()], fresh_flags(p))) for p in reached)
        for parameter in added:
            set_grad_req(parameter, "write")
        self._written.clear()
