"""Choose the balancer for a method of balancing."""

from collections.abc import Mapping
from typing import Any

from ...balance.tasks import check_method
from ...distributed import World
from ...protocols import Context
from ...spec import TaskSpec
from .gradients import GradientBalancer
from .losses import Balancer

AnyBalancer = Balancer | GradientBalancer


def of_kind(balancer: AnyBalancer | None) -> tuple[Balancer | None, GradientBalancer | None]:
    """Return a pair: the balancer if it weighs losses, and if it weighs gradients; None otherwise."""
    if isinstance(balancer, GradientBalancer):
        return None, balancer
    return balancer, None


def make_balancer(
    method: Any, spec: TaskSpec, context: Context, world: World, parameters: Mapping[str, Any]
) -> AnyBalancer | None:
    """Return the balancer that runs a method, or None if `method` is None.

    Raises SpecError if `method` is not a method of balancing, or cannot weigh the losses of `spec`.
    """
    if method is None:
        return None
    check_method(method, spec)
    if method.needs == "gramian":
        return GradientBalancer(method, spec, world, parameters)
    return Balancer(method, spec, context, world)
