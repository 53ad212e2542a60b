"""The gradients of all ranks: which parameters any rank has reached, and the sums over the ranks."""

from collections.abc import Mapping
from itertools import compress
from typing import Any

from ...distributed import World
from ...errors import Problem
from ..compat import mx
from ..ranks.collectives import all_reduce
from .gradients import fresh_flags, replicas, set_fresh, updated_parameters
from .trainers import Trainers


class JointGradients:
    """Adds up the trainers' gradients over the ranks, in one order on all ranks; with one, does nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._fresh: list[Any] = []

    def agree(self, held_back: bool, trainers: Mapping[str, Any]) -> bool:
        """Return whether a handler on any rank holds back the update.

        `held_back` says whether one on this rank does. If none does, the ranks also agree on which parameters
        of these trainers any rank has reached.
        """
        if self._world.alone:
            return held_back
        parameters = [each for trainer in trainers.values() for each in updated_parameters(trainer)]
        flags = [any(fresh_flags(parameter)) for parameter in parameters]
        *reached, held_back = (self._world.sum([*flags, held_back]) > 0).tolist()
        self._fresh = list(compress(parameters, reached))
        return held_back

    def add_up(self) -> None:
        """Replace gradients by their sums over the ranks; each rank has summed them over its devices."""
        if self._world.alone:
            return
        gradients = [parameter.list_grad()[0] for parameter in self._fresh]
        for parameter, gradient in zip(self._fresh, gradients):
            if not any(fresh_flags(parameter)):  # only other ranks' samples have reached it
                mx.nd.zeros_like(gradient, out=gradient)
            for values in replicas(parameter):
                set_fresh(values, True)
        all_reduce(self._world, gradients)
        for parameter in self._fresh:
            first, *others = parameter.list_grad()
            for gradient in others:
                first.copyto(gradient)

    def problems(self, trainers: Trainers) -> list[Problem]:
        """Return why gradients cannot be added up over the ranks; all parameters must have shapes."""
        problems: list[Problem] = []
        for name, trainer in () if self._world.alone else trainers.items():
            sparse = [p.name for p in updated_parameters(trainer) if p._grad_stype != "default"]
            if sparse:
                what = f'"{name}" updates {", ".join(sparse)}, whose gradients are sparse'
                way_out = "cannot be added up over processes; build the layer with sparse_grad=False"
                problems.append(Problem("trainer", f"trainers: {what} and {way_out}"))
        return problems
