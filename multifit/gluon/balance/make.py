"""Choose what runs a method of balancing."""

from __future__ import annotations

from typing import Any, Mapping, Union

from ...distributed import World
from ...errors import SpecError, quoted
from ...protocols import Context
from ...spec import TaskSpec
from .arrays import Arrays
from .balancer import Balancer
from .gradient_balancer import GradientBalancer
from .tasks import check_method

AnyBalancer = Union[Balancer, GradientBalancer]


def of_kind(balancer: AnyBalancer | None) -> tuple[Balancer | None, GradientBalancer | None]:
    """Return a balancer as what weighs losses, and as what weighs gradients; it is one of them, or none."""
    if isinstance(balancer, GradientBalancer):
        return None, balancer
    return balancer, None


def make_balancer(
    method: Any,
    spec: TaskSpec,
    context: Context,
    world: World,
    parameters: Mapping[str, Any],
    arrays: Arrays,
) -> AnyBalancer | None:
    """Return what runs a method, None without one; raises SpecError if it is none, or cannot run here.

    `arrays` are the engine's that runs.
    """
    if method is None:
        return None
    check_method(method)
    bound = [term.key for term in spec.terms if term.trainers]
    if bound:
        raise SpecError(
            f"balance: the losses {quoted(bound)} are bound to trainers, and weighed by nothing else; leave "
            "balance= out, or their trainers="
        )
    if method.needs == "gramian":
        return GradientBalancer(method, spec, context, world, parameters, arrays)
    return Balancer(method, spec, context, world, arrays)
